"""The shell around the state machine: carries its instructions out and feeds their results back as events.

Knows how a request becomes a plan, jobs and a last event; knows no socket. `intake` takes a request before anything
runs, `job_kinds` chooses how a job runs, `completion` ends a request. Runs on one event loop; two threads touch files:
with eight, which share the interpreter with the loop, each of many hits took a third longer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from buildd.builds.active_build import ActiveBuild
from buildd.builds.event_log import RequestLog
from buildd.builds.planner import Make
from buildd.builds.products import INTERNAL_FAULT, Failure
from buildd.host.admission import Budget
from buildd.host.claims import Claims
from buildd.host.gate import HostGate
from buildd.processes.launch import EndReason
from buildd.processes.runner import Runner
from buildd.processes.tool_host import ToolHost
from buildd.scheduling.arrivals import Arrivals
from buildd.scheduling.completion import Completion
from buildd.scheduling.deliveries import Deliveries
from buildd.scheduling.execution import Execution
from buildd.scheduling.followers import Followers
from buildd.scheduling.inner_requests import InnerRequests
from buildd.scheduling.intake import Intake
from buildd.scheduling.job_kinds import kind_of
from buildd.scheduling.look_ups import LookUps
from buildd.scheduling.open_stores import OpenStores
from buildd.scheduling.progress import Progress
from buildd.scheduling.refusal import refuse
from buildd.scheduling.start_order import StartOrder
from buildd.scheduling.tasks import Tasks
from buildd.state.events import (
    Attach,
    Cancelled,
    Complete,
    Deliver,
    Delivered,
    Ending,
    Hit,
    Instruction,
    JobEnded,
    Kill,
    KillCause,
    LookUp,
    Missed,
    NodeFailed,
    Released,
    Retry,
    Start,
    StateEvent,
    Submitted,
    Undeliverable,
)
from buildd.state.machine import State
from buildd.state.nodes import PlanCycle
from buildd.tier.tier import Tier
from codegen.variables.aitemplate_flags import job_cap
from protocol import messages as m

if TYPE_CHECKING:
    from buildd.cluster.ray_engine import RayEngine

_log = logging.getLogger(__name__)
T = TypeVar("T")

COUNTED = ("requests", "hits", "misses", "failures", "step_hits", "step_misses", "whole")
"""Counters of actions, of their steps, and (`whole`) of actions that ran as one process though others of their kind run
in steps."""


class Scheduler:
    """Builds requests. Created and used on one event loop.

    Args:
        cpus: CPU tokens; by default those that this process may use.
        memory_cap_bytes: never admit beyond this, whatever the host has; 0 means no cap.
        default_store: store of requests that name none.
        store_limit_bytes: size bound of every store; None means the store's own default.
        make: makes plans, see `Planner`.
        tier: where results of other machines are, if the user has named one.
        cluster: runs jobs on other machines, if the user has named one.
    """

    def __init__(
        self,
        *,
        default_store: Path,
        cpus: int = 0,
        memory_cap_bytes: int = 0,
        store_limit_bytes: int | None = None,
        make: Make | None = None,
        tier: Tier | None = None,
        cluster: RayEngine | None = None,
    ) -> None:
        self.runner = Runner()
        self.claims = Claims()
        self.cpus = cpus or len(os.sched_getaffinity(0))
        self.gate = HostGate(Budget(self.cpus, memory_cap_bytes), self.claims, short=self.runner.spare)
        self.cluster = cluster
        self.state = State(
            lambda *asked: self._progress.refusal(*asked),
            cpus=self.cpus,
            slots=cluster.slots if cluster is not None else lambda _: 0,
            noted=partial(_log.debug, "%s"),
        )
        self.builds: dict[m.RequestId, ActiveBuild] = {}
        self.executions: dict[m.JobId, Execution] = {}
        self.counters: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._arrivals = Arrivals()
        self._start_order = StartOrder(self._feed)
        self._deliveries = Deliveries(self.executions, self._in_pool)
        self._inner = InnerRequests(self.builds, self._feed)
        self._tasks = Tasks(self._failed_inside, lambda: self.state.story)
        # They share the interpreter with the loop: with eight, each of many hits took a third longer than with two.
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="files")
        self._loop = asyncio.get_running_loop()
        self.stores = OpenStores(
            self.runner, self._in_pool, default=default_store, limit_bytes=store_limit_bytes, make=make, tier=tier
        )
        settings = cluster.settings if cluster is not None else None
        self.intake = Intake(self.stores, self._in_pool, self.runner, settings)
        self._look_ups = LookUps(
            self.state,
            self.executions,
            self.counters,
            self.cpus,
            self._in_pool,
            self._feed,
            self._tasks,
            may_travel=cluster is not None,
        )
        self._completion = Completion(self.intake, self._in_pool, lambda: bool(self.builds or self._arrivals.names))
        self._progress: Progress = Progress(self.state, self.gate, self.builds, self.executions, self._feed, self.cpus)
        self._followers = Followers(self.state, self.builds, self.executions, self._deliveries, self._progress)

    # ---------------------------------------------------------------- the outside

    def submit(self, request: m.Request, log: RequestLog, host: ToolHost | None = None, caller: int = 0) -> None:
        """Begin a request; all its events are appended to `log`, the last one a `Done`. Its tools run below `host`.
        Compiles start in the order in which their callers' processes were started, where nothing else decides."""
        self.counters["requests"] += 1
        self._arrivals.add(request)
        if request.mode is m.Mode.COMPILE:
            self._start_order.came(request.request_id, caller, is_idle=not self.executions)
        self._tasks.spawn(self._serve(request, log, host), request.request_id)

    def cancel(self, request_id: m.RequestId) -> bool:
        """Cancel a request; False when there is none of that name."""
        if self._arrivals.cancel(request_id):
            return True
        if request_id not in self.builds:
            return self.intake.end(request_id)
        self._feed(Cancelled(request_id))
        return True

    def cancel_all(self) -> None:
        for request_id in [*self._arrivals.names, *(name for name, each in self.builds.items() if not each.is_steps)]:
            self.cancel(request_id)

    @property
    def idle(self) -> bool:
        return not self._tasks and not self.builds and not self.intake.profiles

    async def close(self) -> None:
        """End all jobs and watches, close the stores."""
        self.cancel_all()
        await self.intake.watches.close()
        await self.intake.profiles.close()
        await self._tasks.all_ended()
        self._progress.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.runner.close()
        self._pool.shutdown()
        self.claims.close()
        self.stores.close()

    def rest(self) -> None:
        """Write down what is known and give memory back, while nothing is being built."""
        self.gate.rest()
        self.stores.rest(keep_plans=bool(len(self.intake.watches)))

    # ---------------------------------------------------------------- a request's way

    async def _serve(self, request: m.Request, log: RequestLog, host: ToolHost | None) -> None:
        try:
            await self._begin(request, log, host)
        except Exception as error:  # the edge: the client must not wait in vain
            _log.exception("request %s could not begin; what led here:\n%s", request.request_id, self.state.story)
            self._give_up(request.request_id, log, error)
        if request.request_id not in self.builds:
            self._start_order.ended(request.request_id)

    async def _begin(self, request: m.Request, log: RequestLog, host: ToolHost | None) -> None:
        arrival = self._arrivals[request.request_id]
        try:
            build = await self.intake.receive(request, log, is_unwanted=lambda: arrival.cancelled)
        finally:
            self._arrivals.forget(request.request_id)
        for before in arrival.replaces:
            if build is None or arrival.cancelled or before in self._arrivals:
                self.cancel(before)
        if build is None or arrival.cancelled:
            if build is not None:
                build.report.tell_done(m.Outcome.CANCELLED)
            elif log.done is not None:
                self.counters["hits"] += log.done.hits
            elif arrival.cancelled and not self.intake.end(request.request_id):
                log.append(m.Done(outcome=m.Outcome.CANCELLED))
            return
        build.host = host
        if self._look_ups.is_hit(build):
            return await self._end(build, m.Outcome.BUILT)
        if self.cluster is not None:
            self.cluster.wake()
        self.builds[request.request_id] = build
        self.counters["hits"] += len(build.carried)
        self._feed(
            Submitted(
                request.request_id,
                build.graph(),
                request.priority,
                request.jobs or job_cap(build.settings) or 0,
                request.keep_going or build.is_proof,
                replaces=arrival.replaces,
                done=build.carried,
            )
        )
        self._progress.keep_on()

    # ---------------------------------------------------------------- instructions

    def _feed(self, event: StateEvent) -> None:
        if isinstance(event, Missed) and self._start_order.holds(event):
            return
        try:
            self._carry_out(self.state.handle(event))
            if isinstance(event, Hit | Missed):
                self._progress.looked_up(event.request)
        except PlanCycle:
            raise  # of one request alone
        except Exception as error:  # the edge: the lost instructions may have been of any request
            _log.exception("a %s could not be handled; what led here:\n%s", type(event).__name__, self.state.story)
            for name, build in list(self.builds.items()):
                self._give_up(name, build.log, error)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        looks: dict[m.RequestId, list[LookUp]] = {}
        for instruction in instructions:
            match instruction:
                case LookUp():
                    looks.setdefault(instruction.request, []).append(instruction)
                case Attach():
                    self._followers.queued(instruction)
                case Start():
                    self._start(instruction)
                case Kill():
                    is_cancelled = instruction.cause is KillCause.CANCELLED
                    self.executions[instruction.job].kill(EndReason.CANCELLED if is_cancelled else EndReason.MEMORY)
                case Deliver():
                    self._deliveries.expect(instruction.job)
                    self._tasks.spawn(self._deliver(instruction), instruction.request)
                case Retry():
                    self._followers.runs_again(instruction)
                case NodeFailed():
                    self._failed(instruction)
                case Complete():
                    self._tasks.spawn(self._complete(instruction), instruction.request)
        for request, several in looks.items():
            self._tasks.spawn(self._look_ups.look_up(self.builds[request], several), request)

    def _start(self, start: Start) -> None:
        build = self.builds[start.request]
        make = kind_of(
            build,
            start,
            cluster=self.cluster,
            submit=self._inner.carry_out,
            cancel=lambda inner: self._feed(Cancelled(inner)),
            looked=self._count_steps,
            may_widen=self.state.may_widen,
        )
        execution = make(
            start.job,
            build,
            start.node,
            final=start.final,
            tell=lambda body: self._followers.tell(start.job, body),
            released=lambda: self._feed(Released(start.job)),
            in_pool=self._in_pool,
        )
        execution.said_before = self._followers.told_before(start.job)
        self.executions[start.job] = execution
        if start.node not in build.started:
            build.started.add(start.node)
            build.counts.misses += 1
            self.counters["step_misses" if build.is_steps else "misses"] += 1
            self.counters["whole"] += bool(build.plan.actions[start.node].whole)
        self._tasks.spawn(self._run(execution), start.request)

    def _count_steps(self, hits: int, misses: int) -> None:
        self.counters["step_hits"] += hits
        self.counters["step_misses"] += misses

    async def _run(self, execution: Execution) -> None:
        host = execution.build.host
        try:
            async with nullcontext(self.runner) if host is None else host.lent() as runner:
                ending = await execution.run(runner)
            execution.begun.set()
            self._followers.ended(execution, ending)
            if ending is not Ending.SUCCESS:  # nobody takes its files, and the next job may need their room on the disk
                await self._in_pool(execution.close)
        except Exception:  # the edge: whatever happened, the followers get an answer
            _log.exception("job %s failed inside; what led here:\n%s", execution.number, self.state.story)
            ending = Ending.FAILED
        execution.begun.set()
        self._feed(JobEnded(execution.number, ending, execution.needs_bytes))
        await self._deliveries.put_away(execution)

    async def _deliver(self, deliver: Deliver) -> None:
        build, execution = self.builds[deliver.request], self.executions[deliver.job]
        problem = await self._deliveries.deliver(build, deliver.node, execution)
        if build.request.request_id in self.state.requests:
            if problem:
                build.report.tell_failed(deliver.job, deliver.node, Failure(m.FailureKind.STORE, *problem))
                self._feed(Undeliverable(deliver.request, deliver.node))
            else:
                build.counts.done += 1
                build.delivered[deliver.node] = len(build.delivered)
                self._feed(Delivered(deliver.request, deliver.node))
        await self._deliveries.delivered(execution)

    def _failed(self, failed: NodeFailed) -> None:
        build = self.builds[failed.request]
        execution = self.executions.get(failed.job)
        if execution is None:
            return  # the event was sent where the failure was noticed
        self.counters["failures"] += not build.is_steps
        failure = execution.failure or Failure(m.FailureKind.INTERNAL, *INTERNAL_FAULT)
        build.report.tell_failed(failed.job, failed.node, replace(failure, exit=execution.exit))

    async def _complete(self, complete: Complete) -> None:
        self._start_order.ended(complete.request)
        build = self.builds.pop(complete.request, None)
        if build is None:
            return  # given up before
        if build.is_steps:
            self._inner.ended(complete.request, complete.outcome)
        else:
            await self._end(build, complete.outcome)

    async def _end(self, build: ActiveBuild, outcome: m.Outcome) -> None:
        if build.host is not None:
            self._tasks.spawn(build.host.close(), build.request.request_id)
        try:
            await self._completion.complete(build, outcome)
        except Exception as error:
            refuse(build.log, m.Outcome.DAEMON_ERROR, error)
            raise

    def _failed_inside(self, request_id: m.RequestId, error: BaseException) -> None:
        build = self.builds.get(request_id)
        if build is not None:
            self._give_up(request_id, build.log, error)

    def _give_up(self, request_id: m.RequestId, log: RequestLog, error: BaseException) -> None:
        """End a request that met a fault of buildd's: the client gets its last event, its jobs are cancelled."""
        refuse(log, m.Outcome.DAEMON_ERROR, error)
        self._inner.fail(request_id, error)
        try:
            self._carry_out(self.state.handle(Cancelled(request_id)))
        except Exception:  # the edge: the state machine itself has the fault
            _log.exception("request %s could not be cancelled; what led here:\n%s", request_id, self.state.story)
            for execution in self.executions.values():
                if execution.build.request.request_id == request_id:
                    execution.kill(EndReason.CANCELLED)
        if request_id in self.builds:
            self._tasks.spawn(self._complete(Complete(request_id, m.Outcome.CANCELLED)), request_id)

    # ---------------------------------------------------------------- helpers

    async def _in_pool(self, work: Callable[..., T], *args: object) -> T:
        return await self._loop.run_in_executor(self._pool, work, *args)
