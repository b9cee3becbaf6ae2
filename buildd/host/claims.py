"""Claims: memory that daemons on one host have promised to their jobs. Each writes its claim and reads those of others.

A claim is memory that was admitted but is not resident yet, so that the host's available memory does not show it. It
is one line in a file named UID.PID in a folder that all users share. The owner holds a lock on its file as long as it
lives, so the kernel shows which owners are dead, also across pid namespaces. Nothing here is trusted: files of other
users are read with care; they can make this daemon wait for memory, never stop it (`admission`: one job always runs).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from buildd.host.admission import Others
from buildd.host.proc import stat_of
from protocol.places import boot_id

FOLDER = "/dev/shm/buildd-reservations"
LINE_BYTES = 128
MOST_FILES = 512
SECTION_WAIT_S = 0.02
FRESH_S = 10.0
"""A claim that was not written anew for this long belongs to a daemon that builds nothing, or hangs."""
_NAME = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})")
_LINE = re.compile(rb"buildd 1 pid=([0-9]{1,10}) start=([0-9]{1,20}) boot=([0-9a-f-]{0,36}) bytes=([0-9]{1,18}) *\n")


class Claims:
    """The claim of this daemon and those of others. Without a usable folder there are no others.

    Args:
        folder: shared by all users of the host, made with mode 1777.
        uid, pid: of this daemon; given in tests only.
        patience_s: how long a claim beyond a user's fair share is believed. An honest daemon goes below its share as
            soon as it sees another user (`admission`), which takes as long as its jobs take to use their promises.
    """

    def __init__(
        self, folder: str = FOLDER, *, uid: int | None = None, pid: int | None = None, patience_s: float = 60.0
    ) -> None:
        self._folder_path = folder
        self._uid = os.geteuid() if uid is None else uid
        self._pid = os.getpid() if pid is None else pid
        self._name = f"{self._uid}.{self._pid}"
        self._patience_s = patience_s
        self._greedy_since_s: dict[int, float] = {}
        """Users whose claims are beyond their share -> since when (monotonic)."""
        self._folder = -1
        self._file = -1
        self._published = 0
        start = stat_of(self._pid)
        self._start_ticks = start[2] if start is not None else 0
        self._boot = boot_id()

    @contextmanager
    def section(self) -> Iterator[None]:
        """Read, decide and publish without another daemon doing the same in between.

        Waits 20 ms at most, so that no process can stop this one by holding the lock; then goes on without it.
        """
        self._open()
        locked = self._folder >= 0 and _lock(self._folder, SECTION_WAIT_S)
        try:
            yield
        finally:
            if locked:
                fcntl.flock(self._folder, fcntl.LOCK_UN)

    def publish(self, size_bytes: int) -> None:
        """Replace this daemon's claim, also by an equal one: it counts for `FRESH_S`. 0: nothing is being built."""
        self._open()
        if self._file >= 0:
            self._write(size_bytes)

    def others(self, total_bytes: int) -> Others:
        """The claims of all other living daemons; each user's count for at most `total_bytes`, and after a while for
        at most an equal share of it."""
        self._open()
        claims: dict[int, int] = {}
        for uid, size_bytes in self._read_all():
            claims[uid] = min(total_bytes, claims.get(uid, 0) + size_bytes)
        users = len(claims.keys() | {self._uid})
        now_s, fair_bytes = time.monotonic(), total_bytes // users
        for uid, size_bytes in claims.items():
            if size_bytes <= fair_bytes or uid == self._uid:
                self._greedy_since_s.pop(uid, None)
            elif now_s - self._greedy_since_s.setdefault(uid, now_s) >= self._patience_s:
                claims[uid] = fair_bytes
        return Others(sum(claims.values()), users)

    def close(self) -> None:
        """Take this daemon's claim back."""
        if self._file >= 0:
            try:
                os.unlink(self._name, dir_fd=self._folder)
            except OSError:  # somebody tidied up
                pass
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1

    # ---------------------------------------------------------------- our own file

    def _open(self) -> None:
        """Open the folder and this daemon's file, also when they were removed meanwhile."""
        if self._folder >= 0:
            if os.fstat(self._folder).st_nlink and (self._file < 0 or os.fstat(self._file).st_nlink):
                return
            os.close(self._folder)
            if self._file >= 0:
                os.close(self._file)
            self._folder = self._file = -1
        try:
            self._folder = _shared_folder(self._folder_path)
            self._file = self._create()
        except OSError:  # no /dev/shm, not writable, a stranger's file of this name: this daemon works alone
            return
        self._write(self._published)

    def _create(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._name, flags, 0o644, dir_fd=self._folder)
        try:
            os.fchmod(descriptor, 0o644)  # whatever the umask
            if not _lock(descriptor, SECTION_WAIT_S):  # a reader just looks whether it is locked
                raise BlockingIOError
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _write(self, size_bytes: int) -> None:
        line = f"buildd 1 pid={self._pid} start={self._start_ticks} boot={self._boot} bytes={size_bytes}"
        try:
            os.pwrite(self._file, line.ljust(LINE_BYTES - 1).encode() + b"\n", 0)
        except OSError:  # /dev/shm is full
            return
        self._published = size_bytes

    # ---------------------------------------------------------------- theirs

    def _read_all(self) -> Iterator[tuple[int, int]]:
        """(uid, bytes) of every living and fresh claim of other daemons."""
        if self._folder < 0:
            return
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_FILES)]
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None and name != self._name:
                size_bytes = self._read(name, int(match[1]))
                if size_bytes is not None:
                    yield int(match[1]), size_bytes

    def _read(self, name: str, uid: int) -> int | None:
        """A claim; None where the file is not regular, not that user's or malformed, or its owner is dead."""
        try:
            # NONBLOCK: opening a named pipe must not wait.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
                return None
            stale = time.time() - status.st_mtime > FRESH_S
            line = _LINE.fullmatch(os.read(descriptor, LINE_BYTES + 1))
            if _lock(descriptor, 0.0, fcntl.LOCK_SH):
                if uid == self._uid:  # its owner, a daemon of the same user, is dead
                    os.unlink(name, dir_fd=self._folder)
                return None
            if stale or line is None or self._is_reused(int(line[1]), int(line[2]), line[3].decode()):
                return None
            return int(line[4])
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _is_reused(self, pid: int, start_ticks: int, boot: str) -> bool:
        """Whether the lock is held for a dead owner, by a fork of it: its pid is another process now.

        A pid that is not visible here may live in another pid namespace.
        """
        now = stat_of(pid)
        return boot != self._boot or (now is not None and start_ticks != 0 and now[2] != start_ticks)


def _shared_folder(path: str) -> int:
    """Open the folder; make it, for everybody, where it is missing."""
    try:
        os.mkdir(path)
        os.chmod(path, 0o1777)  # whatever the umask
    except FileExistsError:
        pass
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int, wait_s: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file within some time."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.0005)
