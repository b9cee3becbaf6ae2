"""In a program that builds torch extensions: a lock that a killed build left behind is taken over.

torch's lock is a file that is there (pytorch #189245): whoever is killed leaves it, and all who come later wait for it.
Whoever holds it has it open, though, and the kernel knows: it gives a write lease only on a file that nobody else has
open, in whatever container. Where it gives none for other reasons (NFS), the lock is waited for as without us. Knows no
compiler. Standard library only.
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
"""How long somebody waits before it is told what for."""


def begin(file_baton: "Any") -> None:
    """Change torch's class in its module, before anybody has an object of it."""
    kind = file_baton.FileBaton
    acquire = kind.try_acquire

    def try_acquire(self: "Any") -> bool:
        # Waits here instead of in wait(): whoever comes back from there does not build any more, and where the holder
        # was killed somebody has to.
        if acquire(self):
            return True
        since_s = time.monotonic()
        told = left = False
        while True:
            opened, held = _look(self.lock_file_path)
            if opened < 0:
                return False  # released: its holder has built
            # Twice: torch itself closes the file just before it removes it.
            if left and not held:
                print(f"buildd: {self.lock_file_path} was left behind by a build that was ended", file=sys.stderr)
                self.fd = opened
                return True
            os.close(opened)
            left = not held
            if not told and held and time.monotonic() - since_s > _SILENT_S:
                told = True
                print(f"buildd: waiting for {_who(self.lock_file_path)}", file=sys.stderr)
            time.sleep(self.wait_seconds)

    def release(self: "Any") -> None:
        # The other way round than torch does it: nobody sees a file that is there and that nobody holds.
        os.remove(self.lock_file_path)
        if self.fd is not None:
            os.close(self.fd)

    kind.try_acquire, kind.release = try_acquire, release


def _look(path: str) -> "tuple[int, bool]":
    """The opened lock, and whether anybody holds it, as far as can be known; -1 where there is none any more."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        return os.open(os.devnull, os.O_RDONLY), True  # somebody looks, as we do
    except FileNotFoundError:
        return -1, False
    try:
        # Whoever opens the file while we have the lease would have SIGIO sent to us, which ends a process.
        fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        if not os.path.samestat(os.fstat(opened), os.stat(path)):
            return opened, True  # another one by now
    except FileNotFoundError:
        os.close(opened)
        return -1, False
    except OSError:
        return opened, True
    return opened, _ninja_in(os.path.dirname(os.path.abspath(path))) > 0


def _who(path: str) -> str:
    """Who is waited for."""
    pid = _ninja_in(os.path.dirname(os.path.abspath(path)))
    for name in () if pid else filter(str.isdecimal, os.listdir("/proc")):
        try:
            opened = os.listdir(f"/proc/{name}/fd") if int(name) != os.getpid() else []
            if any(os.path.samefile(f"/proc/{name}/fd/{number}", path) for number in opened):
                pid = int(name)
                break
        except OSError:
            continue
    return f"the build of process {pid}" if pid else f"another build; where there is none, remove {path}"


def _ninja_in(folder: str) -> int:
    """A ninja that builds in a folder: a killed program leaves it behind, and it goes on. 0 where there is none."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/comm") as stream:
                if stream.read().strip() == "ninja" and os.path.samefile(f"/proc/{name}/cwd", folder):
                    return int(name)
        except OSError:
            continue
    return 0
