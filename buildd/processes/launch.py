"""Launches and exits of tools, and why a tool did not start or ran out of memory.

Pure: knows data about processes, and no process.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from buildd.errors import RunnerError
from buildd.processes.spawner_wire import STAGES
from protocol.messages import Timing

SIGKILL = 9

# What the tools print when a process below them was killed (nvcc, gcc, clang), most likely by the kernel.
_CHILD_KILLED = re.compile(
    rb"died due to signal 9\b|[Kk]illed signal terminated program|Killed \(program "
    rb"|unable to execute command: Killed|clang frontend command failed due to signal: Killed"
)
# The same when an allocation failed.
_NO_MEMORY = re.compile(
    rb"std::bad_alloc|virtual memory exhausted|LLVM ERROR: out of memory|Cannot allocate memory"
    rb"|out of memory allocating \d+ bytes|^MemoryError\b",
    re.MULTILINE,
)
_COMPILE_ERROR = re.compile(rb"(?:\b|\x1b\[[0-9;]*[mK])error\b[^\n:]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Launch:
    """A tool to run.

    Args:
        argv: program and arguments; a program without a slash is looked for in the PATH of `environment`.
        cwd: folder to run in, absolute.
        environment: the whole environment; nothing is inherited.
        payload: standard input; none means /dev/null.
        timeout_s: after this long it is ended; 0 means never.
        umask: the tool's umask.
        quiet: nothing follows its lines while it runs; its output goes through files, which cost the loop no time.
        warm: identity of the packages that the worker imports, if argv is a Python and a worker script: the tool may
            then be forked from a process that has imported them. Empty for other tools.
        is_coloured: the tool was asked to colour what it writes to its standard error.
    """

    argv: tuple[str | bytes, ...]
    cwd: str | bytes
    environment: tuple[tuple[str, str], ...] = ()
    payload: bytes = b""
    timeout_s: float = 3600.0
    umask: int = 0o022
    quiet: bool = False
    warm: str = ""
    is_coloured: bool = False

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
    """The kernel or buildd ended it because memory was short, or its own output says so."""
    output_truncated: bool = False
    lost: bool = False
    """The spawner was killed; how the tool would have ended is unknown."""
    stdout: bytes = b""
    stderr: bytes = b""
    """The tool's output; the middle of a long one is left out, see `streams.Capture`."""
    coloured: bytes = b""
    """Its standard error with colours, if it was asked for them; `stderr` has none."""

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def was_killed(self) -> bool:
        """Whether it, or a process below it, ended by SIGKILL."""
        return self.signal == SIGKILL or _CHILD_KILLED.search(self.stderr) is not None


class EndReason(Enum):
    """Why buildd ends a tool."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """The host is short of memory: no grace."""


def decode(wait_status: int) -> tuple[int, int]:
    """(status, signal) from the status that wait4 returns."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (128 - code, -code) if code < 0 else (code, 0)


def start_error(launch: Launch, code: int, stage: int) -> RunnerError:
    """The error for a tool that could not be started."""
    cwd, reason = os.fsdecode(launch.cwd), os.strerror(code)
    program = os.fsdecode(launch.argv[0]) if launch.argv else ""
    if STAGES[stage] == "chdir":
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
    """Whether a tool that buildd did not end failed because memory was short.

    Args:
        status: as in `Exit`; a SIGKILL that buildd did not send comes from the kernel.
        output: the tool's output.
        oom_kills: how many processes of buildd's cgroup the kernel killed for memory meanwhile. The counter covers all
            jobs: another job's victim must not excuse an ordinary compile error.
    """
    if status == 0:
        return False
    texts = list(output)
    if status == 128 + SIGKILL or any(map(_CHILD_KILLED.search, texts)) or any(map(_NO_MEMORY.search, texts)):
        return True
    return oom_kills > 0 and not any(map(_COMPILE_ERROR.search, texts))


def memory_file(name: str, data: bytes) -> int:
    """A descriptor of a file in memory with this content, positioned at its beginning. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
