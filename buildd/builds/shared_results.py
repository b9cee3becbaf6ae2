"""Results of a build's actions in the shared tier: which are asked for, and which are offered to it.

An action that missed in the store is asked for by its first-level key. What the tier has goes into the store, and the
look-up is made again: it alone decides. Knows no carrier and no record.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from buildd.builds.active_build import ActiveBuild
from buildd.keys.lookup import Found, Missing
from buildd.store.result_rows import Result
from buildd.tier.fetcher import Fetched, waits_s
from codegen.plan import Kept
from protocol import messages as m

LEAST_STEP_S = 0.3
"""Steps that take less are made where they are needed."""


def begin(build: ActiveBuild, index: int) -> Future[Fetched | None] | None:
    """Ask the tier for an action that has missed; None where it is not asked."""
    if build.tier is None or index not in build.misses or build.request.recache:
        return None
    action, missing = build.results.asked_as(index)
    if action.uncacheable or action.kept is not Kept.FILES:
        return None
    expected_s = _expected_s(build, index)
    if build.is_steps and expected_s < LEAST_STEP_S:
        return None
    return build.tier.fetcher.begin(
        missing.first, partial(build.inputs.aside.fitting, action, build.tool(action), missing.first), expected_s
    )


def deadline_s(build: ActiveBuild, index: int) -> float:
    """How long an action waits for the tier."""
    return waits_s(_expected_s(build, index))


def settle(build: ActiveBuild, index: int, asked: Future[Fetched | None], *, is_over: bool) -> bool:
    """Whether the action is worth another look-up, now that the tier has answered or nobody waits any more.

    Args:
        is_over: the time is over.
    """
    assert build.tier is not None
    if not asked.done():
        if is_over:
            build.tier.count_late()
        return False
    found = None if asked.cancelled() else asked.result()
    if found is not None and found.words:
        build.shared[index] = found.words
    return found is not None


def look(build: ActiveBuild, index: int) -> Found | Missing:
    """As `ActiveBuild.look`, also in the tier. In a worker thread, which waits. Raises as that does."""
    answer = build.look(index, fresh=False)
    asked = begin(build, index) if isinstance(answer, Missing) else None
    if asked is None:
        return answer
    try:
        asked.result(timeout=deadline_s(build, index))
    except TimeoutError:
        pass
    return build.look(index, fresh=False) if settle(build, index, asked, is_over=True) else answer


def offer(build: ActiveBuild, first: m.Digest, result: Result) -> None:
    """Have a result written to the tier that a job of this build has just stored."""
    uploader = build.tier.uploader if build.tier is not None else None
    if uploader is not None and not (build.is_steps and result.timing.wall_s < LEAST_STEP_S):
        uploader.offer(first, result.key)


def _expected_s(build: ActiveBuild, index: int) -> float:
    """How long the job would take, or what the tier's user wants to wait at least."""
    least_s = build.tier.tier.least_job_s if build.tier is not None else 0.0
    return max(least_s, build.resources[index].wall_s)
