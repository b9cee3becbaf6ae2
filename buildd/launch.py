"""What goes into the runner and what comes out: a `Launch`, an `Exit`, why a tool did not start or lacked memory.

Pure: knows no process, only what was said about one.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from buildd import spawner
from buildd.errors import RunnerError
from protocol.messages import Timing

SIGKILL = 9

# What the tools say when the kernel took a process below them (nvcc, gcc, clang), or when memory could not be had.
_NO_MEMORY = re.compile(
    rb"died due to signal 9\b|[Kk]illed signal terminated program|Killed \(program |std::bad_alloc"
    rb"|virtual memory exhausted|LLVM ERROR: out of memory|Cannot allocate memory|out of memory allocating \d+ bytes"
    rb"|unable to execute command: Killed|clang frontend command failed due to signal: Killed|^MemoryError\b",
    re.MULTILINE,
)
_COMPILE_ERROR = re.compile(rb"\berror\b[^\n:]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Launch:
    """A tool to run.

    Args:
        argv: program and arguments; a program without a slash is looked for in the PATH of `environment`.
        cwd: folder to run in, absolute.
        environment: the whole environment; nothing is inherited.
        payload: standard input; none means /dev/null.
        timeout_s: after this long it is ended; 0 means never.
        umask: of the tool.
        quiet: nobody hears its lines while it runs; its output goes through files, which take no turns of the loop.
        warm: not empty: it is a Python and a worker script, and may be forked from a process that has imported the
            packages which are known by this.
    """

    argv: tuple[str | bytes, ...]
    cwd: str | bytes
    environment: tuple[tuple[str, str], ...] = ()
    payload: bytes = b""
    timeout_s: float = 3600.0
    umask: int = 0o022
    quiet: bool = False
    warm: str = ""

    @property
    def command(self) -> str:
        """One line for people, shell-quoted."""
        return shlex.join(os.fsdecode(argument) for argument in self.argv)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a tool ended. `status` is 128 + signal after a signal, as in a shell."""

    status: int
    signal: int
    timing: Timing
    timed_out: bool = False
    cancelled: bool = False
    out_of_memory: bool = False
    """Ended by the kernel or by us for want of memory, or it said so itself."""
    output_truncated: bool = False
    lost: bool = False
    """The helper process was killed; how the tool would have ended is unknown."""
    stdout: bytes = b""
    stderr: bytes = b""
    """What it wrote; in the middle bounded, see `streams.Capture`."""

    @property
    def ok(self) -> bool:
        return self.status == 0


class KillReason(Enum):
    """Why we end a tool."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """The host is short of memory: no grace."""


def decode(wait_status: int) -> tuple[int, int]:
    """(status, signal) from what wait4 says."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (128 - code, -code) if code < 0 else (code, 0)


def start_error(launch: Launch, code: int, stage: int) -> RunnerError:
    """Why a tool could not be started, for people."""
    cwd, reason = os.fsdecode(launch.cwd), os.strerror(code)
    program = os.fsdecode(launch.argv[0]) if launch.argv else ""
    if spawner.STAGES[stage] == "chdir":
        return RunnerError(
            f"cannot run {program} in {cwd}: {reason}",
            file=cwd,
            command=launch.command,
            next_step="create the folder or correct its path",
        )
    if code == errno.ENOENT:
        step = "install it, or correct the path or PATH (of a script: also the interpreter in its first line)"
    elif code in (errno.EACCES, errno.ENOEXEC):
        step = f"check that it is an executable for this machine: file {shlex.quote(program)}"
    elif code == errno.E2BIG:
        step = "pass the arguments in a response file (@file)"
    elif code in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
        step = "run fewer jobs, or raise the limits on processes and open files (ulimit -u, ulimit -n)"
    else:
        step = "run the command by hand"
    return RunnerError(f"cannot start {program}: {reason}", file=program, command=launch.command, next_step=step)


def out_of_memory(status: int, output: Iterable[bytes], oom_kills: int) -> bool:
    """Whether a tool that nobody ended failed for want of memory.

    Args:
        status: as in `Exit`; a SIGKILL that we did not send comes from the kernel.
        output: what it wrote.
        oom_kills: how many processes of our cgroup the kernel killed for memory meanwhile. The counter is everybody's:
            another job's victim must not excuse an ordinary compile error.
    """
    if status == 0:
        return False
    texts = list(output)
    if status == 128 + SIGKILL or any(map(_NO_MEMORY.search, texts)):
        return True
    return oom_kills > 0 and not any(map(_COMPILE_ERROR.search, texts))


def memory_file(name: str, data: bytes) -> int:
    """A descriptor of a file that is nowhere, to be read from its beginning. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
