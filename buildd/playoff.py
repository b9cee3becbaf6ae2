"""The fastest candidates of a problem measured once more, in turns: clocks and neighbours change between measurements.

Knows times; how something is measured and where it is written down is others' (`profiling`).
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from buildd.measuring import GpuFailed, Measured
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


async def settled(
    runners: Sequence[Runner], measure: Callable[[Runner, Sequence[Runner]], Awaitable[Measured]]
) -> list[Runner]:
    """Each with its time by several rounds; nobody where they fail: what was known stands.

    A GPU that is kept busy gets slower: what counts is how the others did beside the first one, whose time stays.

    Args:
        measure: measures the first one, and all others in turns with it.
    """
    times_us: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        first, *rivals = *runners[number % len(runners) :], *runners[: number % len(runners)]
        try:
            found = await measure(first, rivals)
        except GpuFailed:
            return []
        if found.outcome is not Outcome.MEASURED or len(found.rivals_us) != len(rivals):
            return []
        for one, time_us in zip((first, *rivals), (found.time_us, *found.rivals_us), strict=True):
            times_us.setdefault(one.ranked.candidate.name, []).append(time_us)
    took_us = {name: statistics.median(some) for name, some in times_us.items()}
    scale = runners[0].found.time_us / took_us[runners[0].ranked.candidate.name]
    return [
        replace(one, found=msgspec.structs.replace(one.found, time_us=scale * took_us[one.ranked.candidate.name]))
        for one in runners
    ]
