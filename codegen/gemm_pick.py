"""Which candidates of several problems are tried: the likeliest, what others compile anyway, and when to stop.

Knows estimates and times; builds and measures nothing. A compile costs core-seconds and a measurement a fraction of a
second of a GPU that would wait: so what is compiled for one problem is measured for every problem that it might suit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen.capability import height, runs_on
from codegen.gemm_candidates import Ranked
from codegen.gemm_survey import Case, compiled_for

UNLIKELY = 2.5
"""Candidates whose estimate is beyond this much of the best one's are tried only where all are."""
WORTH_MEASURING = UNLIKELY
"""Candidates of another problem are measured up to this much of the best estimate: where few tiles wait for the memory
estimates are off by as much, and a measurement costs next to nothing beside a compile."""
_LEAST_MEASURED = 3
"""So many times have to be known before they say how far the estimates are off."""
_GAIN = 0.98
"""What a candidate has to promise, as a share of the best time, to be worth its compile."""


def for_capability(cases: Iterable[Case], capability: str) -> dict[str, Case]:
    """Of each target that runs on such a GPU the architecture that its entry point would take there.

    Args:
        capability: "9.0".
    """
    found: dict[str, Case] = {}
    for case in cases:
        known = found.get(case.target)
        if runs_on(case.arch, capability) and (known is None or height(known.arch) < height(case.arch)):
            found[case.target] = case
    return found


def likely(case: Case, top: int) -> tuple[Ranked, ...]:
    """The candidates of a problem that are worth a compile.

    Args:
        top: at most so many.
    """
    most_us = case.ranked[0].estimate_us * UNLIKELY if case.ranked else 0.0
    return tuple(ranked for ranked in case.ranked if ranked.estimate_us <= most_us)[:top]


def likely_of(cases: Sequence[Case], top: int, room: int = 0) -> list[tuple[Ranked, ...]]:
    """For each problem the candidates that are worth a compile.

    Args:
        top: of each problem so many of its own.
        room: where all of these are fewer compiles, there are more until they are as many: those that are nearest to
            the best estimate of their problem. They cost next to no time where processors would wait otherwise.
    """
    found = [list(likely(case, top)) for case in cases]
    built = {compiled_for(case, ranked) for case, some in zip(cases, found, strict=True) for ranked in some}
    spare = [
        (ranked.estimate_us / max(case.ranked[0].estimate_us, 1e-9), number, ranked)
        for number, case in enumerate(cases)
        for ranked in likely(case, len(case.ranked))[top:]
    ]
    for _, number, ranked in sorted(spare, key=lambda one: one[:2]):
        name = compiled_for(cases[number], ranked)
        if len(built) < room and name not in built:
            built.add(name)
            found[number].append(ranked)
    return [tuple(some) for some in found]


def shared(cases: Sequence[Case], chosen: Sequence[tuple[Ranked, ...]]) -> list[tuple[Ranked, ...]]:
    """For each problem what the others' likely candidates bring it: kernels that are compiled anyway.

    Args:
        chosen: of each problem (`likely_of`).
    """
    built = {compiled_for(case, ranked) for case, some in zip(cases, chosen, strict=True) for ranked in some}
    found: list[tuple[Ranked, ...]] = []
    for case, some in zip(cases, chosen, strict=True):
        own = {ranked.kernel for ranked in some}
        most_us = min((ranked.estimate_us for ranked in case.ranked), default=0.0) * WORTH_MEASURING
        found.append(
            tuple(
                ranked
                for ranked in case.ranked
                if ranked.kernel not in own and ranked.estimate_us <= most_us and compiled_for(case, ranked) in built
            )
        )
    return found


def cannot_win(estimate_us: float, measured: Iterable[tuple[float, float]]) -> bool:
    """Whether a candidate is not worth its compile after what was measured of the same problem.

    The estimates are a picture of a typical GPU. Taken as optimistic as the most flattering of the measurements makes
    them, they bound what a candidate can reach; until a few are known there is no bound.

    Args:
        measured: estimate and time of each candidate, in microseconds.
    """
    known = [(estimate, time) for estimate, time in measured if estimate > 0 and time > 0]
    if len(known) < _LEAST_MEASURED:
        return False
    flattering = min(time / estimate for estimate, time in known)
    return estimate_us * flattering > _GAIN * min(time for _, time in known)
