"""Chooses the candidates to try for several problems: the likeliest, those compiled for other problems, and when to
stop.

Knows estimates and times; builds and measures nothing. A compile costs core-seconds, a measurement a fraction of a
second of an otherwise idle GPU. So a kernel compiled for one problem is measured for every problem that it might suit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen.gemm.candidates import Ranked
from codegen.gemm.capability import height, runs_on
from codegen.tuning.survey import Case, compiled_for

UNLIKELY = 2.5
"""Candidates whose estimate exceeds the best one by this factor are tried only if all are."""
WORTH_MEASURING = UNLIKELY
"""Candidates of another problem are measured up to this factor of the best estimate. If few tiles wait for memory,
estimates are off by as much, and a measurement costs almost nothing compared with a compile."""
_LEAST_MEASURED = 3
"""Fewest measured times that can show how far the estimates are off."""
_GAIN = 0.98
"""A candidate is worth its compile if it promises at most this share of the best time."""


def for_capability(cases: Iterable[Case], capability: str) -> dict[str, Case]:
    """Return, for each target that runs on a GPU, the case of the architecture that its entry point selects there.

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
    """Return the candidates of a problem that are worth a compile.

    Args:
        top: most candidates.
    """
    most_us = case.ranked[0].estimate_us * UNLIKELY if case.ranked else 0.0
    return tuple(ranked for ranked in case.ranked if ranked.estimate_us <= most_us)[:top]


def likely_of(cases: Sequence[Case], top: int, room: int = 0) -> list[tuple[Ranked, ...]]:
    """Return, for each problem, the candidates that are worth a compile.

    Args:
        top: most candidates of each problem.
        room: if these need fewer compiles than `room`, the candidates nearest to the best estimate of their problem are
            added. They cost almost no time on otherwise idle processors.
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
    """Return, for each problem, the useful kernels among those compiled for other problems.

    Args:
        chosen: the chosen candidates of each problem (`likely_of`).
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
    """Tell whether measurements of the same problem show that a candidate is not worth its compile.

    The estimates model a typical GPU. Scaled by the most flattering measurement, they bound the time that a candidate
    can reach. With few measurements there is no bound.

    Args:
        measured: estimate and time of each candidate, in microseconds.
    """
    known = [(estimate, time) for estimate, time in measured if estimate > 0 and time > 0]
    if len(known) < _LEAST_MEASURED:
        return False
    flattering = min(time / estimate for estimate, time in known)
    return estimate_us * flattering > _GAIN * min(time for _, time in known)
