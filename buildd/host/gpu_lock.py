"""The lock that one process at a time holds on a GPU, among all users and daemons of a machine.

A lock is flock(2) on a file named after the GPU's UUID, in a folder that all users share. The kernel keeps the queue of
the waiting processes, shows it in /proc/locks, and releases the lock however its holder ends. Knows no message and no
driver. `buildd.hooks.gpu_turns` locks the same files, in users' processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

FOLDER = "/dev/shm/buildd-gpus"
_LOCKS = "/proc/locks"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK: in a folder that all users share, opening a FIFO would never end."""
_GAP_S = 0.025
"""A pause in which a waiting process gets the lock."""
_MOST_HELD_S = 2.0
"""After so long a pause is made even if no process is seen to wait: /proc/locks shows no other containers."""


class LockProcess(NamedTuple):
    """A process that holds a GPU's lock, or waits for it."""

    gpu: str
    pid: int
    holds: bool


class GpuLock:
    """The lock of one GPU, for all turns of this process.

    Args:
        gpu: its UUID.
    """

    def __init__(self, gpu: str, folder: str = FOLDER) -> None:
        self._gpu, self._folder = gpu, folder
        self._began_s = self._ended_s = -_MOST_HELD_S
        """When this process last got the lock after a pause, and when it last released it."""

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock. Waits for its turn, unless the folder cannot be shared, and leaves other processes theirs."""
        paused_s = time.monotonic() - self._ended_s
        if paused_s < _GAP_S and (self.is_wanted() or time.monotonic() - self._began_s > _MOST_HELD_S):
            await asyncio.sleep(_GAP_S - paused_s)
            paused_s = _GAP_S
        async with lock(self._gpu, self._folder):
            if paused_s >= _GAP_S:
                self._began_s = time.monotonic()
            try:
                yield
            finally:
                self._ended_s = time.monotonic()

    def is_wanted(self) -> bool:
        """Whether another process is seen to wait for it."""
        return any(not each.holds and each.pid != os.getpid() for each in processes(self._folder, self._gpu))


@contextlib.asynccontextmanager
async def lock(gpu: str, folder: str = FOLDER) -> AsyncIterator[None]:
    """Hold a GPU's lock. Waits for its turn, except if the folder cannot be shared."""
    descriptor = open_lock(gpu, folder)
    try:
        if descriptor >= 0:
            await _locked(descriptor)
        yield
    finally:
        if descriptor >= 0:
            # Not by closing alone: a child that this process has forked meanwhile shares the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


async def _locked(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # another process has it, or a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # The thread has a descriptor of its own: if nobody waits for it any more, it closes that, which releases the lock.
    wait = _Wait(os.dup(descriptor))

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    def work() -> None:
        wait.lock()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    # Not in a pool: the interpreter waits for pools at its end, and the holder may take its time.
    threading.Thread(target=work, daemon=True, name="gpu lock").start()
    try:
        await done
    except asyncio.CancelledError:
        wait.abandon(descriptor)
        raise


class _Wait:
    """A thread's wait for a lock; `abandon` may come before or after it has it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._abandoned = False
        self._guard = threading.Lock()

    def lock(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._guard:
            if self._abandoned:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)

    def abandon(self, descriptor: int) -> None:
        with self._guard:
            self._abandoned = True
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def processes(folder: str = FOLDER, gpu: str = "") -> tuple[LockProcess, ...]:
    """The processes that hold locks of GPUs, or wait for them, in the kernel's order; those of other containers are not
    shown.

    Args:
        gpu: of this one only.
    """
    names: dict[tuple[int, int, int], str] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if (not gpu or entry.name == _file_name(gpu)) and _may_be_held(entry.path):
                    status = entry.stat(follow_symlinks=False)
                    names[os.major(status.st_dev), os.minor(status.st_dev), status.st_ino] = entry.name
        if not names:  # the usual case: opening the kernel's list takes 8 ms, ten times as long as the rest of a status
            return ()
        with open(_LOCKS, encoding="ascii") as file:
            lines = file.readlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        # "1: FLOCK  ADVISORY  WRITE 4711 00:19:123 0 EOF", and of one that waits "1: -> FLOCK ..."
        words = line.split()
        waits = len(words) > 1 and words[1] == "->"
        fields = words[2 if waits else 1 :]
        if len(fields) >= 5 and fields[0] == "FLOCK" and fields[3].isdecimal():
            major, _, rest = fields[4].partition(":")
            minor, _, inode = rest.partition(":")
            name = names.get((int(major, 16), int(minor, 16), int(inode)))
            if name is not None:
                found.append(LockProcess(name, int(fields[3]), not waits))
    return tuple(found)


def _may_be_held(path: str) -> bool:
    """Whether a process may hold this lock. It is tried, shared, for microseconds."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return True  # the kernel's list knows
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _file_name(gpu: str) -> str:
    return "".join(letter for letter in gpu if letter.isalnum() or letter == "-")


def open_lock(gpu: str, folder: str = FOLDER) -> int:
    """A descriptor of a GPU's lock, to be locked with flock; negative where the folder cannot be shared."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o1777)
        path = os.path.join(folder, _file_name(gpu))
        try:
            return os.open(path, _OPEN)
        except FileNotFoundError:
            # Reading is enough to lock a file: no user needs the right to write.
            return os.open(path, _OPEN | os.O_CREAT, 0o644)
    except OSError:
        return -1
