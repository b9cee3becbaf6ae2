"""Candidates built, measured as soon as they are, and written down: one call for any number of problems.

Knows in which order things happen; what is worth trying (`codegen.gemm_pick`), and how something is built, measured or
stored, is others'. Compiling and measuring overlap; a candidate that several problems share is built once; on a GPU one
at a time is measured. Whatever a candidate does costs only the candidate.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from buildd.candidate_builds import Builder, Built, Presence, tidy
from buildd.gpu_use import GpuUse
from buildd.gpus import LEASES, Gpu, Turns, strangers
from buildd.harness import IN_ONE_SOURCE, harness, in_one_source, question, side_request
from buildd.measuring import TIMEOUT_S, Bench, GpuFailed, Measured
from buildd.playoff import Contest, Runner, entrants, is_contested, rounds_of
from buildd.profile_cache import ProfileCache
from buildd.profile_choice import chosen_of, likeliest, row_of, setting_of
from buildd.profile_rows import Rows
from buildd.profile_told import Chosen, Summary, Told, Tried
from buildd.profiles import Outcome, Profile
from codegen.best import Setting
from codegen.gemm_candidates import Ranked
from codegen.gemm_choice import smallest
from codegen.gemm_pick import cannot_win, for_capability, likely_of, shared
from codegen.gemm_survey import PREFIX, Case, Survey, candidate_spec
from protocol.messages import Outcome as BuildOutcome
from protocol.messages import Request

NOISY = 0.05
"""A spread beyond this is worth a word."""
_MOST_GPU_FAILURES, _CI_BUILDS = 3, 2
_HEAD_START_S = 0.1  # so much sooner the program that measures is asked for: where it is known, contexts wait for it
_PATIENCE_S = 1.0  # so long it waits for the context of the one before: that one's GPU may be somebody else's
_NOT_WORTH_IT = Built(outcome=BuildOutcome.CANCELLED, message="what was measured is faster than it promises to be")

_Work = tuple[Case, Ranked]
_Key = tuple[str, str]
"""A problem, and the flags that its kernels are compiled with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to go about it.

    Args:
        top: so many of the likeliest candidates of each problem.
        room: more of them where all problems' are fewer compiles than this.
        exhaustive: all of them, each measured in full.
        measure: command that measures, before its arguments; None where that still has to be built.
        asked: how many processes of others compute on each GPU, where somebody asks already.
        leases: folder of the GPUs' leases.
    """

    request: Request
    survey: Survey
    gpus: tuple[Gpu, ...]
    top: int = 2
    room: int = 0
    exhaustive: bool = False
    measure: tuple[str, ...] | None = None
    asked: asyncio.Task[Mapping[Gpu, int]] | None = None
    leases: str = LEASES
    timeout_s: float = TIMEOUT_S
    most_builds: int = field(default_factory=lambda: len(os.sched_getaffinity(0)) + 2)

    def with_room(self) -> Plan:
        """The same with so many candidates that no processor waits: each compiles as two sources, of which one takes a
        fifth as long."""
        return replace(self, room=self.most_builds - 4)


class Profiling:
    """One call of `buildd profile`.

    Args:
        builder: builds candidates.
        cache: what is known, and where it is written down.
        tell: is told what happened.
        say: lines for people about what is different from what they may expect.
    """

    def __init__(
        self,
        plan: Plan,
        builder: Builder,
        cache: ProfileCache,
        tell: Callable[[Told], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._builder, self._cache = plan, builder, cache
        self._tell, self._say = tell, say
        self._rows = Rows(cache, say)
        self._slots = asyncio.Semaphore(plan.most_builds)
        self._builds: dict[str, asyncio.Task[Built]] = {}
        self._ready: asyncio.Queue[Callable[[Bench, Gpu], Awaitable[None]] | None] = asyncio.Queue()
        self._best_us: dict[_Key, float] = {}
        self._harness: asyncio.Task[tuple[str, ...]] | None = None
        self._tally = dict.fromkeys(("built", "hits", "measured", "failed"), 0)
        self._turns = {gpu: Turns(gpu, plan.leases) for gpu in plan.gpus}
        self._use = GpuUse(len(plan.gpus))
        self._is_over = False  # all that was ready is measured: who has no context by then needs none
        self._closing: list[asyncio.Task[None]] = []
        self._began_s = 0.0
        self._spans: dict[str, tuple[float, float, float]] = {}
        """Target of a candidate -> when its build began, 0 where it was found; its cores' time; when it ended."""
        self._in_one_source = False
        self._gpu_failures = 0
        self._bad: set[tuple[_Key, str]] = set()
        """Of what was asked and its candidates, those that were seen not to work."""
        self._tried: set[tuple[_Key, str]] = set()
        self._times: dict[_Key, dict[str, tuple[float, float]]] = {}
        """Candidate -> estimate and time; what says which others are not worth a compile."""
        self._wanting: dict[str, list[_Work]] = {}
        """Target of a candidate -> whom it is built for."""
        self._skipped: list[_Work] = []
        self._runners: dict[_Key, list[Runner]] = {}
        """What was measured in full here."""
        self._best_before: dict[_Key, Profile] = {}

    async def run(self) -> Summary:
        """Do all of it. Raises BuilddError, ProtocolError where nothing can be built at all."""
        try:
            return await self._run()
        finally:
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _run(self) -> Summary:
        self._began_s = time.monotonic()
        survey, plan = self._plan.survey, self._plan
        measures = bool(plan.gpus) and not survey.continuous_integration
        cases = self._cases()
        known = {self._key(case): self._known(case) for case in cases}
        for case in cases:
            rows = [row for row in known[self._key(case)].values() if row.outcome is Outcome.MEASURED]
            before = min(rows, key=lambda row: row.time_us, default=None) if not survey.again else None
            self._best_us[self._key(case)] = before.time_us if before is not None else 0.0
            if before is not None:
                self._best_before[self._key(case)] = before
            self._bad.update((self._key(case), name) for name, row in known[self._key(case)].items() if not row.works)
            if not survey.again:
                for ranked in case.ranked:
                    if row := known[self._key(case)].get(ranked.candidate.name):
                        self._learn(case, ranked, row.time_us)
        work: list[_Work] = []
        if survey.continuous_integration:
            work = self._random(cases)
        elif not survey.no_candidates and not survey.only_known:
            lists = self._to_try(cases, known)
            # The likeliest of every problem first: each soon has something to be compared with.
            work = [one for several in zip_longest(*lists) for one in several if one is not None]
        fresh = {self._key(case) for case, _ in work}
        self._tried = {(self._key(case), ranked.candidate.name) for case, ranked in work}
        if work:
            with Presence(self._plan.request.store, self._plan.request.project) as presence:
                try:
                    while work:
                        self._skipped = []
                        await self._carry_out(work, measures)
                        # What was not worth it early may be so now that more is known: the next call would find that.
                        work = [one for one in self._skipped if not self._cannot_win(*one)]
                finally:
                    if presence.is_last():
                        tidy(os.path.join(self._plan.request.project, survey.build), PREFIX)
                    await self._rows.published()
        elif any(known.values()):
            await self._rows.published()  # whoever measured it may have been killed before
        for case, ranked in self._skipped:
            self._report(case, ranked, "skipped", note=_NOT_WORTH_IT.message)
        for case in cases:
            self._tell(self._chosen(case, known=self._key(case) not in fresh))
        return Summary(
            wall_s=time.monotonic() - self._began_s,
            measuring_s=self._use.busy_s,
            gpu_idle=self._use.idle,
            gpu_unused=self._use.unused,
            dropped=self._rows.dropped,
            skipped=len(self._skipped),
            **self._tally,
        )

    # ---------------------------------------------------------------- what to try

    def _cases(self) -> list[Case]:
        """Without a GPU all; with one, of each target the architecture that its entry point would take there."""
        cases, gpus = self._plan.survey.cases, self._plan.gpus
        if not gpus:
            return list(cases)
        found = for_capability(cases, gpus[0].capability)
        for target in dict.fromkeys(case.target for case in cases):
            if target not in found:
                self._say(f"{target}: no architecture of it runs on {gpus[0].name} ({gpus[0].capability})")
        return list(found.values())

    def setting(self, case: Case) -> Setting:
        """What a row of this case is filed under here."""
        return setting_of(case, self._plan.survey, self._plan.gpus)

    def _key(self, case: Case) -> _Key:
        return case.problem, self._plan.survey.flags[case.target]

    def _known(self, case: Case) -> dict[str, Profile]:
        return self._cache.of(self.setting(case), case.problem) if self._plan.gpus else {}

    def _to_try(self, cases: Sequence[Case], known: dict[_Key, dict[str, Profile]]) -> list[list[_Work]]:
        """For each problem what is not settled yet; the others' candidates last, as they have to be built anyway."""
        exhaustive, again = self._plan.exhaustive, self._plan.survey.again
        chosen = likely_of(cases, self._plan.top, self._plan.room)
        others: list[tuple[Ranked, ...]] = [()] * len(cases)
        if self._plan.gpus and not exhaustive:
            others = shared(cases, chosen)
        lists: list[list[_Work]] = []
        for case, own, other in zip(cases, chosen, others, strict=True):
            wanted = case.ranked if exhaustive else (*own, *other)
            rows = {} if again else known[self._key(case)]
            settled = {name for name, row in rows.items() if not exhaustive or row.outcome is not Outcome.HOPELESS}
            left = [(case, ranked) for ranked in wanted if ranked.candidate.name not in settled]
            lists.append([one for one in left if not self._cannot_win(*one)])
        return lists

    def _cannot_win(self, case: Case, ranked: Ranked) -> bool:
        if self._plan.exhaustive or not self._plan.gpus:
            return False
        return cannot_win(ranked.estimate_us, self._times.get(self._key(case), {}).values())

    def _learn(self, case: Case, ranked: Ranked, time_us: float) -> None:
        if time_us > 0:
            self._times.setdefault(self._key(case), {})[ranked.candidate.name] = (ranked.estimate_us, time_us)

    def _random(self, cases: Sequence[Case]) -> list[_Work]:
        """CI_FLAG: two of all candidates are built, so that their code is known to compile; nothing is measured."""
        seed = int.from_bytes(os.urandom(4), "big")
        everything = [(case, ranked) for case in cases for ranked in case.ranked]
        self._say(f"CI_FLAG=CIRCLECI: nothing is measured; {_CI_BUILDS} random candidates are built, seed {seed}")
        return random.Random(seed).sample(everything, min(_CI_BUILDS, len(everything)))

    # ---------------------------------------------------------------- building and measuring

    async def _carry_out(self, work: list[_Work], measures: bool) -> None:
        for case, ranked in work:
            self._wanting.setdefault(candidate_spec(case, ranked)[0], []).append((case, ranked))
        if measures and self._plan.measure is None and self._harness is None:
            self._harness = asyncio.create_task(harness(self._builder, self._plan.request, self._plan.survey))
            await asyncio.wait([self._harness], timeout=_HEAD_START_S)
        building = [asyncio.create_task(self._make(case, ranked, measures)) for case, ranked in work]
        first = not self._builds
        asking = [asyncio.create_task(self._strangers())] if measures and first else []
        self._is_over = False
        # One a GPU: a second context takes its turn longer than it saves, and a driver makes whoever measures wait. It
        # makes one after another, on whatever GPU: who begins alone measures while the next one gets its own.
        lanes: list[asyncio.Task[None]] = []
        before, mine = asyncio.Event(), asyncio.Event()
        before.set()
        for gpu in self._plan.gpus if measures else ():
            lanes.append(asyncio.create_task(self._lane(gpu, asking, before, mine)))
            before, mine = mine, asyncio.Event()

        async def feed() -> None:
            await asyncio.gather(*building)
            if lanes:
                await self._ready.join()
                if all(self._cannot_win(*one) for one in self._skipped):
                    await self._play_off()
            self._is_over = True
            for _ in lanes:
                self._ready.put_nowait(None)

        feeding = asyncio.create_task(feed())
        try:
            await asyncio.gather(feeding, *lanes, *asking)
        finally:
            own = (self._harness,) if self._harness is not None else ()
            tasks = [feeding, *building, *lanes, *asking, *self._builds.values(), *own]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, case: Case, ranked: Ranked, measures: bool) -> None:
        name, table = candidate_spec(case, ranked)
        if name not in self._builds:
            self._builds[name] = asyncio.create_task(self._build(name, table))
        first = not self._builds[name].done()
        built = await asyncio.shield(self._builds[name])
        compiled = built.misses > 0 and first
        if built is _NOT_WORTH_IT:
            self._builds.pop(name, None)
            self._skipped.append((case, ranked))
            return
        if built.outcome is BuildOutcome.BUILT and built.paths:
            if measures:
                self._use.note(ready=1)
                self._ready.put_nowait(partial(self._measure, case, ranked, built.paths[0], compiled))
            else:
                self._report(case, ranked, "built", built=compiled)
            return
        self._tally["failed"] += 1
        self._bad.add((self._key(case), ranked.candidate.name))
        if built.is_its_own_fault and self._plan.gpus:
            self._write(case, ranked, Measured(outcome=Outcome.UNBUILT, note=built.message))
        self._report(case, ranked, Outcome.UNBUILT.value, note=built.message)

    async def _build(self, name: str, table: dict[str, Any], *, again: bool = False) -> Built:
        """Args: again: it is known to be worth it."""
        async with self._slots:
            if self._gpu_failures >= _MOST_GPU_FAILURES:
                return Built(outcome=BuildOutcome.CANCELLED, message="there is no GPU to measure it on any more")
            if not again and all(self._cannot_win(*one) for one in self._wanting[name]):
                return _NOT_WORTH_IT
            began_s = time.monotonic() - self._began_s
            request = side_request(self._plan.request, name, table)
            built = await self._builder.build(request)
            if built.is_its_own_fault and (other := in_one_source(request, built.failed)) is not None:
                if not self._in_one_source:
                    self._say(
                        f"{built.message}; kernels are compiled with what launches them: {IN_ONE_SOURCE} does so always"
                    )
                self._in_one_source = True
                built = await self._builder.build(other)
            self._spans[name] = (began_s if built.misses else 0.0, built.cpu_s, time.monotonic() - self._began_s)
        self._tally["built"] += built.outcome is BuildOutcome.BUILT and built.misses > 0
        self._tally["hits"] += built.outcome is BuildOutcome.BUILT and built.misses == 0
        return built

    async def _lane(
        self, gpu: Gpu, asking: Sequence[asyncio.Task[None]], before: asyncio.Event, has_context: asyncio.Event
    ) -> None:
        """Measures on one GPU what is ready, one after another.

        Args:
            asking: who else is on the GPUs: we are not before that is known.
            before: set when the lane before has a context.
            has_context: set when this one has, or should have.
        """
        command = self._plan.measure or await self._of_harness()
        bench = Bench(command, {**os.environ, **self._plan.request.environment}, gpu.shown_as)
        try:
            await before.wait()
            asyncio.get_running_loop().call_later(_PATIENCE_S, has_context.set)
            # While compilers run: what is wrong with the GPU, the first candidate will hear.
            with suppress(GpuFailed):
                if not self._is_over:
                    await bench.start(lambda: self._first_turn(gpu, asking), timeout_s=self._plan.timeout_s)
            has_context.set()
            while (item := await self._ready.get()) is not None:
                await item(bench, gpu)
                self._use.note(ready=-1)
                self._ready.task_done()
            self._ready.task_done()
        finally:
            # A driver takes its time with a process that ends: what was found need not wait for that.
            self._closing.append(asyncio.create_task(bench.close()))

    async def _of_harness(self) -> tuple[str, ...]:
        assert self._harness is not None
        return await asyncio.shield(self._harness)

    async def _measure(self, case: Case, ranked: Ranked, library: str, compiled: bool, bench: Bench, gpu: Gpu) -> None:
        if self._gpu_failures >= _MOST_GPU_FAILURES:
            self._report(case, ranked, "not measured", note="the GPU does not answer", built=compiled)
            return
        try:
            best_us = (lambda: 0.0) if self._plan.exhaustive else (lambda: self._best_us[self._key(case)])
            found = await self._ask(bench, gpu, (case, ranked, library), best_us)
        except GpuFailed as error:
            self._gpu_failures += 1
            self._tally["failed"] += 1
            self._report(case, ranked, "not measured", note=str(error), built=compiled)
            return
        self._gpu_failures = 0
        self._tally["measured" if found.outcome in (Outcome.MEASURED, Outcome.HOPELESS) else "failed"] += 1
        self._learn(case, ranked, found.time_us)
        if found.outcome is Outcome.MEASURED:
            self._best_us[self._key(case)] = min(self._best_us[self._key(case)] or found.time_us, found.time_us)
            self._runners.setdefault(self._key(case), []).append(Runner(case, ranked, library, found))
        self._write(case, ranked, found)
        note = found.note or (f"noisy: {found.spread:.0%} spread" if found.spread > NOISY else "")
        self._report(case, ranked, found.outcome.value, found, note=note, built=compiled)

    async def _ask(
        self,
        bench: Bench,
        gpu: Gpu,
        one: tuple[Case, Ranked, str],
        best_us: Callable[[], float],
        rivals: Sequence[Runner] = (),
    ) -> Measured:
        case, ranked, library = one
        others = [(other.library, candidate_spec(other.case, other.ranked)[0]) for other in rivals]
        words = question(case, library, candidate_spec(case, ranked)[0], others)
        return await bench.measure(words, lambda: self._turn(gpu), best_us, timeout_s=self._plan.timeout_s)

    async def _play_off(self) -> None:
        """Who is nearly as fast as the best of a problem is measured again, in turns with it."""
        found = [entrants(some, await self._defender(key, some)) for key, some in self._runners.items()]
        for contest, order in rounds_of(found):
            self._use.note(ready=1)
            self._ready.put_nowait(partial(self._settle, contest, order))
        await self._ready.join()

    async def _defender(self, key: _Key, runners: Sequence[Runner]) -> Runner | None:
        """The best of what was known before, where it is contested: its time is of another day."""
        case, before = runners[0].case, self._best_before.get(key)
        if before is None or not is_contested(before.time_us, runners):
            return None
        ranked = next((one for one in case.ranked if one.candidate.name == before.candidate), None)
        if ranked is None or any(one.ranked == ranked for one in runners):
            return None
        built = await self._build(*candidate_spec(case, ranked), again=True)
        found = Measured(outcome=before.outcome, time_us=before.time_us, spread=before.spread, error=before.error)
        return Runner(case, ranked, built.paths[0], found) if built.paths else None

    async def _settle(self, contest: Contest, order: Sequence[Runner], bench: Bench, gpu: Gpu) -> None:
        """One round of it."""
        found, (first, *rivals) = None, order
        with suppress(GpuFailed):
            if not contest.fails:
                found = await self._ask(bench, gpu, (first.case, first.ranked, first.library), lambda: 0.0, rivals)
        for number, one in enumerate(contest.settled(order, found)):
            if number:  # the time of the first one stays
                self._write(one.case, one.ranked, one.found)
            self._report(one.case, one.ranked, one.found.outcome.value, one.found, note="in turns with the next best")

    @asynccontextmanager
    async def _first_turn(self, gpu: Gpu, asking: Sequence[asyncio.Task[None]]) -> AsyncIterator[None]:
        if asking:
            await asyncio.wait(asking)
        async with self._turns[gpu].turn():
            yield

    @asynccontextmanager
    async def _turn(self, gpu: Gpu) -> AsyncIterator[None]:
        async with self._turns[gpu].turn():
            with self._use.turn():
                yield

    async def _strangers(self) -> None:
        gpus = self._plan.gpus
        found = await (self._plan.asked or asyncio.to_thread(strangers, gpus, os.environ))
        for gpu in gpus:
            if busy := found.get(gpu):
                self._say(f"{busy} other processes compute on GPU {gpu.index}: times may be noisy")

    # ---------------------------------------------------------------- what came of it

    def _write(self, case: Case, ranked: Ranked, found: Measured) -> None:
        profile = row_of(self.setting(case), case.problem, ranked.candidate.name, found)
        if not profile.works:
            self._bad.add((self._key(case), profile.candidate))
        self._rows.add(profile)

    def _report(
        self,
        case: Case,
        ranked: Ranked,
        outcome: str,
        found: Measured | None = None,
        *,
        note: str = "",
        built: bool = False,
    ) -> None:
        began_s, cpu_s, ready_s = self._spans.get(candidate_spec(case, ranked)[0], (0.0, 0.0, 0.0))
        self._tell(
            Tried(
                target=case.target,
                problem=case.problem,
                candidate=ranked.candidate.name,
                outcome=outcome,
                time_us=found.time_us if found else 0.0,
                spread=found.spread if found else 0.0,
                error=found.error if found else 0.0,
                note=note,
                built=built,
                began_s=began_s,
                cpu_s=cpu_s,
                ready_s=ready_s,
                measured_s=time.monotonic() - self._began_s if found else 0.0,
            )
        )

    def _chosen(self, case: Case, *, known: bool) -> Chosen:
        tried = {name for key, name in self._tried if key == self._key(case)}
        bad = {name for key, name in self._bad if key == self._key(case)}
        usual = smallest(case.spec, case.arch).name if self._plan.survey.continuous_integration else ""
        return chosen_of(case, self._known(case), known=known, guess=usual or likeliest(case, tried, bad))
