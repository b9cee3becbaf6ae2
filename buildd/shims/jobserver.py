"""GNU make's jobserver for everything below one `buildd run`: N jobs at once, no matter which tool starts them. Without
-j, N is what other builds leave to this one of the daemon's processors, and changes with them.

Knows tokens and how tools find them; not what the tools run, and nothing of the daemon. Tokens are bytes in a fifo, for
make from 4.4 on, ninja from 1.13 on and cargo; older versions of make take open pipes, which make's shim opens
(launcher.c). Each build tool has one job without a token, so there are N - 1 tokens.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType

from buildd import caller
from buildd.errors import BuilddError
from buildd.shims.shim_folders import BUILDERS
from codegen.foreign.called_tool import without_shims

MOST_JOBS = 4096
_LOOK_S = 2.0
_WAIT_S = 0.1
_ASK_S = 5.0
_MAKE = ("make", "gmake")
_ELF_MAGIC = b"\x7fELF"
_VERSION = re.compile(r"GNU Make (\d+)\.(\d+)")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


class Jobserver:
    """A fifo with tokens, for as long as a command runs.

    Args:
        folder: where the fifo is made.
        jobs: number of jobs at once.
        share: asked every two seconds how many there may be from now on.

    Raises: OSError; BuilddError if MAKEFLAGS cannot carry the path.
    """

    def __init__(self, folder: Path, jobs: int, share: Callable[[], int] | None = None) -> None:
        self.path = folder / f"jobs-{os.urandom(6).hex()}"
        if not _PLAIN.fullmatch(str(self.path)) or not 1 <= jobs <= MOST_JOBS:
            raise BuilddError(f"cannot make a jobserver at {self.path}")
        os.mkfifo(self.path, 0o600)
        # Stays open at both ends: otherwise the tokens would vanish with the first client.
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._tokens = jobs - 1
        self._share = share
        self._lost = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="jobserver", daemon=True)
        os.write(self._descriptor, b"+" * self._tokens)
        self._watch.start()

    @property
    def available(self) -> int:
        """Number of free tokens."""
        return int(struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0\0\0\0"))[0])

    def restore(self) -> int:
        """Put back tokens whose holders are gone; returns how many.

        A token counts as lost if two looks in a row find more tokens taken than the processes of the build can hold.
        """
        with self._lock:
            out = 0
            if not self.available:
                out = max(0, self._tokens - _most_held(self.path) - self.available)
            lost, self._lost = min(out, self._lost), out
            if lost:
                os.write(self._descriptor, b"+" * lost)
                self._lost = 0
            return lost

    def resize(self, jobs: int, within_s: float) -> int:
        """Have so many jobs at once from now on; returns how many there are.

        There are more for a while if no tool gives a token back within this time.
        """
        wanted = min(max(1, jobs), MOST_JOBS) - 1
        with self._lock:
            if (new := wanted - self._tokens) > 0:
                os.write(self._descriptor, b"+" * new)
                self._tokens = wanted
        deadline = time.monotonic() + within_s
        free = select.poll()
        free.register(self._descriptor, select.POLLIN)
        # Waits as the tools do: between one that gives a token back and one that waits for it no token is ever free.
        while self._tokens > wanted and time.monotonic() < deadline and not self._ended.is_set():
            if free.poll(_WAIT_S * 1000):
                with self._lock, contextlib.suppress(BlockingIOError):
                    self._tokens -= len(os.read(self._descriptor, 1))
        return self._tokens + 1

    def close(self) -> None:
        self._ended.set()
        self._watch.join()
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Jobserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> None:
        caller.take_no_signals()
        while not self._ended.wait(_LOOK_S):
            if self._share is not None:
                self.resize(self._share(), _LOOK_S)
            self.restore()


def takes_fifo(tools: Mapping[str, str]) -> bool:
    """Whether MAKEFLAGS may name a fifo.

    make up to 4.3 refuses to run then, and ninja and cargo pass theirs on to any make that they call, by any path.
    """
    return not any(_version(tools[name]) < (4, 4) for name in _MAKE if name in tools)


def variables(server: Jobserver, jobs: int, tools: Mapping[str, str], *, unasked: bool = False) -> dict[str, str]:
    """The variables that name it to tools; make and ninja learn of it from their shims.

    Args:
        unasked: the user named no number of jobs, so a make without -j goes on doing one thing after another.
    """
    if not takes_fifo(tools):
        return {"BUILDD_JOBSERVER": f"pipe:{server.path}"}
    return {
        "BUILDD_JOBSERVER": f"unasked:{server.path}" if unasked else str(server.path),
        "CARGO_MAKEFLAGS": f"-j{jobs} --jobserver-auth=fifo:{server.path}",
    }


def find_builders(environ: Mapping[str, str]) -> dict[str, str]:
    """The tools of this environment that learn of a jobserver from a shim: name -> path."""
    path = without_shims(environ.get("PATH", os.defpath))
    found = {name: os.path.abspath(place) for name in BUILDERS if (place := shutil.which(name, path=path))}
    return {name: place for name, place in found.items() if name not in _MAKE or _version(place) >= (4, 2)}


def _version(make: str) -> tuple[int, int]:
    """Version of GNU make; (0, 0) for another make."""
    try:
        with open(make, "rb") as file:
            is_script = file.read(len(_ELF_MAGIC)) != _ELF_MAGIC
            status = os.fstat(file.fileno())
    except OSError:
        is_script = True
    if is_script:  # what it starts may change without it
        return _asked.__wrapped__(make, ())
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _asked(make, stamp)


@cache
def _asked(make: str, stamp: tuple[int, ...]) -> tuple[int, int]:
    """As this very file answers: its stamp is a part of the question, for processes that live long."""
    try:
        said = subprocess.run(
            [make, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": os.defpath},
            timeout=_ASK_S,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return 0, 0
    match = _VERSION.match(said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _most_held(fifo: Path) -> int:
    """The most tokens that the living processes of the build can hold: one for each thread of the processes below the
    user's command that have the fifo open, and of their descendants."""
    parents: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if name.isdecimal() and fields[0] not in "ZX":
                parents[int(name)] = int(fields[1]), int(fields[17])
        except (OSError, IndexError):
            continue
    ours = _with_all_below({caller.process()}, parents) - {caller.process()}
    holders = _with_all_below({pid for pid in ours if _has_open(pid, fifo)}, parents)
    return sum(parents[pid][1] for pid in holders)


def _with_all_below(pids: set[int], parents: Mapping[int, tuple[int, int]]) -> set[int]:
    grown = True
    while grown:
        below = {pid for pid, (parent, _) in parents.items() if parent in pids} | pids
        grown, pids = below != pids, below
    return pids


def _has_open(pid: int, fifo: Path) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}") == str(fifo) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False
