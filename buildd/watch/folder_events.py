"""Folders under watch: hints at what may have changed in them, as it happens.

A hint says that a name was touched, or that names may have been missed. The receiver reads the files to find out
whether they changed. This module uses watchdog's inotify class and not its observers: these take a thread for each
folder, and do not report that the kernel's queue was full.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyEvent, InotifyFD, Mask, WatchDescriptor

from buildd.files.stamp_set import Mark
from buildd.store.location import network_file_system

LIMIT_FILE = Path("/proc/sys/fs/inotify/max_user_watches")
BARRIER_S = 1.0
"""A barrier that takes longer has failed."""
LIMIT_SHARE = 0.5
"""Share of the user's inotify watches that buildd takes: the others are the editor's."""
_UNKNOWN_LIMIT = 8192
MOST_REMEMBERED = 100_000
"""Paths whose last hint is remembered."""
_MASK = Mask(
    InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_ATTRIB
    | InotifyConstants.IN_MOVED_FROM
    | InotifyConstants.IN_MOVED_TO
    | InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
)
_NAMES = Mask(
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVED_FROM
    | InotifyConstants.IN_MOVED_TO
)
_MOUNTS = "/proc/self/mountinfo"
_log = logging.getLogger(__name__)


class WatchedFolder:
    """One folder under watch; watchdog's thread calls its methods."""

    def __init__(self, path: str, hints: Hints) -> None:
        self.path = path
        self.descriptor = WatchDescriptor(-1)
        self._hints = hints
        self._identity = _identity(path)

    def stands(self) -> bool:
        """Whether the path still leads to the folder that is watched."""
        return self._identity is not None and _identity(self.path) == self._identity

    def on_event(self, event: InotifyEvent) -> None:
        gone = event.mask & (InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF)
        if gone:
            # The watch would follow a folder that was moved; its name may mean another folder by now.
            self._hints.leave(self)
        name = os.fsdecode(event.name)
        path = f"{self.path}/{name}" if name and not gone else self.path
        if event.mask & InotifyConstants.IN_ISDIR and event.mask & InotifyConstants.IN_ATTRIB:
            # The folder's own times or rights changed: copying programs set them.
            self._hints.note([path])
            return
        if name and event.mask & _NAMES:
            self._hints.renamed(path)
        self._hints.hint(path)

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        self._hints.lost(self)

    def on_queue_overflow(self) -> None:
        self._hints.missed()


class Hints:
    """Folders that several watchers want watched. `watch` and `close` are called one at a time.

    Args:
        tell: called from another thread when there are hints to `take`; not again before they were taken.
        most: folders watched at once; by default half of what the kernel grants the user.
    """

    def __init__(self, tell: Callable[[], None], *, most: int = 0) -> None:
        self._tell = tell
        self._most = most or _limit()
        self._notifier: InotifyFD | None = None
        self._folders: dict[str, WatchedFolder] = {}
        self._above: frozenset[str] = frozenset()
        """The watched folders, and all folders above them."""
        self._mounts = _Mounts()
        self._remote: dict[int, bool] = {}
        """Devices, and whether changes by other hosts give no event there."""
        self._paths: set[str] = set()
        self._missed = False
        self._told = False
        self.count = 0
        """Number of hints so far: while it is equal at two barriers, nothing was touched in between."""
        self._turns = 0
        self._touched: dict[str, int] = {}
        """Path -> number of its last hint, in the order of these numbers."""
        self._forgotten = 0
        """Number of the last hint whose path is not remembered."""
        self.last_s = 0.0
        """When the last hint came, on the monotonic clock."""
        self._cookies = ""
        self._awaited: dict[str, threading.Event] = {}
        self._numbers = itertools.count()
        self._said_full = False
        self.unreadable: set[str] = set()
        """Folders that cannot be watched, since this user may not read their names."""
        self._lock = threading.Lock()

    def watch(self, folders: Iterable[str]) -> tuple[str, ...]:
        """Watch exactly these folders from now on. In a worker thread.

        Args:
            folders: absolute, and there.

        Returns:
            Folders that give no events: on a network, unreadable, gone, or beyond the share of the kernel's limit.
        """
        wanted = dict.fromkeys(folders)
        kept = {**wanted, self._cookies: None}
        # A link may have been turned, a folder above replaced: the watched folder then has another name or none.
        for folder in list(self._folders.values()):
            if folder.path not in kept or not folder.stands():
                self.leave(folder)
        with self._lock:
            polled = tuple(path for path in wanted if path not in self._folders and not self._add(path))
            self._above = frozenset(_with_those_above(self._folders))
        return polled

    def mark(self) -> Mark:
        """The present moment."""
        return Mark(self.count, self._turns)

    def touched_since(self, mark: Mark) -> list[str] | None:
        """Every path that was touched since a moment; None where further ones may have been. Call `barrier` before,
        where it has to hold for everything that happened before the call."""
        with self._lock:
            if self._turns != mark.turns or self._forgotten > mark.count:
                return None
            late = itertools.takewhile(lambda path: self._touched[path] > mark.count, reversed(self._touched))
            return list(late)

    def note(self, paths: Iterable[str]) -> None:
        """Note paths that were found to be touched in another way."""
        with self._lock:
            for path in paths:
                self._remember(path)

    def covers(self, folder: str) -> bool:
        """Whether what happens in a folder gives hints."""
        return folder in self._folders

    def stands(self, folder: str) -> bool:
        """Whether a folder is watched and still the one of that name; for a folder above which nothing is watched."""
        watched = self._folders.get(folder)
        return watched is not None and watched.stands()

    def barrier(self, scratch: Path) -> bool:
        """Wait until everything that happened before this call has been hinted at. In a worker thread.

        The kernel queues the events of all folders in their order: an event that buildd caused itself comes after all
        events before it.

        Args:
            scratch: a local folder in which files may be made.
        """
        if self._mounts.have_changed():
            # Another file system may be mounted over any folder now, and no event tells of that.
            for folder in list(self._folders.values()):
                self.leave(folder)
            self._miss()
        with self._lock:
            if self._cookies not in self._folders:  # there is none yet, or it was removed, perhaps with its store
                cookies = tempfile.mkdtemp(prefix="cookies-", dir=scratch)
                if not self._add(cookies):
                    return False
                self._cookies = cookies
            cookie = f"{self._cookies}/{next(self._numbers)}"
            seen = self._awaited[cookie] = threading.Event()
        try:
            os.close(os.open(cookie, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return seen.wait(BARRIER_S)
        except OSError:
            return False
        finally:
            del self._awaited[cookie]
            with contextlib.suppress(OSError):
                os.unlink(cookie)

    def take(self) -> tuple[set[str], bool]:
        """The paths that were touched since the last call, and whether others may have been."""
        with self._lock:
            taken = self._paths, self._missed
            self._paths, self._missed, self._told = set(), False, False
            return taken

    def close(self) -> None:
        self._mounts.close()
        notifier, self._notifier = self._notifier, None
        with self._lock:
            self._folders.clear()
        if notifier is not None:
            notifier.stop()
            notifier.join()
        if self._cookies:
            shutil.rmtree(self._cookies, ignore_errors=True)

    # ---------------------------------------------------------------- watchdog's thread

    def hint(self, path: str) -> None:
        if self._cookies and path.startswith(self._cookies):
            awaited = self._awaited.get(path)
            if awaited is not None:
                awaited.set()
            return
        with self._lock:
            self._remember(path)
            self.last_s = time.monotonic()
            self._paths.add(path)
            told, self._told = self._told, True
        if not told:
            self._tell()

    def missed(self) -> None:
        """The kernel's queue was full."""
        if self._miss():  # every folder reports it
            _log.warning("inotify's queue overflowed: every watched file is looked at")

    def renamed(self, path: str) -> None:
        """A name came or went. Where a folder on the way to watched ones has it, those are other folders now."""
        if path in self._above:
            for folder in list(self._folders.values()):
                if f"{folder.path}/".startswith(f"{path}/"):
                    self.leave(folder)

    def lost(self, folder: WatchedFolder) -> bool:
        """Note that a folder is no longer there under its name; False where that is known. A later `watch` watches it
        anew."""
        with self._lock:
            if self._folders.get(folder.path) is not folder:
                return False
            del self._folders[folder.path]
            self._turns += 1
            return True

    # ----------------------------------------------------------------

    def _miss(self) -> bool:
        """Note that anything may have been touched; False where that is known already."""
        with self._lock:
            self.count += 1
            self._forgotten = self.count
            if self._missed:
                return False
            self._missed = True
            told, self._told = self._told, True
        if not told:
            self._tell()
        return True

    def _remember(self, path: str) -> None:
        self.count += 1
        self._touched.pop(path, None)
        if len(self._touched) >= MOST_REMEMBERED:
            self._touched.clear()
            self._forgotten = self.count - 1
        self._touched[path] = self.count

    def _add(self, path: str) -> bool:
        if len(self._folders) >= self._most:
            if not self._said_full:
                self._said_full = True
                _log.warning("%d folders are watched, half of the user's limit: the others are polled", self._most)
            return False
        folder = WatchedFolder(path, self)
        self.unreadable.discard(path)
        try:
            if not os.access(path, os.R_OK):
                self.unreadable.add(path)
                return False
            if self._is_remote(path):
                return False
            if self._notifier is None:
                self._notifier = InotifyFD()
                self._notifier.start()
            folder.descriptor = self._notifier.add_callback(os.fsencode(path), _MASK, folder, CallbackId(id(folder)))
        except OSError as error:
            _log.warning("%s cannot be watched and is polled: %s", path, error.strerror)
            return False
        if not folder.stands():  # another folder may be watched, and nothing would tell
            self._notifier.remove_callbacks([(folder.descriptor, CallbackId(id(folder)))])
            return False
        self._folders[path] = folder
        self._turns += 1
        return True

    def _is_remote(self, path: str) -> bool:
        device = os.stat(path).st_dev
        if device not in self._remote:
            self._remote[device] = bool(network_file_system(path))
        return self._remote[device]

    def leave(self, folder: WatchedFolder) -> None:
        """Stop watching a folder."""
        if self.lost(folder) and self._notifier is not None:
            self._notifier.remove_callbacks([(folder.descriptor, CallbackId(id(folder)))])


class _Mounts:
    """Tells that something was mounted or unmounted; the kernel wakes processes that poll the list."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._lock = threading.Lock()
        """A poll object serves one thread at a time."""
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
            self._poll.register(self._file, select.POLLPRI)
            self._poll.poll(0)

    def have_changed(self) -> bool:
        """Whether something was mounted or unmounted since the last call."""
        with self._lock:
            return bool(self._poll.poll(0))

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            self._poll.unregister(file)
            os.close(file)


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _with_those_above(folders: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        while folder not in found and folder != "/":
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


def _limit() -> int:
    try:
        return int(int(LIMIT_FILE.read_text()) * LIMIT_SHARE)
    except (OSError, ValueError):
        return _UNKNOWN_LIMIT
