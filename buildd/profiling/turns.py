"""Turns on GPUs for the tasks of this process: leases of the daemon, or the machine's locks where no daemon grants any.

Knows which other processes compute on a GPU, and names them once. Measures nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from buildd.host import gpu_lock, gpu_watch
from buildd.host.gpu_watch import GpuWatch
from buildd.host.nvml import GpuDivided, GpuLost
from buildd.profiling.devices import Gpu
from protocol.aio import AsyncClient
from protocol.errors import ConnectionLost, RemoteError, TimedOut
from protocol.messages import GpuProcess, LeaseId, LeaseWaits
from protocol.session import HeldLease, Route

FOLDER = gpu_lock.FOLDER
_PATIENCE_S = 3.0
"""A longer wait for a GPU is explained."""


class NoTurn(Exception):
    """The GPU cannot be had: it is lost, or divided."""


class Turns:
    """The turns of one process, on any number of GPUs. Belongs to one event loop.

    Args:
        what: what they are for, for people who wait.
        say: gets lines for people.
        route: to the daemon; None if there is none.
        folder: of the machine's locks.
        watch: asks the driver if there is no daemon that does.
    """

    def __init__(
        self,
        what: str,
        say: Callable[[str], None],
        route: Route | None,
        *,
        folder: str = FOLDER,
        watch: GpuWatch | None = None,
    ) -> None:
        self._what, self._say, self._route, self._folder = what, say, route, folder
        self._watch = watch or GpuWatch()
        self._client: AsyncClient | None = None
        self._locks: dict[str, gpu_lock.GpuLock] = {}
        self._orders: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._said: set[tuple[str, int]] = set()

    @asynccontextmanager
    async def on(self, gpu: Gpu, limit_s: float) -> AsyncIterator[HeldLease]:
        """Hold a GPU alone. Afterwards `lost` of the lease says whether it was held to the end.

        Args:
            limit_s: the longest that it is held.

        Raises: NoTurn.
        """
        if self._route is not None:
            begun = False
            try:
                self._client = self._client or AsyncClient(self._route, name="buildd-profile")
                with _Patience() as patience:
                    async with self._client.lease(
                        gpu.uuid,
                        what=self._what,
                        limit_s=limit_s,
                        waits=lambda told: self._explain(gpu, told, patience),
                    ) as held:
                        patience.end()
                        begun = True
                        yield held
                self._tell(gpu, held.beside)
                return
            except RemoteError as error:
                if not begun and error.code == "unknown-gpu":
                    raise NoTurn(error.message) from error
                if begun:
                    raise
                self._route = None  # a daemon of another version, which knows no leases
            except (ConnectionLost, TimedOut):
                if begun:
                    raise
                self._route = None  # it has ended: the lock alone keeps others away
        async with self._locked(gpu) as held:
            yield held

    async def close(self) -> None:
        """Leave the daemon."""
        if self._client is not None:
            await self._client.close()
        await asyncio.to_thread(self._watch.close)

    @asynccontextmanager
    async def _locked(self, gpu: Gpu) -> AsyncIterator[HeldLease]:
        lock = self._locks.setdefault(gpu.uuid, gpu_lock.GpuLock(gpu.uuid, self._folder))
        async with self._orders[gpu.uuid], self._explained(gpu, lock):
            try:
                pids = await self._watch.pids(gpu.uuid) or ()
            except (GpuLost, GpuDivided) as error:
                raise NoTurn(str(error)) from error
            found = gpu_watch.foreign(pids, (os.getpid(),))
            self._tell(gpu, (GpuProcess(pid=pid, what=gpu_watch.command_of(pid)) for pid in found))
            yield HeldLease(LeaseId(""))

    def _tell(self, gpu: Gpu, beside: Iterable[GpuProcess]) -> None:
        """Name the processes that compute on a GPU without a lease."""
        for each in beside:
            if (gpu.uuid, each.pid) not in self._said:
                self._said.add((gpu.uuid, each.pid))
                name = f" ({each.what})" if each.what else ""
                self._say(f"process {each.pid}{name} computes on GPU {gpu.index} as well: times may be noisy")

    @asynccontextmanager
    async def _explained(self, gpu: Gpu, lock: gpu_lock.GpuLock) -> AsyncIterator[None]:
        """Hold the lock; a long wait for it is explained."""
        with _Patience() as patience:

            def explain() -> None:
                pid = next((each.pid for each in gpu_lock.processes(self._folder, gpu.uuid) if each.holds), 0)
                first = GpuProcess(pid=pid, what=gpu_watch.command_of(pid) if pid else "")
                self._say_first(gpu, first, "has it")

            patience.begin(explain)
            async with lock.held():
                patience.end()
                yield

    def _explain(self, gpu: Gpu, told: LeaseWaits, patience: _Patience) -> None:
        """Say whom a long wait is for, now or after a while: most holders are done in milliseconds."""
        first = next(iter(told.ahead), None)
        if first is not None and first.since_s >= _PATIENCE_S:
            self._say_first(gpu, first, f"has it for {first.since_s:.0f} s")
        else:
            asked = first or GpuProcess(pid=0)
            patience.begin(lambda: self._say_first(gpu, asked, f"had it {_PATIENCE_S:.0f} s ago"))

    def _say_first(self, gpu: Gpu, first: GpuProcess, has: str) -> None:
        if (gpu.uuid, -first.pid) not in self._said:
            self._said.add((gpu.uuid, -first.pid))
            name = f" ({first.what})" if first.what else ""
            who = f"process {first.pid}{name}" if first.pid else "a process that is not seen from here"
            self._say(f"waiting for GPU {gpu.index}: {who} {has}")


class _Patience:
    """Says something if a wait lasts. It ends with the wait."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, say: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, say)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> _Patience:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
