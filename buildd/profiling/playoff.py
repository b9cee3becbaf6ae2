"""The fastest candidates of a problem, measured again in turns: clocks and neighbours change between measurements.

Knows times; `campaign` measures and writes down.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from buildd.profiling.bench import Measurement
from buildd.store.profiles import Outcome
from codegen.gemm.candidates import Ranked
from codegen.tuning.survey import Case

CLOSE = 0.05
"""A candidate that is slower than the best by more than this share will be slower the next time, too."""
_DEFENDED = 0.1
"""The best of earlier calls was measured on another day: it is measured again if it is slower by up to this share."""
ROUNDS = 3
_MOST = 6


@dataclass(frozen=True, slots=True)
class Contestant:
    """A measured candidate, and the library that has its kernel."""

    case: Case
    ranked: Ranked
    library: str
    found: Measurement


def is_contested(before_us: float, contestants: Sequence[Contestant]) -> bool:
    """Whether the best of earlier calls has to be measured again beside the candidates of this call."""
    best_us = min((one.found.time_us for one in contestants), default=0.0)
    return best_us <= before_us * (1 + CLOSE) and before_us <= best_us * (1 + _DEFENDED)


def entrants(contestants: Sequence[Contestant], defender: Contestant | None = None) -> tuple[Contestant, ...]:
    """The candidates that are nearly as fast as the best, fastest first; empty if the best has no rival.

    Args:
        defender: the best of earlier calls, if it is contested; it leads.
    """
    ordered = sorted(contestants, key=lambda one: one.found.time_us)
    before_us = (defender.found.time_us,) if defender is not None else ()
    most_us = min((*before_us, *(one.found.time_us for one in ordered[:1])), default=0.0) * (1 + CLOSE)
    close = tuple(one for one in ordered if one.found.time_us <= most_us)[:_MOST]
    if defender is not None:
        close = (defender, *close)
    return close if len(close) > 1 else ()


class Contest:
    """The entrants of one problem, and the rounds in which they are measured in turns.

    A busy GPU gets slower. So only the ratio to the first entrant counts, and the first entrant keeps its time: the
    rounds may be measured in any order, and each on another GPU.
    """

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self._contestants = tuple(contestants)
        self.rounds = tuple(
            self._contestants[n:] + self._contestants[:n] for n in (i % len(contestants) for i in range(ROUNDS))
        )
        """Each round's candidates: the one in question, then its rivals."""
        self._left = len(self.rounds)
        self.fails = False
        """A round failed: the times from before stay."""
        self._shares: dict[str, list[float]] = {}
        """Candidate -> its time divided by the first entrant's, for each round."""

    @property
    def takes_us(self) -> float:
        """Duration of one turn."""
        return sum(one.found.time_us for one in self._contestants)

    def settled(self, order: Sequence[Contestant], found: Measurement | None) -> list[Contestant]:
        """Take a round's result; after the last one, return all entrants with their new times: none if a round failed.

        Args:
            order: the round's candidates.
            found: the measurement of the first one, in turns with its rivals.
        """
        self._left -= 1
        if found is None or found.outcome is not Outcome.MEASURED or len(found.rivals_us) != len(order) - 1:
            self.fails = True
            return []
        took_us = dict(zip(map(self._name, order), (found.time_us, *found.rivals_us), strict=True))
        for name, time_us in took_us.items():
            self._shares.setdefault(name, []).append(time_us / took_us[self._name(self._contestants[0])])
        return [self._timed(one) for one in self._contestants] if self._left == 0 and not self.fails else []

    def _timed(self, one: Contestant) -> Contestant:
        time_us = self._contestants[0].found.time_us * statistics.median(self._shares[self._name(one)])
        return replace(one, found=msgspec.structs.replace(one.found, time_us=time_us))

    @staticmethod
    def _name(one: Contestant) -> str:
        return one.ranked.candidate.name


def rounds_of(some: Iterable[Sequence[Contestant]]) -> list[tuple[Contest, tuple[Contestant, ...]]]:
    """All rounds of all contests; the longest go first, so that several GPUs finish together.

    Args:
        some: the `entrants` of each problem; empty for a problem without a contest.
    """
    contests = sorted(map(Contest, filter(None, some)), key=lambda one: one.takes_us, reverse=True)
    return [(contest, order) for contest in contests for order in contest.rounds]
