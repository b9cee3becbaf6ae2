"""In a program that builds torch extensions: takes over a lock that a killed build left behind.

torch's lock is the existence of a file (pytorch #189245): a killed process leaves it, and all later ones wait for it.
But the holder has the file open, and the kernel knows: it grants a write lease only on a file that no other process has
open, in any container. If it refuses for other reasons (NFS), the wait is as without buildd. Knows no compiler.
Standard library only.
"""

import fcntl
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SILENT_S = 3.0
"""A longer wait is explained to the user."""


def begin(file_baton: "Any") -> None:
    """Change torch's class in its module, before there are objects of it."""
    kind = file_baton.FileBaton
    acquire = kind.try_acquire

    def try_acquire(self: "Any") -> bool:
        # Waits here instead of in wait(): after wait() torch does not build, but if the holder was killed, one of
        # the waiting processes has to.
        if acquire(self):
            return True
        since_s = time.monotonic()
        told = left = False
        while True:
            opened, held = _look(self.lock_file_path)
            if opened < 0:
                return False  # released: its holder has finished the build
            # Seen twice: torch itself closes the file just before it removes it.
            if left and not held:
                print(
                    f"buildd: {self.lock_file_path} was left behind by a killed build; taking it over", file=sys.stderr
                )
                self.fd = opened
                return True
            os.close(opened)
            left = not held
            if not told and held and time.monotonic() - since_s > _SILENT_S:
                told = True
                print(f"buildd: waiting for {_who(self.lock_file_path)}", file=sys.stderr)
            time.sleep(self.wait_seconds)

    def release(self: "Any") -> None:
        # In the opposite order to torch's, so that the file never exists without a holder.
        os.remove(self.lock_file_path)
        if self.fd is not None:
            os.close(self.fd)

    kind.try_acquire, kind.release = try_acquire, release


def _look(path: str) -> "tuple[int, bool]":
    """The opened lock, and whether a process seems to hold it; -1 if the file is gone."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        return os.open(os.devnull, os.O_RDONLY), True  # another waiting process has the lease
    except FileNotFoundError:
        return -1, False
    try:
        # If another process opens the file during the lease, the kernel would send SIGIO, which ends a process.
        fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        if not os.path.samestat(os.fstat(opened), os.stat(path)):
            return opened, True  # another file by now
    except FileNotFoundError:
        os.close(opened)
        return -1, False
    except OSError:
        return opened, True
    return opened, _ninja_in(os.path.dirname(os.path.abspath(path))) > 0


def _who(path: str) -> str:
    """What the lock's holder is, in words."""
    pid = _ninja_in(os.path.dirname(os.path.abspath(path)))
    for name in () if pid else filter(str.isdecimal, os.listdir("/proc")):
        try:
            opened = os.listdir(f"/proc/{name}/fd") if int(name) != os.getpid() else []
            if any(os.path.samefile(f"/proc/{name}/fd/{number}", path) for number in opened):
                pid = int(name)
                break
        except OSError:
            continue
    return f"the build of process {pid}" if pid else f"another build (if there is none, remove {path})"


def _ninja_in(folder: str) -> int:
    """Pid of a ninja that builds in a folder: it goes on when its program is killed. 0 if there is none."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/comm") as stream:
                if stream.read().strip() == "ninja" and os.path.samefile(f"/proc/{name}/cwd", folder):
                    return int(name)
        except OSError:
            continue
    return 0
