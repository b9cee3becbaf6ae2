"""The reports of `buildd profile`: each candidate, the kernel chosen for each problem, and the whole call.

For people and `--json`. Knows rows; measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from buildd.store.profiles import Outcome, Profile
from codegen.tuning.survey import Case


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate of a problem: built, measured, failed or skipped."""

    target: str
    problem: str
    candidate: str
    outcome: str
    """A value of `profiles.Outcome`; or "built" if nothing was to be measured, "not measured" or "skipped"."""
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    note: str = ""
    built: bool = False
    """It was compiled for this problem, not found."""
    began_s: float = 0.0
    """When its compile began, from the beginning of the call; 0 if it was found."""
    cpu_s: float = 0.0
    """Processor time of its compile, on all cores together."""
    ready_s: float = 0.0
    """When its library was ready, from the beginning of the call."""
    measured_s: float = 0.0
    """When it was measured, from the beginning of the call; 0 if it was not."""
    gpu: str = ""
    """Index of the GPU that it was measured on; after the name of its node if that is another machine."""
    gpu_s: float = 0.0
    """How long that GPU was taken for it."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel chosen for a problem."""

    target: str
    problem: str
    candidate: str = ""
    """Empty if no candidate is known to work."""
    time_us: float = 0.0
    """0: a guess, not measured."""
    gpu: str = ""
    known: bool = False
    """No candidate had to be measured."""
    tried: int = 0
    of: int = 0
    tflops: float = 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole call."""

    wall_s: float
    built: int
    hits: int
    measured: int
    measuring_s: float
    gpu_idle: float
    """Share of the GPUs' time, from the first ready candidate to the last measurement, in which none measured."""
    gpu_unused: float
    """Share of the same time in which a candidate was ready and a GPU did not measure one. In the rest of `gpu_idle`
    no candidate was ready: it was still being compiled."""
    failed: int
    skipped: int = 0
    """Candidates not compiled: a measured one is faster than their estimates."""
    dropped: bool = False
    """The profiles were emptied meanwhile, or could not be written: measurements are lost."""


Told = Tried | Chosen


def chosen_of(case: Case, rows: Mapping[str, Profile], *, known: bool, guess: str) -> Chosen:
    """The fastest candidate whose result was right.

    Args:
        rows: of the problem's candidates.
        known: nothing had to be measured.
        guess: the candidate to take if none was measured.
    """
    whole = [row for row in rows.values() if row.outcome is Outcome.MEASURED and row.checked]
    best = min(whole, key=lambda row: row.time_us, default=None)
    if best is None:
        return Chosen(target=case.target, problem=case.problem, candidate=guess, tried=len(rows), of=len(case.ranked))
    return Chosen(
        target=case.target,
        problem=case.problem,
        candidate=best.candidate,
        time_us=best.time_us,
        gpu=best.setting.gpu,
        known=known,
        tried=len(rows),
        of=len(case.ranked),
        tflops=1e-6 * case.operations / best.time_us,
    )


def likeliest(case: Case, tried: Collection[str], bad: Collection[str]) -> str:
    """The likeliest candidate that works: among those tried just now, or among all if none was tried."""
    names = (ranked.candidate.name for ranked in case.ranked)
    return next((name for name in names if (name in tried or not tried) and name not in bad), "")


def chosen_words(told: Chosen) -> str:
    """The result of a problem, to follow the target's name."""
    if not told.candidate:
        return f"no kernel for {told.problem} is known to work"
    if not told.time_us:
        return f"{told.candidate} is the most promising, not measured"
    known = ", known" if told.known else ""
    rate = f"{told.time_us:.1f} us, {told.tflops:.0f} TFLOP/s"
    return f"{told.candidate}, {rate}, the best of {told.tried} tried on {told.gpu}{known}"
