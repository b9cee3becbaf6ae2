"""Tells the requests that wait for a job about it: that it is queued, runs again, or has ended.

Decides nothing: it reads the state machine, and appends to the requests' logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.deliveries import Deliveries
from buildd.scheduling.execution import Execution
from buildd.scheduling.progress import Progress
from buildd.shims import run_log
from buildd.state.events import Attach, Ending, Retry
from buildd.state.machine import State
from protocol import messages as m


class Followers:
    """The requests that wait for jobs.

    Args:
        builds: all requests.
        executions: the jobs that run.
        deliveries: knows for what an action waited.
        progress: learns from each job's time.
    """

    def __init__(
        self,
        state: State,
        builds: Mapping[m.RequestId, ActiveBuild],
        executions: Mapping[m.JobId, Execution],
        deliveries: Deliveries,
        progress: Progress,
    ) -> None:
        self._state = state
        self._builds = builds
        self._executions = executions
        self._deliveries = deliveries
        self._progress = progress
        self._told: dict[m.JobId, Counter[tuple[str, str]]] = {}
        """The lines that lost runs have told, of jobs that are to run again."""

    def queued(self, attach: Attach) -> None:
        """An action missed, and a job will run for it."""
        build = self._builds[attach.request]
        if build.is_steps:
            return
        action = build.plan.actions[attach.node]
        shared = len(self._state.jobs[attach.job].followers) > 1 if attach.job in self._state.jobs else False
        build.log.append(
            m.Queued(
                job_id=attach.job,
                action=action.name,
                reasons=build.misses[attach.node].reasons,
                expected_s=build.resources[attach.node].wall_s,
                shared=shared,
                after=self._deliveries.waited_for(build, attach.node, self._state),
            )
        )

    def tell(self, job_id: m.JobId, body: m.EventBody) -> None:
        """Add an event to the log of each request that waits for a job."""
        job = self._state.jobs.get(job_id)
        for request, _ in job.followers if job is not None else ():
            self._builds[request].log.append(body)

    def runs_again(self, retry: Retry) -> None:
        """A job has to run once more."""
        execution = self._executions.get(retry.job)
        match retry.ending:
            case Ending.LOST:
                why = execution.why_lost if execution is not None else ""
                # A job that nobody waits for any more does not run again.
                self._told = {job: lines for job, lines in self._told.items() if job in self._state.jobs}
                if execution is not None:
                    self._told[retry.job] = execution.told
                words = f"{why}; runs again here" if why else ""
            case Ending.OUT_OF_MEMORY:
                words = "ran out of memory; runs again alone"
            case _:
                words = "gave way because memory is short; runs again"
        if execution is not None and words:
            text = f"{execution.action.name}: {words}"
            self.tell(retry.job, m.Notice(text=text, severity=m.Severity.WARNING))

    def told_before(self, job_id: m.JobId) -> Counter[tuple[str, str]]:
        """The lines (stream, text) that a lost run of a job has told; the run that begins now does not repeat them."""
        return self._told.pop(job_id, Counter())

    def ended(self, execution: Execution, ending: Ending) -> None:
        """A job has ended: its times, and what it made. A failure is told where each request learns of it."""
        exit = execution.exit
        if exit is None or ending is Ending.LOST:
            return
        build = execution.build
        if build.has_caller and not build.is_steps:
            run_log.note_times(build.store.folder, build.request.build_id, execution.time_lines())
        elif build.is_on("AIT_TIME_COMPILATION"):
            for line in execution.time_lines():
                self.tell(execution.number, m.LogLine(job_id=execution.number, stream="stderr", text=line))
        if ending is Ending.SUCCESS and not execution.build.is_steps:
            self._progress.learn(execution.build, execution.expected_s, exit.timing.wall_s)
            self.tell(execution.number, execution.finished(exit))
