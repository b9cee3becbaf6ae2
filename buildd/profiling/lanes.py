"""The GPUs of one call: a lane for each, all lanes taking jobs from one queue, and how busy the GPUs were.

Knows benches, turns and a clock, and GPUs that may be lost with their nodes; nothing of kernels or problems.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from buildd.profiling.bench import Bench, Measurement
from buildd.profiling.devices import Gpu
from buildd.profiling.measuring_process import GpuFailed, PlaceLost
from buildd.profiling.turns import NoTurn, Turns
from protocol.session import HeldLease

if TYPE_CHECKING:
    from buildd.profiling.far_gpus import FarGpus

_TRIES = 3
_SLACK_S = 30.0
"""A measuring process is killed before the daemon takes its lease back."""
_IDLE_S = 10.0
"""A GPU of a cluster that has measured nothing for this long is given back: others of the cluster wait for it."""
_MOST_LOSSES = 2
"""How often a place on a node is lost in a row before nothing is measured there any more."""
_PATIENCE_S = 1.0
"""How long a lane waits for the context of the lane before it: another process may occupy that one's GPU."""


class GpuUse:
    """How long the GPUs of one call measured, and how long they could have.

    Args:
        count: number of GPUs.
        clock_s: as time.monotonic.
    """

    def __init__(self, count: int, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock_s = count, clock_s
        self._ready = self._in_use = 0
        """Candidates that are ready and not measured yet, and GPUs that measure one."""
        self._unused_s = self._noted_s = self._first_s = self._last_s = 0.0
        self.busy_s = 0.0

    def note(self, *, ready: int = 0, in_use: int = 0) -> None:
        """Change the number of ready candidates and of GPUs in use."""
        now_s = self._clock_s()
        self._first_s = self._first_s or now_s
        self._unused_s += (now_s - self._noted_s) * max(0, min(self._ready, self._count) - self._in_use)
        self._noted_s = now_s
        self._ready += ready
        self._in_use += in_use

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One GPU measures one candidate."""
        begun_s = self._clock_s()
        self.note(in_use=1)
        try:
            yield
        finally:
            self.note(in_use=-1)
            self._last_s = self._clock_s()
            self.busy_s += self._last_s - begun_s

    @property
    def idle(self) -> float:
        """Share of the GPUs' time, from the first ready candidate to the last measurement, in which none measured."""
        return max(0.0, 1 - self.busy_s / self._span_s) if self._span_s else 0.0

    @property
    def unused(self) -> float:
        """Share of the same time in which a candidate was ready and a GPU did not measure one."""
        return min(1.0, self._unused_s / self._span_s) if self._span_s else 0.0

    @property
    def _span_s(self) -> float:
        return max(0.0, self._last_s - self._first_s) * self._count


class GivesTurns(Protocol):
    """Gives turns on a GPU: `turns.Turns` here, `far_process.FarPlace` on a node."""

    def on(self, gpu: Gpu, limit_s: float) -> AbstractAsyncContextManager[HeldLease]: ...


class Lane:
    """One GPU: jobs measure on it one after another.

    Args:
        turns: the turns on that GPU, and on others.
        timeout_s: as of `Bench.measure`.
        shown: the GPU for people; None: its index.
    """

    def __init__(
        self,
        bench: Bench,
        turns: GivesTurns,
        gpu: Gpu,
        use: GpuUse,
        timeout_s: float,
        *,
        shown: Callable[[], str] | None = None,
    ) -> None:
        self._bench, self._turns, self._gpu, self._use, self._timeout_s = bench, turns, gpu, use, timeout_s
        self.shown = shown or (lambda: gpu.where)
        self.losses = 0
        """How often its place was lost in a row."""
        self.gone = ""
        """Why nothing can be measured here any more."""
        self._lost = ""
        """Why the last turn does not count."""
        self._taken_s = 0.0

    async def measure(self, question: Sequence[str], best_us: Callable[[], float]) -> Measurement:
        """Measure one candidate when the GPU is free. What is measured while the lease is lost does not count: it is
        measured again. Arguments and errors: `Bench.measure`; PlaceLost on a node of a cluster."""
        if self.gone:
            raise GpuFailed(self.gone)
        for _ in range(_TRIES):
            self._lost, self._taken_s = "", 0.0
            try:
                found = await self._bench.measure(question, self._turn, best_us, timeout_s=self._timeout_s)
            except NoTurn as error:
                raise GpuFailed(str(error)) from error
            if not self._lost:
                return msgspec.structs.replace(found, gpu=self.shown(), wall_s=self._taken_s)
        raise GpuFailed(f"{self._lost}, {_TRIES} times while a candidate was measured")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._turns.on(self._gpu, self._timeout_s + _SLACK_S) as held:
            began_s = time.monotonic()
            with self._use.turn():
                yield
            self._taken_s += time.monotonic() - began_s
        self._lost = held.lost


Job = Callable[[Lane], Awaitable[None]]


class Lanes:
    """The lanes of one call. The queue outlives a round; each round has its own lanes.

    A GPU has one lane: a second context there takes longer to make than it saves, and the driver makes the measuring
    process wait meanwhile. The driver makes one context after another, whatever GPU they are on; so the lane that has
    the first one measures while the next lane gets its own.

    Args:
        environ: of the measuring processes.
        timeout_s: as of `Bench.measure`.
        turns: the turns on this machine's GPUs.
        far: makes places on the GPUs of a cluster's nodes.
        say: is told when a node is lost.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        environ: Mapping[str, str],
        *,
        timeout_s: float,
        turns: Turns,
        far: FarGpus | None = None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.use = GpuUse(len(gpus))
        self._environ, self._timeout_s = environ, timeout_s
        self._gpus, self._turns, self._far, self._say = tuple(gpus), turns, far, say
        self._queue: asyncio.Queue[Job | None] = asyncio.Queue()
        self._lanes: list[asyncio.Task[None]] = []
        self._living = 0
        """Lanes of the round that still take jobs."""
        self._closing: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        """All jobs are done: a lane that has no context yet needs none."""
        self._said: set[str] = set()

    def put(self, job: Job) -> None:
        """Queue a job for the next lane that is free."""
        self.use.note(ready=1)
        self._queue.put_nowait(job)

    async def drained(self) -> None:
        """Wait until all queued jobs are done."""
        await self._queue.join()

    def begin(self, command: Callable[[], Awaitable[tuple[str, ...]]]) -> list[asyncio.Task[None]]:
        """Start a round.

        Args:
            command: gives the command that measures, as soon as it is built.

        Returns: the round's tasks. They end after `end`, or with an exception.
        """
        self._over.clear()
        self._lanes = []
        self._living = len(self._gpus)
        before, mine = asyncio.Event(), asyncio.Event()
        before.set()
        for gpu in self._gpus:
            if gpu.node:
                self._lanes.append(asyncio.create_task(self._run_far(gpu, command)))
                continue
            self._lanes.append(asyncio.create_task(self._run(gpu, command, before, mine)))
            before, mine = mine, asyncio.Event()
        return list(self._lanes)

    def end(self) -> None:
        """End the round's lanes; they finish the queued jobs first."""
        self._over.set()
        for _ in range(self._living):
            self._queue.put_nowait(None)

    async def closed(self) -> None:
        """Wait until the measuring processes have ended."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._turns.close()

    async def _run(
        self,
        gpu: Gpu,
        command: Callable[[], Awaitable[tuple[str, ...]]],
        before: asyncio.Event,
        has_context: asyncio.Event,
    ) -> None:
        """Work as the lane of one GPU.

        Args:
            before: set when the lane before has a context.
            has_context: set when this one has, or should have.
        """
        bench = Bench(await command(), self._environ, gpu.shown_as)
        lane = Lane(bench, self._turns, gpu, self.use, self._timeout_s)
        try:
            await before.wait()
            asyncio.get_running_loop().call_later(_PATIENCE_S, has_context.set)
            # Started while compilers run. If the GPU fails here, the first candidate reports that.
            with suppress(GpuFailed, NoTurn):
                if not self._over.is_set():
                    await bench.start(
                        lambda: self._turns.on(gpu, self._timeout_s + _SLACK_S), timeout_s=self._timeout_s
                    )
            has_context.set()
            while (job := await self._queue.get()) is not None:
                await job(lane)
                self.use.note(ready=-1)
                self._queue.task_done()
            self._queue.task_done()
        finally:
            # A driver takes its time with a process that ends: the results need not wait for that.
            self._closing.append(asyncio.create_task(bench.close()))

    async def _run_far(self, gpu: Gpu, command: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        """Work as the lane of a GPU on a node. What it was measuring when its node was lost, another lane measures; the
        last lane of all says of each job that it cannot be measured."""
        assert self._far is not None
        place = self._far.place(gpu, await command(), self._environ)
        bench = Bench((), {}, "", begin=place.start)
        lane = Lane(bench, place, gpu, self.use, self._timeout_s, shown=lambda: place.shown)
        try:
            # Before it takes a job: others of the cluster may have the GPU for a long time.
            try:
                await self._unless_over(
                    bench.start(lambda: place.on(gpu, self._timeout_s + _SLACK_S), timeout_s=self._timeout_s)
                )
            except PlaceLost as error:
                if self._loses(lane, error):
                    return
            while (job := await self._next(bench)) is not None:
                try:
                    await job(lane)
                except PlaceLost as error:
                    await bench.close()
                    self._queue.put_nowait(job)
                    self._queue.task_done()
                    if self._loses(lane, error):
                        return
                    continue
                lane.losses = 0
                self.use.note(ready=-1)
                self._queue.task_done()
            self._queue.task_done()
        finally:
            self._closing.append(asyncio.create_task(bench.close()))

    def _loses(self, lane: Lane, error: PlaceLost) -> bool:
        """Whether a lane ends, because its place was lost."""
        lane.losses += 1
        if not error.final and lane.losses < _MOST_LOSSES:
            return False
        words = f"{lane.shown()}: nothing is measured there any more: {error}"
        if words not in self._said:
            self._said.add(words)
            self._say(words)
        if self._living > 1:
            self._living -= 1
            return True
        lane.gone = f"{lane.shown()}: {error}"
        return False

    async def _unless_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the work, or for the round's end, which cancels it. A GPU that fails shows that later."""
        working, over = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((working, over), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                with suppress(GpuFailed):
                    working.result()
        finally:
            over.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _next(self, bench: Bench) -> Job | None:
        """The next job; the GPU of a bench is given back while there is none."""
        coming = asyncio.ensure_future(self._queue.get())
        try:
            if not (await asyncio.wait([coming], timeout=_IDLE_S))[0]:
                await bench.close()
            return await coming
        finally:
            coming.cancel()
