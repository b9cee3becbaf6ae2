"""Sessions: the processes that write to a store right now, each with a lock that the kernel releases when it dies.

Knows no table. A session is a file in <store>/sessions whose flock its owner holds. A process that can take that lock
knows that the owner is gone, also from another container and after the pid was reused. Where the file system has no
flock, pid, start time and boot id in the name decide instead.

Not for use across fork: a forked child keeps its parent's sessions alive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path
from types import TracebackType

from buildd.errors import StoreError
from protocol.endpoint import start_ticks
from protocol.places import boot_id

LOCK_WAIT_S = 30.0
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def boottime_s() -> int:
    """Seconds since boot: one clock for all processes, which cannot be set back."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


class FolderLock:
    """Exclusive flock of <store>/lock, for work that must not run twice at once: opening, migrating, setting aside."""

    def __init__(self, folder: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
        self._path = folder / "lock"
        self._wait_s = wait_s
        self._fd = -1

    def __enter__(self) -> FolderLock:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError as error:
                if error.errno in _NO_FLOCK:
                    return self
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR) or time.monotonic() > deadline:
                    os.close(self._fd)
                    raise StoreError(
                        f"another process has held the store's lock for {self._wait_s:.0f} s",
                        file=str(self._path),
                        next_step=f"see who holds it with `fuser -v {self._path}`",
                    ) from error
            time.sleep(0.005)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class Session:
    """This process as a writer of one store. Make and end it under the store's `FolderLock`."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.start_ticks = start_ticks(self.pid)
        self.boot_id = boot_id()
        self.name = f"{self.pid}-{self.start_ticks}-{self.boot_id[:8]}-{secrets.token_hex(4)}"
        self._path = folder / "sessions" / self.name
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                os.close(self._fd)
                raise

    def close(self) -> None:
        """End the session; its pins and leases are void from now on."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def is_alive(folder: Path, name: str) -> bool:
    """Whether the session called `name` still has its owner."""
    if "/" in name or name.startswith("."):
        return False
    try:
        fd = os.open(folder / "sessions" / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return _seems_alive(name)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _seems_alive(name)
    finally:
        os.close(fd)
    return False


def _seems_alive(name: str) -> bool:
    pid, _, rest = name.partition("-")
    ticks, _, rest = rest.partition("-")
    boot, _, _ = rest.partition("-")
    if not (pid.isdigit() and ticks.isdigit()):
        return False
    return boot == boot_id()[:8] and start_ticks(int(pid)) == int(ticks) != 0


def sweep(folder: Path) -> int:
    """Remove the session files and the temporaries of dead owners; how many files went. Call under the `FolderLock`."""
    removed = 0
    alive: dict[str, bool] = {}
    for kind in ("tmp", "sessions"):
        try:
            names = os.listdir(folder / kind)
        except OSError:
            continue
        for name in names:
            session = name.partition(".")[0]
            if session not in alive:
                alive[session] = is_alive(folder, session)
            if not alive[session]:
                leftover = folder / kind / name
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)
                removed += 1
    return removed
