"""The daemon's idle time: gives memory back after a while of rest, and restarts or ends the daemon after a long one.

Knows how busy the scheduler and the server are; not how the process restarts or ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import gc
import logging
import os
import time
from collections.abc import Callable
from functools import cache

from buildd.daemon.server import Server
from buildd.host import proc
from buildd.scheduling.scheduler import Scheduler

REST_AFTER_S = 5.0
"""After so long without work the daemon gives memory back."""
RESTART_AFTER_S = 300.0
"""After so long without work a daemon that holds much memory restarts. Users at work often pause for a minute."""
IDLE_TIMEOUT_S = 3600.0
MEMORY_CAP_BYTES = 1 << 30
"""Above this the daemon accepts no new requests, finishes the open ones and ends; the next client starts a new daemon
beside it."""
IDLE_CAP_BYTES = 56 << 20
"""Above this a resting daemon restarts: only that gives back memory that a large build left fragmented. It waits until
its warm workers have ended: each has torch or Triton imported, which takes seconds."""
_LOOK_S = 30.0
"""Between two looks at who is left in this mount namespace, if the user has others: a build may have one for each of
its commands, and nobody comes back into it."""
_log = logging.getLogger(__name__)


class IdleWatch:
    """Watches how long the daemon has been idle.

    Args:
        redis_clients: number of clients of the Redis server.
        timeout_s: the daemon ends after so long.
        end: ends the daemon; its argument: whether to restart it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        server: Server,
        redis_clients: Callable[[], int],
        timeout_s: float,
        end: Callable[[bool], None],
    ) -> None:
        self._scheduler, self._server = scheduler, server
        self._redis_clients, self._timeout_s, self._end = redis_clients, timeout_s, end
        self._watch: asyncio.Task[None] | None = None
        self._touched_s = time.monotonic()
        self._rested = False
        self._woken = asyncio.Event()

    def touch(self) -> None:
        """Note that the daemon was used."""
        self._touched_s = time.monotonic()

    def begin(self) -> None:
        """Begin to watch."""
        self._begin(wake=True)

    def wake(self) -> None:
        """Note a new request. Wakes the watch only after a rest: before, it looks every few seconds anyway."""
        rested, self._rested = self._rested, False
        self.touch()
        self._begin(wake=rested)

    def _begin(self, *, wake: bool) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._until_idle())
        if wake:
            self._woken.set()

    async def _until_idle(self) -> None:
        """Give memory back after a while of rest, end the daemon after a long one. Sleeps in between: no polling."""
        while True:
            if not self._scheduler.idle or self._server.requests.open_count > len(self._scheduler.intake.watches):
                self._touched_s = time.monotonic()
                if own_memory_bytes() > MEMORY_CAP_BYTES and not self._server.draining:
                    _log.warning(
                        "%d MiB held: finishing open requests, a new daemon takes over", own_memory_bytes() >> 20
                    )
                    self._server.drain()
            quiet_s = time.monotonic() - self._touched_s
            if quiet_s >= REST_AFTER_S and not self._rested:
                self._rested = True
                await asyncio.to_thread(self._scheduler.rest)
                release_memory()
            noted = await asyncio.to_thread(self._scheduler.stores.settle) if self._rested else 0
            if noted:  # a build is running, and the shim has served it without the daemon so far
                self._touched_s = time.monotonic()
                quiet_s = 0.0
            alone = not (self._server.status().clients or self._redis_clients())
            warm_s = self._scheduler.runner.warm_s()
            large = self._rested and own_memory_bytes() > IDLE_CAP_BYTES and not self._server.draining
            if alone and large and not warm_s and quiet_s >= RESTART_AFTER_S:
                # A large build left this memory fragmented: only a new process gives it back.
                _log.info("restarting: %d MiB held while idle", own_memory_bytes() >> 20)
                self._end(True)
                return
            if alone and quiet_s >= self._timeout_s:
                _log.info("idle for %.0f s: ending", quiet_s)
                self._end(False)
                return
            if alone and self._rested and self._scheduler.stores.all_failed:
                _log.info("no store could be used: ending")
                self._end(False)
                return
            inside, elsewhere = proc.neighbours() if alone and self._rested else (True, False)
            if elsewhere and not inside:
                _log.info("no process is left in this mount namespace: ending")
                self._end(False)
                return
            left_s = self._timeout_s - quiet_s
            if large and quiet_s < RESTART_AFTER_S:
                left_s = min(left_s, RESTART_AFTER_S - quiet_s)
            # Before the rest, and while a client is connected, look again soon.
            if not alone:
                await self._sleep(REST_AFTER_S)
            elif not self._rested:
                await self._sleep(min(left_s, REST_AFTER_S))
            else:
                await self._sleep(min(left_s, warm_s or left_s, _LOOK_S if elsewhere else left_s))

    async def _sleep(self, seconds: float) -> None:
        """Sleep until a request arrives, at most so long."""
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.05, seconds))
        except TimeoutError:
            pass


def own_memory_bytes() -> int:
    """Resident memory of this process; 0 where /proc cannot be read."""
    try:
        return int(os.pread(_memory_file(), 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _memory_file() -> int:
    """Stays open: each status reads it, and opening takes four times as long as reading."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def release_memory() -> None:
    """Return freed memory to the system; glibc keeps it otherwise."""
    gc.collect()
    library = ctypes.util.find_library("c")
    if library:
        trim = getattr(ctypes.CDLL(library), "malloc_trim", None)
        if trim is not None:
            trim(0)
