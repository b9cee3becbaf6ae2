"""Which kind of job carries an action out: on another machine, in steps that are shared, in steps one after another, or
as one process.

Knows the kinds and what each needs of the scheduler; runs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.execution import Execution
from buildd.scheduling.step_chain import ChainedJob
from buildd.scheduling.step_jobs import SpreadJob
from buildd.scheduling.step_request import StepRequest
from buildd.state.events import Start
from protocol import messages as m

if TYPE_CHECKING:
    from buildd.cluster.ray_engine import RayEngine


def kind_of(
    build: ActiveBuild,
    start: Start,
    *,
    cluster: RayEngine | None,
    submit: Callable[[StepRequest, m.JobId, frozenset[int]], Awaitable[m.Outcome]],
    cancel: Callable[[m.RequestId], object],
    looked: Callable[[int, int], None],
    may_widen: Callable[[m.JobId], bool],
) -> Callable[..., Execution]:
    """Return what makes the job that an instruction of the state machine starts.

    Args:
        cluster: the other machines; there is one if the instruction sends the job away.
        submit: submits the steps of a job as a request that it owns, and waits for the outcome; the last argument names
            the steps that are done.
        cancel: cancels that request.
        looked: counts hits and misses of steps that run one after another.
        may_widen: whether a job that runs its steps one after another had better be spread by now.
    """
    if start.away:
        from buildd.scheduling.away_job import AwayJob  # most users have no cluster

        assert cluster is not None
        return partial(AwayJob, engine=cluster)
    steps: dict[str, Any] = {"submit": lambda inner, done: submit(inner, start.job, done), "cancel": cancel}
    if start.spread:
        return partial(SpreadJob, **steps)
    if build.plan.actions[start.node].steps and start.node not in build.runs_whole:
        return partial(ChainedJob, **steps, looked=looked, may_widen=partial(may_widen, start.job))
    return Execution
