"""What a problem came to: the best of its rows, or a guess; and what rows are filed under.

Knows rows and candidates; no GPU, no build.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from buildd.devices import Gpu
from buildd.measuring import Measured
from buildd.profile_told import Chosen
from buildd.profiles import Outcome, Profile
from codegen.best import Setting
from codegen.gemm_survey import Case, Survey


def chosen_of(case: Case, rows: Mapping[str, Profile], *, known: bool, guess: str) -> Chosen:
    """The best that was measured and is right.

    Args:
        rows: of its candidates.
        known: nothing had to be measured.
        guess: what is taken where nothing was.
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
    """Of those that were tried just now, the likeliest that does work; of what nobody tried, the likeliest."""
    names = (ranked.candidate.name for ranked in case.ranked)
    return next((name for name in names if (name in tried or not tried) and name not in bad), "")


def setting_of(case: Case, survey: Survey, gpus: Sequence[Gpu]) -> Setting:
    """What a row of this case is filed under where these GPUs measure."""
    return Setting(
        gpu=gpus[0].name if gpus else "",
        driver=gpus[0].driver if gpus else "",
        toolkit=survey.toolkit,
        library=survey.library,
        flags=survey.flags[case.target],
        capability=gpus[0].capability if gpus else "",
    )


def row_of(setting: Setting, problem: str, candidate: str, found: Measured) -> Profile:
    """What was measured just now, as it is written down."""
    return Profile(
        setting=setting,
        problem=problem,
        candidate=candidate,
        outcome=found.outcome,
        time_us=found.time_us,
        spread=found.spread,
        error=found.error,
        checked=found.outcome is Outcome.MEASURED,
        workspace_bytes=found.workspace_bytes,
        samples=found.samples,
        measured_ns=time.time_ns(),
        note=found.note,
    )
