"""Leases of GPUs: one client at a time measures on a GPU, in the order in which they asked.

Knows the clients that hold leases or wait for them. The lock behind a lease (`host.gpu_lock`) keeps away other users'
daemons and processes without a daemon; `host.gpu_watch` notices processes that ask nobody. Runs on the event loop; only
`status` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from buildd.daemon.followers import Peer
from buildd.host import gpu_lock, gpu_watch
from buildd.host.gpu_watch import GpuWatch
from buildd.host.nvml import GpuDivided, GpuLost
from protocol.messages import (
    Error,
    GpuProcess,
    GpuStatus,
    Lease,
    Leased,
    LeaseEnd,
    LeaseEnded,
    LeaseId,
    LeaseWaits,
    Message,
)

MAX_LEASES = 64
"""Leases that one client holds or waits for."""
_LOOK_S = 2.0
"""A lease that lasts is looked after so often: is the GPU there, does a process compute there without a lease?"""
_FRESH_S = 0.5
"""Turns follow each other in milliseconds: the driver need not be asked for each."""
_OUTSIDE_S = 0.1
"""How old a status's list of processes without this daemon may be."""


@dataclass(slots=True, eq=False)
class _Turn:
    """A lease that a client holds, or waits for."""

    peer: Peer
    asked: Lease
    asked_s: float
    granted_s: float = 0.0
    told_to_wait: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has given it back, or is gone."""

    @property
    def process(self) -> GpuProcess:
        since_s = time.monotonic() - (self.granted_s or self.asked_s)
        return GpuProcess(pid=self.peer.info.pid, what=self.asked.what or self.peer.info.name, since_s=since_s)


@dataclass(slots=True)
class _Line:
    """The turns on one GPU."""

    gpu: str
    waiting: deque[_Turn] = field(default_factory=deque)
    holder: _Turn | None = None
    serving: asyncio.Task[None] | None = None
    beside: tuple[GpuProcess, ...] = ()
    looked_s: float = -_FRESH_S
    here: set[Peer] = field(default_factory=set)
    """Clients that have had a turn here: their processes keep contexts on the GPU."""


class GpuLeases:
    """The leases of one daemon.

    Args:
        reply: sends a message to a client.
        watch: asks the driver.
        folder: of the machine's locks.
    """

    def __init__(
        self, reply: Callable[[Peer, Message], None], watch: GpuWatch | None = None, folder: str = gpu_lock.FOLDER
    ) -> None:
        self._reply, self._watch, self._folder = reply, watch or GpuWatch(), folder
        self._outside: tuple[float, tuple[gpu_lock.LockProcess, ...]] = (-_OUTSIDE_S, ())
        self._lines: dict[str, _Line] = {}
        self._turns: dict[tuple[Peer, LeaseId], tuple[_Line, _Turn]] = {}

    # ---------------------------------------------------------------- clients

    def ask(self, peer: Peer, asked: Lease) -> None:
        """Queue a lease. A second one with the same id, or one too many, is refused."""
        name = (peer, asked.lease_id)
        if not asked.lease_id or not asked.gpu or "\0" in asked.gpu or name in self._turns:
            text = "a lease needs a GPU, and an id that no other lease of this client has"
            self._refuse(peer, asked, code="bad-message", message=text)
            return
        if sum(other is peer for other, _ in self._turns) >= MAX_LEASES:
            self._refuse(peer, asked, code="too-many", message=f"a client has at most {MAX_LEASES} leases")
            return
        line = self._lines.setdefault(asked.gpu, _Line(asked.gpu))
        turn = _Turn(peer, asked, time.monotonic())
        self._turns[name] = line, turn
        line.waiting.append(turn)
        if line.serving is None:
            line.serving = asyncio.get_running_loop().create_task(self._serve(line))
        else:
            self._tell_to_wait(line, turn)

    def give_back(self, peer: Peer, lease_id: LeaseId) -> None:
        """End a lease, or take it out of the queue."""
        found = self._turns.get((peer, lease_id))
        if found is None:
            # It has expired meanwhile, and the client was told; or there never was one.
            self._reply(peer, Error(code="unknown-lease", message=f"no lease {lease_id!r}", lease_id=lease_id))
            return
        line, turn = found
        turn.over.set()
        if turn is not line.holder:
            self._forget(line, turn)
            self._reply(peer, LeaseEnded(lease_id=lease_id, reason=LeaseEnd.GIVEN_BACK))

    def gone(self, peer: Peer) -> None:
        """Take back everything that a client had."""
        for line, turn in [found for (other, _), found in self._turns.items() if other is peer]:
            turn.over.set()
            if turn is not line.holder:
                self._forget(line, turn)
        for line in self._lines.values():
            line.here.discard(peer)

    def _forget(self, line: _Line, turn: _Turn) -> None:
        self._turns.pop((turn.peer, turn.asked.lease_id), None)
        with suppress(ValueError):
            line.waiting.remove(turn)

    def _refuse(self, peer: Peer, asked: Lease, *, code: str, message: str, next_step: str = "") -> None:
        self._reply(peer, Error(code=code, message=message, next_step=next_step, lease_id=asked.lease_id))

    def _tell_to_wait(self, line: _Line, turn: _Turn) -> None:
        before = [] if line.holder is None else [line.holder.process]
        for other in line.waiting:
            if other is turn:
                break
            before.append(other.process)
        outside = [] if line.holder is not None else _holders_outside(self._folder, line.gpu)
        turn.told_to_wait = True
        self._reply(turn.peer, LeaseWaits(lease_id=turn.asked.lease_id, ahead=(*outside, *before)))

    # ---------------------------------------------------------------- one GPU

    async def _serve(self, line: _Line) -> None:
        """Give one turn after the other, until nobody waits."""
        lock = gpu_lock.GpuLock(line.gpu, self._folder)
        try:
            while line.waiting:
                locked = lock.held()
                taking = asyncio.ensure_future(locked.__aenter__())
                if not (await asyncio.wait([taking], timeout=_FRESH_S))[0]:
                    for turn in [turn for turn in line.waiting if not turn.told_to_wait]:
                        self._tell_to_wait(line, turn)
                try:
                    await taking
                    if line.waiting:
                        await self._give(line, line.waiting.popleft())
                finally:
                    taking.cancel()
                    if taking.done() and not taking.cancelled():
                        await locked.__aexit__(None, None, None)
        finally:
            line.serving = None
            if not line.here and self._lines.get(line.gpu) is line:
                del self._lines[line.gpu]

    async def _give(self, line: _Line, turn: _Turn) -> None:
        """One turn, from the question whether the GPU is there to the lease's end."""
        asked = turn.asked
        line.holder = turn
        try:
            try:
                beside = await self._look(line)
            except (GpuLost, GpuDivided) as error:
                step = "nvidia-smi -L lists the GPUs and their parts"
                self._refuse(turn.peer, asked, code="unknown-gpu", message=str(error), next_step=step)
                return
            if turn.over.is_set():
                self._reply(turn.peer, LeaseEnded(lease_id=asked.lease_id, reason=LeaseEnd.GIVEN_BACK))
                return
            line.here.add(turn.peer)
            turn.granted_s = time.monotonic()
            waited_s = turn.granted_s - turn.asked_s
            self._reply(turn.peer, Leased(lease_id=asked.lease_id, waited_s=waited_s, beside=beside))
            reason, beside = await self._until_over(line, turn, beside)
            self._reply(turn.peer, LeaseEnded(lease_id=asked.lease_id, reason=reason, beside=beside))
        finally:
            line.holder = None
            self._forget(line, turn)

    async def _until_over(
        self, line: _Line, turn: _Turn, beside: tuple[GpuProcess, ...]
    ) -> tuple[LeaseEnd, tuple[GpuProcess, ...]]:
        """Wait for a lease's end; returns its reason, and the processes that computed there without a lease."""
        ends_s = turn.granted_s + turn.asked.limit_s
        while True:
            left_s = ends_s - time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(turn.over.wait(), max(0.0, min(_LOOK_S, left_s)))
            try:
                beside = _joined(beside, await self._look(line))
            except (GpuLost, GpuDivided):
                return LeaseEnd.GPU_LOST, beside
            if turn.over.is_set():
                return LeaseEnd.GIVEN_BACK, beside
            if time.monotonic() >= ends_s:
                return LeaseEnd.EXPIRED, beside

    async def _look(self, line: _Line) -> tuple[GpuProcess, ...]:
        """The processes that compute on the GPU without a lease; from a moment ago if the driver was just asked."""
        if time.monotonic() - line.looked_s >= _FRESH_S:
            pids = await self._watch.pids(line.gpu) or ()
            ours = {peer.info.pid for peer in line.here} | {turn.peer.info.pid for turn in line.waiting}
            if line.holder is not None:
                ours.add(line.holder.peer.info.pid)
            found = gpu_watch.foreign(pids, ours - {0})
            line.beside = tuple(GpuProcess(pid=pid, what=gpu_watch.command_of(pid)) for pid in found)
            line.looked_s = time.monotonic()
        return line.beside

    # ---------------------------------------------------------------- outside

    def status(self) -> tuple[GpuStatus, ...]:
        """The GPUs that are leased or waited for, here or by processes without this daemon. From any thread."""
        found = {}
        for line in list(self._lines.values()):
            holder = line.holder
            if holder is not None or line.waiting:
                found[line.gpu] = GpuStatus(
                    gpu=line.gpu,
                    holder=holder.process if holder is not None else None,
                    waiting=tuple(turn.process for turn in list(line.waiting)),
                    beside=line.beside,
                )
        for each in self._seen_outside():
            process = GpuProcess(pid=each.pid, what=gpu_watch.command_of(each.pid))
            known = found.get(each.gpu, GpuStatus(gpu=each.gpu))
            if each.holds:
                found[each.gpu] = msgspec.structs.replace(known, holder=known.holder or process)
            else:
                found[each.gpu] = msgspec.structs.replace(known, waiting=(*known.waiting, process))
        return tuple(each for each in found.values() if each.holder is not None or each.waiting)

    def _seen_outside(self) -> tuple[gpu_lock.LockProcess, ...]:
        """The processes without this daemon; asked for at most ten times a second, since the kernel's list is slow."""
        now_s = time.monotonic()
        looked_s, found = self._outside
        if now_s - looked_s > _OUTSIDE_S:
            found = tuple(each for each in gpu_lock.processes(self._folder) if each.pid != os.getpid())
            self._outside = now_s, found
        return found

    async def close(self) -> None:
        """End all leases."""
        tasks = [line.serving for line in self._lines.values() if line.serving is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._watch.close)


def _holders_outside(folder: str, gpu: str) -> list[GpuProcess]:
    """Processes other than this daemon that hold a GPU's lock."""
    return [
        GpuProcess(pid=each.pid, what=gpu_watch.command_of(each.pid))
        for each in gpu_lock.processes(folder, gpu)
        if each.holds and each.pid != os.getpid()
    ]


def _joined(first: Iterable[GpuProcess], second: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
    return tuple({each.pid: each for each in (*first, *second)}.values())
