"""The fastest candidates of a problem measured once more, in turns: clocks and neighbours change between measurements.

Knows times; how something is measured and where it is written down is others' (`profiling`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from buildd.measuring import Measured
from buildd.profiles import Outcome
from codegen.gemm_candidates import Ranked
from codegen.gemm_survey import Case

CLOSE = 0.05
"""Who is slower than the best by more than this share is so the next time, too."""
_DEFENDED = 0.1
"""What was the best before has its time of another day: it is measured again up to this share."""
ROUNDS = 3
_MOST = 6


@dataclass(frozen=True, slots=True)
class Runner:
    """A candidate that was measured, and the library that has it."""

    case: Case
    ranked: Ranked
    library: str
    found: Measured


def is_contested(before_us: float, runners: Sequence[Runner]) -> bool:
    """Whether what was the best before is to be measured again beside those that were measured now."""
    best_us = min((one.found.time_us for one in runners), default=0.0)
    return best_us <= before_us * (1 + CLOSE) and before_us <= best_us * (1 + _DEFENDED)


def entrants(runners: Sequence[Runner], defender: Runner | None = None) -> tuple[Runner, ...]:
    """Those that are nearly as fast as the best, fastest first; none where it has no rival.

    Args:
        defender: the best of what was known before, where it is contested; it goes first.
    """
    ordered = sorted(runners, key=lambda one: one.found.time_us)
    before_us = (defender.found.time_us,) if defender is not None else ()
    most_us = min((*before_us, *(one.found.time_us for one in ordered[:1])), default=0.0) * (1 + CLOSE)
    close = tuple(one for one in ordered if one.found.time_us <= most_us)[:_MOST]
    if defender is not None:
        close = (defender, *close)
    return close if len(close) > 1 else ()


class Contest:
    """Those that are nearly as fast as the best of a problem, and the rounds in which they are measured in turns.

    A GPU that is kept busy gets slower: what counts is how the others did beside the first one, whose time stays. So
    the rounds may be measured in any order, and each on another GPU.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = tuple(runners)
        self.rounds = tuple(self._runners[n:] + self._runners[:n] for n in (i % len(runners) for i in range(ROUNDS)))
        """Of each the one that is asked about, and all others behind it."""
        self._left = len(self.rounds)
        self.fails = False
        """What was known stands, whatever the other rounds say."""
        self._shares: dict[str, list[float]] = {}
        """Candidate -> of each round, its time beside the first one's."""

    @property
    def takes_us(self) -> float:
        """What one turn of a round takes."""
        return sum(one.found.time_us for one in self._runners)

    def settled(self, order: Sequence[Runner], found: Measured | None) -> list[Runner]:
        """Hear of a round; with the last one each with its time by all of them, nobody where one failed.

        Args:
            order: of the round.
            found: of its first one, in turns with all others.
        """
        self._left -= 1
        if found is None or found.outcome is not Outcome.MEASURED or len(found.rivals_us) != len(order) - 1:
            self.fails = True
            return []
        took_us = dict(zip(map(self._name, order), (found.time_us, *found.rivals_us), strict=True))
        for name, time_us in took_us.items():
            self._shares.setdefault(name, []).append(time_us / took_us[self._name(self._runners[0])])
        return [self._timed(one) for one in self._runners] if self._left == 0 and not self.fails else []

    def _timed(self, one: Runner) -> Runner:
        time_us = self._runners[0].found.time_us * statistics.median(self._shares[self._name(one)])
        return replace(one, found=msgspec.structs.replace(one.found, time_us=time_us))

    @staticmethod
    def _name(one: Runner) -> str:
        return one.ranked.candidate.name


def rounds_of(some: Iterable[Sequence[Runner]]) -> list[tuple[Contest, tuple[Runner, ...]]]:
    """All rounds of all contests; what takes longest goes first, so that several GPUs end together.

    Args:
        some: of each problem who takes part (`entrants`); nobody where nothing is contested.
    """
    contests = sorted(map(Contest, filter(None, some)), key=lambda one: one.takes_us, reverse=True)
    return [(contest, order) for contest in contests for order in contest.rounds]
