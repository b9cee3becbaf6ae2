"""One call of `buildd profile`: the order of events from the first candidate to the report.

Candidates are built (`libraries`), measured as soon as they are built (`lanes`), and written down (`rows`); `agenda`
says which are worth it. Compiling and measuring overlap, for any number of problems at once. Whatever a candidate does
costs only the candidate.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from buildd.client.candidate_builds import Builder, Built, Presence, tidy
from buildd.profiling.agenda import Agenda, Key, Plan, Work
from buildd.profiling.bench import Measurement
from buildd.profiling.harness import harness, question
from buildd.profiling.lanes import Lane, Lanes
from buildd.profiling.libraries import Libraries
from buildd.profiling.measuring_process import GpuFailed
from buildd.profiling.playoff import Contest, Contestant, entrants, is_contested, rounds_of
from buildd.profiling.reports import Summary, Told, Tried
from buildd.profiling.rows import Rows, row_of
from buildd.profiling.turns import Turns
from buildd.store.profile_cache import ProfileCache
from buildd.store.profiles import Outcome
from codegen.gemm.candidates import Ranked
from codegen.tuning.survey import PREFIX, Case, candidate_spec
from protocol.messages import Outcome as BuildOutcome

if TYPE_CHECKING:
    from buildd.profiling.far_gpus import FarGpus

NOISY = 0.05
"""A larger spread is noted in the report."""
_MOST_GPU_FAILURES = 3
_HEAD_START_S = 0.1
"""How long the build of the measuring program runs alone: if it is found, contexts start before the first compile."""
_NOT_WORTH_IT = Built(outcome=BuildOutcome.CANCELLED, message="a measured candidate is faster than its estimate")
_NO_GPU = Built(outcome=BuildOutcome.CANCELLED, message="the GPU does not answer any more, so nothing can measure it")


class Profiling:
    """One call of `buildd profile`.

    Args:
        builder: builds candidates.
        cache: has the rows of earlier calls, and takes new ones.
        tell: gets each report.
        say: gets lines for people about anything they may not expect.
        far: the GPUs of a cluster's nodes; the plan's GPUs may be among them.
    """

    def __init__(
        self,
        plan: Plan,
        builder: Builder,
        cache: ProfileCache,
        tell: Callable[[Told], None],
        say: Callable[[str], None],
        *,
        far: FarGpus | None = None,
    ) -> None:
        self._plan, self._builder, self._tell = plan, builder, tell
        self._agenda = Agenda(plan, cache, say)
        self._rows = Rows(cache, say)
        self._libraries = Libraries(plan.request, builder, plan.most_builds, self._elapsed_s, say)
        self._lanes = Lanes(
            plan.gpus,
            {**os.environ, **plan.survey.environment},
            timeout_s=plan.timeout_s,
            turns=Turns(f"profile {_names(plan)}", say, builder.route, folder=plan.leases),
            far=far,
            say=say,
        )
        self._began_s = 0.0
        self._harness: asyncio.Task[tuple[str, ...]] | None = None
        self._measured = self._failed = 0
        self._gpu_failures = 0
        """In a row."""
        self._wanting: dict[str, list[Work]] = {}
        """Target of a library -> the problems and candidates that it is built for."""
        self._skipped: list[Work] = []
        self._contestants: dict[Key, list[Contestant]] = {}
        """Candidates that this call has measured in full."""

    async def run(self) -> Summary:
        """Build, measure and report all candidates. Raises BuilddError, ProtocolError if nothing can be built."""
        try:
            return await self._run()
        finally:
            await self._lanes.closed()

    async def _run(self) -> Summary:
        self._began_s = time.monotonic()
        agenda = self._agenda
        agenda.load()
        work = agenda.first_round()
        if work:
            with Presence(self._plan.request.store, self._plan.request.project) as presence:
                try:
                    while work:
                        self._skipped = []
                        await self._round(work)
                        # Later times may make a skipped candidate worth its compile; the next call would find that.
                        work = [one for one in self._skipped if not agenda.cannot_win(*one)]
                finally:
                    if presence.is_last():
                        tidy(os.path.join(self._plan.request.project, self._plan.survey.build), PREFIX)
                    await self._rows.published()
        elif agenda.has_rows:
            await self._rows.published()  # the call that measured them may have been killed before it did
        for case, ranked in self._skipped:
            self._report(case, ranked, "skipped", note=_NOT_WORTH_IT.message)
        for case in agenda.cases:
            self._tell(agenda.chosen(case))
        return Summary(
            wall_s=self._elapsed_s(),
            built=self._libraries.compiled,
            hits=self._libraries.found,
            measured=self._measured,
            failed=self._failed,
            measuring_s=self._lanes.use.busy_s,
            gpu_idle=self._lanes.use.idle,
            gpu_unused=self._lanes.use.unused,
            dropped=self._rows.dropped,
            skipped=len(self._skipped),
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    # ---------------------------------------------------------------- building

    async def _round(self, work: list[Work]) -> None:
        """Build and measure these candidates."""
        for case, ranked in work:
            self._wanting.setdefault(candidate_spec(case, ranked)[0], []).append((case, ranked))
        measures = self._plan.measures
        if measures and self._plan.measure is None and self._harness is None:
            self._harness = asyncio.create_task(harness(self._builder, self._plan.request, self._plan.survey))
            await asyncio.wait([self._harness], timeout=_HEAD_START_S)
        building = [asyncio.create_task(self._build(case, ranked)) for case, ranked in work]
        lanes = self._lanes.begin(self._command) if measures else []

        async def feed() -> None:
            await asyncio.gather(*building)
            if measures:
                await self._lanes.drained()
                if all(self._agenda.cannot_win(*one) for one in self._skipped):
                    await self._play_off()
                self._lanes.end()

        feeding = asyncio.create_task(feed())
        try:
            await asyncio.gather(feeding, *lanes)
        finally:
            own = (self._harness,) if self._harness is not None else ()
            tasks = [feeding, *building, *lanes, *self._libraries.tasks, *own]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _command(self) -> tuple[str, ...]:
        if self._plan.measure is not None:
            return self._plan.measure
        assert self._harness is not None
        return await asyncio.shield(self._harness)

    async def _build(self, case: Case, ranked: Ranked) -> None:
        """Build a candidate, and queue its measurement."""
        name, table = candidate_spec(case, ranked)
        built, compiled = await self._libraries.shared(name, table, partial(self._refusal, name))
        if built is _NOT_WORTH_IT:
            self._libraries.forget(name)
            self._skipped.append((case, ranked))
        elif built.outcome is not BuildOutcome.BUILT or not built.paths:
            self._failed += 1
            self._agenda.exclude(case, ranked)
            if built.is_its_own_fault and self._plan.gpus:
                self._write(case, ranked, Measurement(outcome=Outcome.UNBUILT, note=built.message))
            self._report(case, ranked, Outcome.UNBUILT.value, note=built.message)
        elif self._plan.measures:
            self._lanes.put(partial(self._measure, case, ranked, built.paths[0], compiled))
        else:
            self._report(case, ranked, "built", built=compiled)

    def _refusal(self, name: str) -> Built | None:
        """Why a library need not be built any more."""
        if self._gpu_is_lost:
            return _NO_GPU
        return _NOT_WORTH_IT if all(self._agenda.cannot_win(*one) for one in self._wanting[name]) else None

    # ---------------------------------------------------------------- measuring

    @property
    def _gpu_is_lost(self) -> bool:
        return self._gpu_failures >= _MOST_GPU_FAILURES

    async def _measure(self, case: Case, ranked: Ranked, library: str, compiled: bool, lane: Lane) -> None:
        if self._gpu_is_lost:
            self._report(case, ranked, "not measured", note="the GPU does not answer", built=compiled)
            return
        try:
            words = question(case, library, candidate_spec(case, ranked)[0])
            found = await lane.measure(words, lambda: self._agenda.best_us(case))
        except GpuFailed as error:
            self._gpu_failures += 1
            self._failed += 1
            self._report(case, ranked, "not measured", note=str(error), built=compiled)
            return
        self._gpu_failures = 0
        works = found.outcome in (Outcome.MEASURED, Outcome.HOPELESS)
        self._measured += works
        self._failed += not works
        self._agenda.learn(case, ranked, found)
        if found.outcome is Outcome.MEASURED:
            contestants = self._contestants.setdefault(self._plan.key(case), [])
            contestants.append(Contestant(case, ranked, library, found))
        self._write(case, ranked, found)
        note = found.note or (f"noisy: {found.spread:.0%} spread" if found.spread > NOISY else "")
        self._report(case, ranked, found.outcome.value, found, note=note, built=compiled)

    async def _play_off(self) -> None:
        """Measure each problem's fastest candidates again, in turns, if several are about equally fast."""
        found = [entrants(some, await self._defender(some)) for some in self._contestants.values()]
        for contest, order in rounds_of(found):
            self._lanes.put(partial(self._settle, contest, order))
        await self._lanes.drained()

    async def _defender(self, contestants: Sequence[Contestant]) -> Contestant | None:
        """The best candidate of earlier calls, if a new one contests it: its time is from another day."""
        case = contestants[0].case
        before = self._agenda.best_before(case)
        if before is None or not is_contested(before.time_us, contestants):
            return None
        ranked = next((one for one in case.ranked if one.candidate.name == before.candidate), None)
        if ranked is None or any(one.ranked == ranked for one in contestants):
            return None
        name, table = candidate_spec(case, ranked)
        built = await self._libraries.build(name, table, lambda: _NO_GPU if self._gpu_is_lost else None)
        found = Measurement(outcome=before.outcome, time_us=before.time_us, spread=before.spread, error=before.error)
        return Contestant(case, ranked, built.paths[0], found) if built.paths else None

    async def _settle(self, contest: Contest, order: Sequence[Contestant], lane: Lane) -> None:
        """Measure one round of a contest."""
        found, (first, *rivals) = None, order
        with suppress(GpuFailed):
            if not contest.fails:
                others = [(one.library, candidate_spec(one.case, one.ranked)[0]) for one in rivals]
                name = candidate_spec(first.case, first.ranked)[0]
                found = await lane.measure(question(first.case, first.library, name, others), lambda: 0.0)
        for number, one in enumerate(contest.settled(order, found)):
            if number:  # the time of the first one stays
                self._write(one.case, one.ranked, one.found)
            self._report(one.case, one.ranked, one.found.outcome.value, one.found, note="in turns with the next best")

    # ---------------------------------------------------------------- results

    def _write(self, case: Case, ranked: Ranked, found: Measurement) -> None:
        row = row_of(self._plan.setting(case), case.problem, ranked.candidate.name, found)
        if not row.works:
            self._agenda.exclude(case, ranked)
        self._rows.add(row)

    def _report(
        self,
        case: Case,
        ranked: Ranked,
        outcome: str,
        found: Measurement | None = None,
        *,
        note: str = "",
        built: bool = False,
    ) -> None:
        span = self._libraries.span(candidate_spec(case, ranked)[0])
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
                began_s=span.began_s,
                cpu_s=span.cpu_s,
                ready_s=span.ready_s,
                measured_s=self._elapsed_s() if found else 0.0,
                gpu=found.gpu if found else "",
                gpu_s=found.wall_s if found else 0.0,
            )
        )


def _names(plan: Plan) -> str:
    return " ".join(dict.fromkeys(case.target for case in plan.survey.cases))
