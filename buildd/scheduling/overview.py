"""What each open request does right now: for `buildd status`, and for the status line of `buildd run`.

Reads copies of the loop's collections, since the control thread asks. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.execution import Execution
from buildd.state.machine import State
from protocol import messages as m


def running_jobs(executions: Mapping[m.JobId, Execution], now_s: float) -> Iterator[m.JobStatus]:
    """The jobs that hold resources. A job whose steps are jobs of their own is left out for those."""
    for number, execution in list(executions.items()):
        if not execution.is_spread:
            yield m.JobStatus(
                job_id=number,
                action=execution.action.name,
                elapsed_s=now_s - execution.started_s,
                expected_s=execution.expected_s,
                memory_bytes=execution.memory_bytes,
            )


def open_requests(
    builds: Mapping[m.RequestId, ActiveBuild],
    executions: Mapping[m.JobId, Execution],
    state: State,
    now_s: float,
) -> Iterator[m.RequestStatus]:
    """The requests that are being built, in the order in which they came."""
    running: dict[m.RequestId, list[Execution]] = {}
    waiting: dict[m.RequestId, int] = {}
    for job in list(state.jobs.values()):
        execution = executions.get(job.id)
        for follower, _ in tuple(job.followers):
            if execution is not None:
                running.setdefault(follower, []).append(execution)
            else:
                waiting[follower] = waiting.get(follower, 0) + 1
    for name, build in list(builds.items()):
        if build.is_steps:
            continue
        request, its = build.request, running.get(name, [])
        is_compile = request.mode is m.Mode.COMPILE and bool(build.plan.actions)
        since_s = min((each.started_s for each in its), default=now_s) if is_compile else build.begun_s
        yield m.RequestStatus(
            request_id=name,
            build_id=request.build_id,
            mode=request.mode,
            project=request.project,
            what=build.plan.actions[0].inputs[0] if is_compile else " ".join(request.targets),
            elapsed_s=now_s - since_s,
            expected_s=build.resources[0].wall_s if is_compile else 0.0,
            jobs_running=len(its),
            jobs_waiting=waiting.get(name, 0),
        )
