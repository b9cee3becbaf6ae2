"""Kernels of watched targets, run on a GPU after each good build: checked, timed, compared with the last time.

Knows which library is measured when; `codegen.tuning.survey` knows a target's problem, and `bench` measures. Has its
own thread and event loop: builds never wait for a GPU.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from blake3 import blake3

from buildd.client.candidate_builds import Builder
from buildd.profiling import own_calls
from buildd.profiling.bench import TIMEOUT_S, Bench, Measurement
from buildd.profiling.gpus import Gpu, find_gpus, visible
from buildd.profiling.harness import harness, question
from buildd.profiling.lanes import GpuUse, Lane
from buildd.profiling.measuring_process import GpuFailed
from buildd.profiling.turns import FOLDER, Turns
from codegen.tuning.own_problem import OwnCall
from codegen.tuning.pick import for_capability
from codegen.tuning.survey import Case, Survey
from codegen.variables.settings import settings_of
from protocol import messages as m
from protocol.problem import in_one_line
from protocol.session import Route

_END_S = 10.0
"""Limit for a process on a GPU to end."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The last measurement of a target, or of one configuration of it."""

    library: bytes
    case: Case | OwnCall


class Trials:
    """The trials of one watch. `begin` and `drop` return at once.

    Args:
        request: builds the targets.
        look: finds their problems.
        builder: makes a builder for the measuring program.
        say: gets each reason why something cannot be measured, once, on another thread.
        find: finds the machine's GPUs.
        command: the measuring program, without its question; None if it has to be built.
        leases: folder of the machine's locks on GPUs.
        route: the way to a daemon that runs; None if none does.
    """

    def __init__(
        self,
        request: m.Request,
        look: Callable[[], Awaitable[Survey]],
        builder: Callable[[], Builder],
        say: Callable[[str], None],
        *,
        find: Callable[[Mapping[str, str]], tuple[tuple[Gpu, ...], str]] = find_gpus,
        command: tuple[str, ...] | None = None,
        leases: str = FOLDER,
        route: Callable[[], Route | None] = lambda: None,
    ) -> None:
        self._request, self._look, self._builder = request, look, builder
        self._find, self._command, self._leases, self._route = find, command, leases, route
        self._say = say
        self._said: set[str] = set()
        self._gpus: tuple[Gpu, ...] | None = None
        """None before the first query."""
        self._last: dict[tuple[str, str], _Last] = {}
        """By target, and for calls by their problems in words."""
        self._times_us: dict[tuple[str, str], float] = {}
        """Target and problem -> its last good time."""
        self._trial: concurrent.futures.Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="trials")
        self._thread.start()

    def begin(self, libraries: Mapping[str, str], tell: Callable[[m.Measured], None], *, again: bool = False) -> None:
        """Measure the libraries that have changed since the last measurement.

        Args:
            libraries: each target's shared library.
            tell: gets each result, on another thread.
            again: measure unchanged libraries, too.
        """
        self.drop()
        self._trial = asyncio.run_coroutine_threadsafe(self._work(dict(libraries), tell, again), self._loop)

    def drop(self) -> None:
        """Stop measuring: the library is being replaced."""
        if self._trial is not None:
            self._trial.cancel()

    def close(self) -> None:
        """Stop measuring, and end the processes and the thread."""
        self.drop()
        try:
            asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result(_END_S)
        except TimeoutError:
            return  # a driver that does not answer: the thread ends with this process
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---------------------------------------------------------------- on the thread

    async def _ended(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _work(self, libraries: dict[str, str], tell: Callable[[m.Measured], None], again: bool) -> None:
        try:
            await self._measure(libraries, tell, again)
        except Exception as error:  # the edge: the watch goes on without measurements
            message, step = getattr(error, "message", "") or in_one_line(error), getattr(error, "next_step", "")
            self._once(f"nothing is measured: {message}{f' ({step})' if step else ''}")

    async def _measure(self, libraries: dict[str, str], tell: Callable[[m.Measured], None], again: bool) -> None:
        if self._gpus is None:
            self._gpus, why = self._find(os.environ)
            if why:
                self._once(f"{why}: nothing is measured")
        if not self._gpus:
            return
        survey = await self._look()
        shown = visible(self._gpus, survey.devices)
        if not shown or survey.continuous_integration:
            self._once(f"{'CI_FLAG=CIRCLECI' if shown else 'CUDA_VISIBLE_DEVICES shows no GPU'}: nothing is measured")
            return
        gpu = shown[0]
        await self._measure_own(survey, gpu, libraries, tell, again)
        cases = for_capability(survey.cases, gpu.capability)
        command: tuple[str, ...] | None = self._command
        for target in dict.fromkeys(case.target for case in survey.cases):
            case, library = cases.get(target), libraries.get(target)
            if case is None:
                self._once(f"{target}: none of its architectures runs on {gpu.name} ({gpu.capability})")
                continue
            if library is None:
                self._once(f"{target}: no shared library was built, so there is nothing to measure")
                continue
            with open(library, "rb") as file:
                digest = blake3(file.read()).digest()
            if self._last.get((target, "")) == _Last(digest, case) and not again:
                continue
            command = command or await self._harness(survey)
            told = await self._run(command, gpu, case, library)
            self._last[target, ""] = _Last(digest, case)
            tell(told)

    async def _measure_own(
        self,
        survey: Survey,
        gpu: Gpu,
        libraries: dict[str, str],
        tell: Callable[[m.Measured], None],
        again: bool,
    ) -> None:
        """Measure the targets that name their problem themselves: one process for all calls of a target."""
        for target, calls in own_calls.on_gpu(survey.own, gpu.capability).items():
            if not calls:
                self._once(f"{target}: none of its architectures runs on {gpu.name} ({gpu.capability})")
            changed: list[tuple[OwnCall, bytes]] = []
            for known in calls:
                call = own_calls.with_paths(known, self._request.project, survey.build, libraries)
                if call is None:
                    self._once(f"{target}: no shared library was built, so there is nothing to measure")
                    continue
                try:
                    digest = own_calls.content(call)
                except OSError as error:
                    self._once(f"{target}: {error.filename}: {error.strerror}")
                    continue
                if again or self._last.get((target, call.label)) != _Last(digest, call):
                    changed.append((call, digest))
            if not changed:
                continue
            async with self._lane(self._command or own_calls.command(self._request), gpu, target) as lane:
                for call, digest in changed:
                    try:
                        found = await lane.measure(own_calls.question(call), lambda: 0.0)
                    except GpuFailed as error:
                        raise RuntimeError(f"{target}: {gpu.name}: {error}") from error
                    self._last[target, call.label] = _Last(digest, call)
                    tell(self._told(target, call.label, gpu, call.operations, found))

    async def _harness(self, survey: Survey) -> tuple[str, ...]:
        # Closed at once: a daemon that should end waits for connected clients.
        builder = self._builder()
        try:
            return await harness(builder, self._request, survey)
        finally:
            await builder.close()

    async def _run(self, command: tuple[str, ...], gpu: Gpu, case: Case, library: str) -> m.Measured:
        try:
            async with self._lane(command, gpu, case.target) as lane:
                found = await lane.measure(question(case, library, case.target), lambda: 0.0)
        except GpuFailed as error:
            raise RuntimeError(f"{gpu.name} does not answer: {error}") from error
        return self._told(case.target, case.dimensions, gpu, case.operations, found)

    @asynccontextmanager
    async def _lane(self, command: tuple[str, ...], gpu: Gpu, target: str) -> AsyncIterator[Lane]:
        """A measuring process of one target, with its turns on a GPU."""
        environ = {**os.environ, **settings_of(self._request).merged()}
        bench = Bench(command, environ, gpu.shown_as)
        turns = Turns(f"watch {target}", self._once, self._route(), folder=self._leases)
        try:
            yield Lane(bench, turns, gpu, GpuUse(1), TIMEOUT_S)
        finally:
            await bench.close()
            await turns.close()

    def _told(self, target: str, problem: str, gpu: Gpu, operations: float, found: Measurement) -> m.Measured:
        """The event about a measurement, with the last good time of the same problem."""
        before_us = self._times_us.get((target, problem), 0.0)
        if found.time_us:
            self._times_us[target, problem] = found.time_us
        return m.Measured(
            target=target,
            problem=problem,
            gpu=gpu.name,
            outcome=found.outcome.value,
            time_us=found.time_us,
            tflops=1e-6 * operations / found.time_us if found.time_us else 0.0,
            before_us=before_us,
            spread=found.spread,
            error=found.error,
            message=found.note,
        )

    def _once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            self._say(words)
