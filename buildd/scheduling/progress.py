"""Works while jobs run: it shows them to admission, reports when memory is short, and tells clients of progress.

Knows the clock and the gate; feeds the state machine, and carries out none of its instructions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Moment
from buildd.host.admission import Ask, Running
from buildd.host.confinement import Confinement
from buildd.host.gate import HostGate
from buildd.scheduling.execution import Execution
from buildd.state.events import Relieve, StateEvent, Tick
from buildd.state.forecast import Pace, open_runs, remaining_s
from buildd.state.machine import State
from buildd.state.nodes import NodeState, RequestGraph
from protocol import messages as m

_log = logging.getLogger(__name__)
PROGRESS_S = 0.5
"""Between two events that tell of a build's progress."""


class Progress:
    """The timer of a scheduler; an idle daemon has none.

    Args:
        state: the machine.
        gate: admission.
        builds: all requests that are being built.
        executions: all jobs that run.
        feed: gives the machine an event, and carries its instructions out.
        cpus: CPU tokens.
    """

    def __init__(
        self,
        state: State,
        gate: HostGate,
        builds: Mapping[m.RequestId, ActiveBuild],
        executions: Mapping[m.JobId, Execution],
        feed: Callable[[StateEvent], None],
        cpus: int,
    ) -> None:
        self._state = state
        self._gate = gate
        self._builds = builds
        self._executions = executions
        self._feed = feed
        self._cpus = cpus
        self._ticker: asyncio.Task[None] | None = None
        self._courses: dict[m.RequestId, _Course] = {}

    def refusal(self, cpus: int, memory_bytes: int, alone: bool, running: int, request: m.RequestId) -> str:
        """Why a job of a request may not start beside those that run; empty where it may."""
        return self._gate.refusal(Ask(cpus, memory_bytes, alone, self._limits_of(request)), self._running())

    def keep_on(self) -> None:
        """Tick from now on, as long as something is being built."""
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()

    def _running(self) -> list[Running]:
        return [
            Running(
                job.id,
                job.cpus,
                job.memory_bytes,
                self._memory_of(job.id),
                job.alone,
                self._priority_of(job.lead),
                self._executions[job.id].started_s if job.id in self._executions else 0.0,
                self._limits_of(job.lead[0]) if job.lead is not None else None,
                job.id in self._executions and self._executions[job.id].held,
            )
            for job in self._state.running
        ]

    def _memory_of(self, job: m.JobId) -> int:
        execution = self._executions.get(job)
        return execution.memory_bytes if execution is not None else 0

    def _limits_of(self, request: m.RequestId) -> Confinement | None:
        build = self._builds.get(request)
        return build.host.limits if build is not None and build.host is not None else None

    def _priority_of(self, lead: tuple[m.RequestId, int] | None) -> m.Priority:
        build = self._builds.get(lead[0]) if lead is not None else None
        return m.Priority.BUILD if build is None else build.request.priority

    async def _tick(self) -> None:
        told_s = 0.0
        while self._builds:
            await asyncio.sleep(self._gate.look_after_s)
            try:
                told_s = self._ticked(told_s)
            except Exception:  # the loop's edge: without ticks, jobs that wait for memory would wait for ever
                _log.exception("a tick failed; what led here:\n%s", self._state.story)

    def _ticked(self, told_s: float) -> float:
        """Do what is due at a tick; returns when clients were last told of progress."""
        for hold in self._gate.hold(self._running()):
            if (execution := self._executions.get(hold.job_id)) is not None:
                execution.hold(not hold.go_on)
        victim = self._gate.relieve(self._running())
        if victim is not None:
            self._feed(Relieve(victim))
        self._feed(Tick())
        now_s = time.monotonic()
        if now_s - told_s < PROGRESS_S:
            return told_s
        for build in self._builds.values():
            if not build.is_steps:
                self._tell(build)
        return now_s

    def learn(self, build: ActiveBuild, expected_s: float, taken_s: float) -> None:
        """Take in that a job of a build has ended well."""
        self._course(build).pace.learn(expected_s, taken_s)

    def looked_up(self, request: m.RequestId) -> None:
        """Tell of a build as soon as its first look-ups have all been answered: then it is known what runs."""
        build, asked = self._builds.get(request), self._state.requests.get(request)
        if build is None or asked is None or asked.looking or build.is_steps:
            return
        course = self._course(build)
        if not course.told:
            course.told = True
            self._tell(build)

    def _course(self, build: ActiveBuild) -> _Course:
        name = build.request.request_id
        if name not in self._courses:
            for gone in self._courses.keys() - self._builds.keys():
                del self._courses[gone]
        return self._courses.setdefault(name, _Course())

    def _tell(self, build: ActiveBuild) -> None:
        asked = self._state.requests.get(build.request.request_id)
        if asked is None:
            return
        course = self._course(build)
        course.open = open_runs(asked.nodes, course.open)
        eta_s = 0.0
        if not asked.looking or course.open:
            eta_s = remaining_s(asked.nodes, course.open, self._spent(asked), self._width(asked), course.pace.factor)
        ended = build.counts.done - build.counts.hits + build.counts.failures
        gate = self._gate
        build.report.tell_progress(
            Moment(
                running=asked.running,
                waiting_for=self._state.waiting_for,
                eta_s=eta_s,
                to_run=ended + len(course.open),
                memory_bytes=gate.memory_bytes,
                budget_bytes=gate.budget_bytes,
            )
        )

    def _spent(self, asked: RequestGraph) -> dict[int, float]:
        """Index -> how long its job has run, for the jobs of a request that run."""
        now_s = time.monotonic()
        found = {}
        for node in asked.nodes:
            execution = self._executions.get(node.job) if node.job is not None else None
            if execution is not None and node.state is NodeState.ATTACHED:
                found[node.index] = now_s - execution.started_s
        return found

    def _width(self, asked: RequestGraph) -> int:
        """How many jobs of a request may run at once: its own limit, and the CPUs that no other request uses."""
        others = len(self._state.running) - asked.running
        free = max(1, self._cpus - others, asked.running)
        return min(free, asked.most_jobs) if asked.most_jobs else free


@dataclass(slots=True)
class _Course:
    """What is remembered of a build between two reports."""

    open: set[int] = field(default_factory=set)
    """Actions that run, or will."""
    pace: Pace = field(default_factory=Pace)
    told: bool = False
