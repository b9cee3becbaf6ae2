"""What one call of `buildd profile` tries: the candidates that are worth a compile, given all known and measured times.

Knows rows, estimates and times (the rules are in `codegen.tuning.pick`); builds nothing and asks no GPU.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from buildd.profiling.bench import TIMEOUT_S, Measurement
from buildd.profiling.gpus import Gpu
from buildd.profiling.reports import Chosen, chosen_of, likeliest
from buildd.profiling.turns import FOLDER
from buildd.store.profile_cache import ProfileCache
from buildd.store.profiles import Outcome, Profile
from codegen.gemm.best_kernels import Setting
from codegen.gemm.candidates import Ranked
from codegen.gemm.kernel_options import smallest
from codegen.tuning.pick import cannot_win, for_capability, likely_of, shared
from codegen.tuning.survey import Case, Survey
from protocol.messages import Request

_CI_BUILDS = 2

Work = tuple[Case, Ranked]
"""A candidate of a problem."""
Key = tuple[str, str]
"""A problem, and the flags that its kernels are compiled with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of one call.

    Args:
        gpus: the GPUs to measure on; they are of one model. Empty: nothing is measured.
        top: how many of the likeliest candidates of each problem are tried.
        room: if all problems together need fewer compiles than this, more candidates are tried.
        exhaustive: all candidates are tried, each measured in full.
        measure: command that measures, before its arguments; None if it still has to be built.
        leases: folder of the machine's locks on GPUs.
        timeout_s: limit for the answer of a measuring process.
        most_builds: how many candidates are built at once.
    """

    request: Request
    survey: Survey
    gpus: tuple[Gpu, ...]
    top: int = 2
    room: int = 0
    exhaustive: bool = False
    measure: tuple[str, ...] | None = None
    leases: str = FOLDER
    timeout_s: float = TIMEOUT_S
    most_builds: int = field(default_factory=lambda: len(os.sched_getaffinity(0)) + 2)

    def with_room(self) -> Plan:
        """Return the plan with enough candidates to keep all processors busy: each candidate compiles as two sources,
        and one of the two takes a fifth of the other's time."""
        return replace(self, room=self.most_builds - 4)

    @property
    def measures(self) -> bool:
        return bool(self.gpus) and not self.survey.continuous_integration

    def key(self, case: Case) -> Key:
        return case.problem, self.survey.flags[case.target]

    def setting(self, case: Case) -> Setting:
        """The setting that this call stores a case's rows under."""
        gpu = self.gpus[0] if self.gpus else None
        return Setting(
            gpu=gpu.name if gpu else "",
            driver=gpu.driver if gpu else "",
            toolkit=self.survey.toolkit,
            library=self.survey.library,
            flags=self.survey.flags[case.target],
            capability=gpu.capability if gpu else "",
        )


class Agenda:
    """The candidates that one call tries.

    Args:
        cache: has the rows of earlier calls.
        say: gets lines for people.
    """

    def __init__(self, plan: Plan, cache: ProfileCache, say: Callable[[str], None]) -> None:
        self._plan, self._cache, self._say = plan, cache, say
        self.cases: tuple[Case, ...] = ()
        self._known: dict[Key, dict[str, Profile]] = {}
        """Rows of earlier calls, by candidate."""
        self._best_before: dict[Key, Profile] = {}
        self._best_us: dict[Key, float] = {}
        self._times: dict[Key, dict[str, tuple[float, float]]] = {}
        """Candidate -> estimate and time: these decide which other candidates are not worth a compile."""
        self._bad: set[tuple[Key, str]] = set()
        """Candidates that do not work."""
        self._tried: set[tuple[Key, str]] = set()
        """Candidates of `first_round`."""

    def load(self) -> None:
        """Read what earlier calls measured."""
        self.cases = self._cases_here()
        again = self._plan.survey.again
        for case in self.cases:
            key, rows = self._plan.key(case), self._rows(case)
            self._known[key] = rows
            self._bad.update((key, name) for name, row in rows.items() if not row.works)
            if again:
                continue
            measured = [row for row in rows.values() if row.outcome is Outcome.MEASURED]
            if before := min(measured, key=lambda row: row.time_us, default=None):
                self._best_before[key], self._best_us[key] = before, before.time_us
            for ranked in case.ranked:
                if row := rows.get(ranked.candidate.name):
                    self._learn_time(case, ranked, row.time_us)

    @property
    def has_rows(self) -> bool:
        """Whether an earlier call measured a candidate of these problems."""
        return any(self._known.values())

    def first_round(self) -> list[Work]:
        """The candidates to try first; the likeliest of every problem lead, so that each problem soon has a time to
        compare the others with."""
        survey = self._plan.survey
        work: list[Work] = []
        if survey.continuous_integration:
            work = self._random()
        elif not survey.no_candidates and not survey.only_known:
            work = [one for several in zip_longest(*self._unsettled()) for one in several if one is not None]
        self._tried = {(self._plan.key(case), ranked.candidate.name) for case, ranked in work}
        return work

    def cannot_win(self, case: Case, ranked: Ranked) -> bool:
        """Whether the measured times rule a candidate out before its compile."""
        if self._plan.exhaustive or not self._plan.gpus:
            return False
        return cannot_win(ranked.estimate_us, self._times.get(self._plan.key(case), {}).values())

    def best_us(self, case: Case) -> float:
        """The time that a new candidate is compared with; 0 if there is none, or if each is measured in full."""
        return 0.0 if self._plan.exhaustive else self._best_us.get(self._plan.key(case), 0.0)

    def best_before(self, case: Case) -> Profile | None:
        """The fastest row of earlier calls."""
        return self._best_before.get(self._plan.key(case))

    def learn(self, case: Case, ranked: Ranked, found: Measurement) -> None:
        """Take a time into account."""
        self._learn_time(case, ranked, found.time_us)
        if found.outcome is Outcome.MEASURED:
            key = self._plan.key(case)
            self._best_us[key] = min(self._best_us.get(key) or found.time_us, found.time_us)

    def exclude(self, case: Case, ranked: Ranked) -> None:
        """Never choose this candidate: it does not work."""
        self._bad.add((self._plan.key(case), ranked.candidate.name))

    def chosen(self, case: Case) -> Chosen:
        """The kernel for a problem: the fastest one that works, or else a guess."""
        mine = self._plan.key(case)
        tried = {name for key, name in self._tried if key == mine}
        bad = {name for key, name in self._bad if key == mine}
        usual = smallest(case.spec, case.arch).name if self._plan.survey.continuous_integration else ""
        return chosen_of(case, self._rows(case), known=not tried, guess=usual or likeliest(case, tried, bad))

    def _cases_here(self) -> tuple[Case, ...]:
        """All cases without a GPU; with one, each target's architecture that its entry point would take there."""
        cases, gpus = self._plan.survey.cases, self._plan.gpus
        if not gpus:
            return tuple(cases)
        found = for_capability(cases, gpus[0].capability)
        for target in dict.fromkeys(case.target for case in cases):
            if target not in found:
                self._say(f"{target}: none of its architectures runs on {gpus[0].name} ({gpus[0].capability})")
        return tuple(found.values())

    def _rows(self, case: Case) -> dict[str, Profile]:
        return self._cache.of(self._plan.setting(case), case.problem) if self._plan.gpus else {}

    def _learn_time(self, case: Case, ranked: Ranked, time_us: float) -> None:
        if time_us > 0:
            self._times.setdefault(self._plan.key(case), {})[ranked.candidate.name] = (ranked.estimate_us, time_us)

    def _unsettled(self) -> list[list[Work]]:
        """For each problem its unsettled candidates; those that other problems compile anyway come last."""
        exhaustive, cases = self._plan.exhaustive, self.cases
        chosen = likely_of(cases, self._plan.top, self._plan.room)
        others: Sequence[tuple[Ranked, ...]] = [()] * len(cases)
        if self._plan.gpus and not exhaustive:
            others = shared(cases, chosen)
        lists: list[list[Work]] = []
        for case, own, other in zip(cases, chosen, others, strict=True):
            wanted = case.ranked if exhaustive else (*own, *other)
            rows = {} if self._plan.survey.again else self._known[self._plan.key(case)]
            settled = {name for name, row in rows.items() if not exhaustive or row.outcome is not Outcome.HOPELESS}
            left = [(case, ranked) for ranked in wanted if ranked.candidate.name not in settled]
            lists.append([one for one in left if not self.cannot_win(*one)])
        return lists

    def _random(self) -> list[Work]:
        """CI_FLAG: two random candidates are built, to see that their code compiles; nothing is measured."""
        seed = int.from_bytes(os.urandom(4), "big")
        everything = [(case, ranked) for case in self.cases for ranked in case.ranked]
        self._say(f"CI_FLAG=CIRCLECI: nothing is measured; building {_CI_BUILDS} random candidates, seed {seed}")
        return random.Random(seed).sample(everything, min(_CI_BUILDS, len(everything)))
