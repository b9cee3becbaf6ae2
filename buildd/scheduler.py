"""The shell around `state`: carries its instructions out and feeds back what came of them.

Knows how a request becomes a plan, jobs and a last event; knows no socket. All of it runs on one event loop; what
touches files runs in a few threads. What happens before anything runs is `intake`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from buildd import restored
from buildd.admission import Ask, Budget, Running
from buildd.arrivals import Arrivals
from buildd.building import OUR_FAULT, Building
from buildd.chained import Chained
from buildd.claims import Claims
from buildd.compiling import Compiling
from buildd.errors import BuilddError, told
from buildd.eventlog import RequestLog
from buildd.execution import Execution
from buildd.gate import Gate
from buildd.inner import Inner
from buildd.intake import Intake
from buildd.launch import KillReason as RunnerKill
from buildd.planner import Make
from buildd.products import Failure
from buildd.runner import Runner
from buildd.state import State
from buildd.steps import (
    Attach,
    Cancelled,
    Complete,
    Deliver,
    Delivered,
    Ended,
    Ending,
    Hit,
    Instruction,
    Kill,
    KillReason,
    LookUp,
    Missed,
    NodeFailed,
    Released,
    Relieve,
    Retry,
    Start,
    StateEvent,
    Submitted,
    Tick,
    Undeliverable,
)
from buildd.stepwise import Spread
from codegen.aitemplate_flags import job_cap
from codegen.environment import Settings
from protocol import messages as m

_log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_BATCH = 32
"""Look-ups done by one thread before their answers go back to the loop."""
COUNTED = ("requests", "hits", "misses", "failures", "step_hits", "step_misses", "whole")
"""Of actions, of their steps, and of actions that ran as one process though others of their kind run in steps."""
BUILD = m.Priority.BUILD
PROGRESS_S = 0.5


class Scheduler:
    """Builds requests. Made and used on one event loop.

    Args:
        cpus: CPU tokens; by default those that this process may use.
        memory_cap_bytes: never admit beyond this, whatever the host has; 0 means no cap.
        default_store: store of requests that name none.
        store_limit_bytes: size bound of every store; None means the store's own default.
        make: makes plans, see `Planner`.
    """

    def __init__(
        self,
        *,
        default_store: Path,
        cpus: int = 0,
        memory_cap_bytes: int = 0,
        store_limit_bytes: int | None = None,
        make: Make | None = None,
    ) -> None:
        self.runner = Runner()
        self.claims = Claims()
        self.cpus = cpus or len(os.sched_getaffinity(0))
        self.gate = Gate(Budget(self.cpus, memory_cap_bytes), self.claims, short=self.runner.spare)
        self.state = State(self._admit, cpus=self.cpus)
        self.buildings: dict[m.RequestId, Building] = {}
        self.executions: dict[m.JobId, Execution] = {}
        self.counters: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._arrivals = Arrivals()
        self._delivering: dict[m.JobId, int] = {}
        self._steps: dict[m.RequestId, asyncio.Future[m.Outcome]] = {}
        """Outcomes that jobs wait for whose steps are requests of their own."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(max_workers=max(2, min(8, self.cpus)), thread_name_prefix="files")
        self._ticker: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.intake = Intake(
            self.runner,
            self._in_pool,
            default_store=default_store,
            store_limit_bytes=store_limit_bytes,
            make=make,
        )

    # ---------------------------------------------------------------- the outside

    def submit(self, request: m.Request, log: RequestLog) -> None:
        """Begin a request; everything that happens is appended to `log`, at last a `Done`."""
        self.counters["requests"] += 1
        self._arrivals.begin(request)
        self._spawn(self._serve(request, log))

    def cancel(self, request_id: m.RequestId) -> bool:
        """Cancel a request; False when there is none of that name."""
        if self._arrivals.cancel(request_id):
            return True
        if request_id not in self.buildings:
            return self.intake.watches.end(request_id)
        self._feed(Cancelled(request_id))
        return True

    def cancel_all(self) -> None:
        for request_id in [*self._arrivals.names, *(name for name, each in self.buildings.items() if not each.inner)]:
            self.cancel(request_id)

    @property
    def idle(self) -> bool:
        return not self._tasks and not self.buildings

    async def close(self) -> None:
        """End what runs, forget everything, close the stores."""
        self.cancel_all()
        await self.intake.watches.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks), timeout=10)
        if self._ticker is not None:
            self._ticker.cancel()
        await self.runner.close()
        self._pool.shutdown()
        self.claims.close()
        self.intake.close()

    def rest(self) -> None:
        """Nothing is being built: write down what is known and give memory back."""
        self.gate.rest()
        self.intake.rest()

    # ---------------------------------------------------------------- a request's way

    async def _serve(self, request: m.Request, log: RequestLog) -> None:
        try:
            building = await self.intake.receive(request, log)
        finally:
            arrival = self._arrivals.end(request.request_id)
        for before in arrival.replaces:
            if building is None or arrival.cancelled or before in self._arrivals:
                self.cancel(before)
        if building is None or arrival.cancelled:
            if building is not None:
                building.tell_done(m.Outcome.CANCELLED)
            elif log.done is not None:
                self.counters["hits"] += log.done.hits
            elif arrival.cancelled:
                self.intake.watches.end(request.request_id)
            return
        self.buildings[request.request_id] = building
        self.counters["hits"] += len(building.carried)
        self._feed(
            Submitted(
                request.request_id,
                building.graph(),
                request.priority,
                request.jobs or job_cap(Settings(request_env=request.environment, strict=False)) or 0,
                request.keep_going,
                replaces=arrival.replaces,
                done=building.carried,
            )
        )
        self._tick_on()

    # ---------------------------------------------------------------- instructions

    def _feed(self, event: StateEvent) -> None:
        self._carry_out(self.state.handle(event))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        looks: dict[m.RequestId, list[LookUp]] = {}
        for instruction in instructions:
            match instruction:
                case LookUp():
                    looks.setdefault(instruction.request, []).append(instruction)
                case Attach():
                    self._attached(instruction)
                case Start():
                    self._start(instruction)
                case Kill():
                    reason = RunnerKill.CANCELLED if instruction.reason is KillReason.CANCELLED else RunnerKill.MEMORY
                    self.executions[instruction.job].kill(reason)
                case Deliver():
                    self._delivering[instruction.job] = self._delivering.get(instruction.job, 0) + 1
                    self._spawn(self._deliver(instruction))
                case Retry():
                    self._retried(instruction)
                case NodeFailed():
                    self._failed(instruction)
                case Complete():
                    self._spawn(self._complete(instruction))
        for request, several in looks.items():
            self._spawn(self._look_up(self.buildings[request], several))

    async def _look_up(self, building: Building, several: list[LookUp]) -> None:
        first = [look for look in several if look.node in building.urgent] or several[: self.cpus]
        # Alone, until what came of it runs: threads would share the time.
        await self._look(building, first)
        await asyncio.gather(*(e.begun.wait() for e in self.executions.values() if e.building is building))
        done = {look.node for look in first}
        rest = [look for look in several if look.node not in done]
        for start in range(0, len(rest), LOOK_BATCH):
            self._spawn(self._look(building, rest[start : start + LOOK_BATCH]))

    async def _look(self, building: Building, batch: list[LookUp]) -> None:
        for index, found, problem in await self._in_pool(building.look_all, batch):
            if building.request.request_id not in self.state.requests:
                return
            action = building.plan.actions[index]
            if problem:
                building.tell_failed(m.JobId(0), index, Failure(m.FailureKind.STORE, *problem))
                self._feed(Undeliverable(building.request.request_id, index))
            elif found is not None:
                building.counts.done += 1
                self.counters["step_hits" if building.inner else "hits"] += 1
                building.tell_hit(index, found.result)
                self._feed(Hit(building.request.request_id, index))
            else:
                resources = building.resources[index]
                flight = f"{building.store.folder}\0{building.project}\0{building.misses[index].first}"
                self._feed(
                    Missed(
                        building.request.request_id,
                        index,
                        flight,
                        resources.cpus,
                        resources.memory_bytes,
                        steps=bool(action.steps) and index not in building.runs_whole,
                    )
                )

    def _attached(self, attach: Attach) -> None:
        building = self.buildings[attach.request]
        if building.inner:
            return
        action = building.plan.actions[attach.node]
        shared = len(self.state.jobs[attach.job].followers) > 1 if attach.job in self.state.jobs else False
        building.log.append(
            m.Queued(
                job_id=attach.job,
                action=action.name,
                reasons=building.misses[attach.node].reasons,
                expected_s=building.resources[attach.node].wall_s,
                shared=shared,
            )
        )

    def _start(self, start: Start) -> None:
        building = self.buildings[start.request]
        action = building.plan.actions[start.node]
        make: Callable[..., Execution] = Execution
        if start.spread:
            make = partial(
                Spread,
                submit=lambda inner: self._submit_steps(inner, start.job),
                cancel=lambda inner: self._feed(Cancelled(inner)),
            )
        elif action.steps and start.node not in building.runs_whole:
            make = partial(Chained, looked=self._count_steps)
        execution = make(
            start.job,
            building,
            start.node,
            final=start.final,
            tell=lambda body: self._tell(start.job, body),
            released=lambda: self._feed(Released(start.job)),
            in_pool=self._in_pool,
        )
        self.executions[start.job] = execution
        if start.node not in building.started:
            building.started.add(start.node)
            building.counts.misses += 1
            self.counters["step_misses" if building.inner else "misses"] += 1
            self.counters["whole"] += bool(action.whole)
        self._spawn(self._run(execution))

    def _count_steps(self, hits: int, misses: int) -> None:
        self.counters["step_hits"] += hits
        self.counters["step_misses"] += misses

    async def _submit_steps(self, inner: Inner, job: m.JobId) -> m.Outcome:
        request_id = inner.request.request_id
        ended: asyncio.Future[m.Outcome] = self._loop.create_future()
        self._steps[request_id] = ended
        self.buildings[request_id] = inner
        self._feed(Submitted(request_id, inner.graph(), inner.request.priority, owner=job))
        return await ended

    async def _run(self, execution: Execution) -> None:
        try:
            ending = await execution.run(self.runner)
        except Exception:  # the edge: whatever happened, the followers get an answer
            _log.exception("job %s failed inside; what led here:\n%s", execution.number, self.state.story)
            ending = Ending.FAILED
        execution.begun.set()
        exit = execution.exit
        if exit is not None and execution.building.is_on("AIT_TIME_COMPILATION"):
            self._tell(
                execution.number, m.LogLine(job_id=execution.number, stream="stderr", text=execution.time_line())
            )
        if ending is Ending.SUCCESS and exit is not None and not execution.building.inner:
            self._tell(execution.number, execution.finished(exit))
        self._feed(Ended(execution.number, ending))
        if not self._delivering.get(execution.number):
            await self._put_away(execution)

    async def _put_away(self, execution: Execution) -> None:
        # A job that was put back in line has a new execution under the same number already.
        if self.executions.get(execution.number) is execution:
            del self.executions[execution.number]
        await self._in_pool(execution.close)

    async def _deliver(self, deliver: Deliver) -> None:
        building = self.buildings[deliver.request]
        execution = self.executions[deliver.job]
        problem: tuple[str, str] | None = None
        try:
            await self._in_pool(building.hand_over, deliver.node, execution.ran)
        except (OSError, BuilddError) as error:
            problem = told(error)
        except Exception:  # the edge, as above
            _log.exception("delivering job %s failed inside", deliver.job)
            problem = OUR_FAULT
        if building.request.request_id in self.state.requests:
            if problem:
                building.tell_failed(deliver.job, deliver.node, Failure(m.FailureKind.STORE, *problem))
                self._feed(Undeliverable(deliver.request, deliver.node))
            else:
                building.counts.done += 1
                self._feed(Delivered(deliver.request, deliver.node))
        self._delivering[deliver.job] -= 1
        if not self._delivering[deliver.job]:
            del self._delivering[deliver.job]
            await self._put_away(execution)

    def _retried(self, retry: Retry) -> None:
        alone = retry.ending is Ending.OUT_OF_MEMORY
        words = "ran out of memory; runs again alone" if alone else "gave way because memory is short; runs again"
        execution = self.executions.get(retry.job)
        if execution is not None:
            text = f"{execution.action.name}: {words}"
            self._tell(retry.job, m.Notice(text=text, severity=m.Severity.WARNING))

    def _failed(self, failed: NodeFailed) -> None:
        building = self.buildings[failed.request]
        execution = self.executions.get(failed.job)
        if execution is None:
            return  # told where it was found out
        self.counters["failures"] += not building.inner
        failure = execution.failure or Failure(m.FailureKind.INTERNAL, *OUR_FAULT)
        building.tell_failed(failed.job, failed.node, replace(failure, exit=execution.exit))

    async def _complete(self, complete: Complete) -> None:
        building = self.buildings.pop(complete.request)
        if building.inner:
            self._steps.pop(complete.request).set_result(complete.outcome)
            return
        building.tell_end(complete.outcome)
        if complete.outcome is m.Outcome.BUILT:
            for artifact in building.artifacts():
                building.log.append(artifact)
        building.tell_progress(0, "", 0.0)
        failures = f"{building.counts.failures} of {len(building.plan.actions)} actions failed"
        with self.intake.watches.ending(complete.request), self.intake.recording(building.request):
            building.tell_done(complete.outcome, message=failures if complete.outcome is m.Outcome.FAILED else "")
            await self.intake.heard(building.request)
            try:  # first: what is looked at for the record was not seen by the build
                await self.intake.watches.learn(building, complete.outcome)
            except Exception:  # the edge: a watch that knows less still looks at its files, and the build is done
                _log.exception("what %s has seen was not learned", complete.request)
            try:
                await self._in_pool(_keep, building, complete.outcome)
            except Exception:  # the edge: what is written here only saves time, and the build is done
                _log.exception("what is known of %s was not kept", complete.request)
            await self._in_pool(building.keep_log)

    # ---------------------------------------------------------------- admission, samples, progress

    def _admit(self, cpus: int, memory_bytes: int, alone: bool, running: int) -> str:
        return self.gate.refusal(Ask(cpus, memory_bytes, alone), self._running())

    def _running(self) -> list[Running]:
        return [
            Running(
                job.id,
                job.cpus,
                job.memory_bytes,
                self._memory_of(job.id),
                job.alone,
                self.buildings[job.lead[0]].request.priority if job.lead and job.lead[0] in self.buildings else BUILD,
                self.executions[job.id].started_s if job.id in self.executions else 0.0,
            )
            for job in self.state.running
        ]

    def _memory_of(self, job: m.JobId) -> int:
        execution = self.executions.get(job)
        return execution.memory_bytes if execution is not None else 0

    def _tick_on(self) -> None:
        if self._ticker is None or self._ticker.done():
            self._ticker = self._loop.create_task(self._tick())

    async def _tick(self) -> None:
        """Lives while something is being built: an idle daemon has no timer."""
        told_s = 0.0
        while self.buildings:
            await asyncio.sleep(self.gate.look_after_s)
            victim = self.gate.relieve(self._running())
            if victim is not None:
                self._feed(Relieve(victim))
            self._feed(Tick())
            now_s = time.monotonic()
            if now_s - told_s >= PROGRESS_S:
                told_s = now_s
                for building in self.buildings.values():
                    if not building.inner:
                        self._tell_progress(building)

    def _tell_progress(self, building: Building) -> None:
        asked = self.state.requests.get(building.request.request_id)
        if asked is None:
            return
        left_s = sum(node.spec.wall_s for node in asked.nodes if node.state.value in ("waiting", "looking"))
        for job in self.state.jobs.values():
            if any(follower[0] == asked.id for follower in job.followers):
                execution = self.executions.get(job.id)
                spent_s = time.monotonic() - execution.started_s if execution else 0.0
                index = next(i for r, i in job.followers if r == asked.id)
                left_s += max(0.0, building.resources[index].wall_s - spent_s)
        building.tell_progress(asked.running, self.state.waiting_for, left_s / max(1, self.cpus))

    # ---------------------------------------------------------------- helpers

    def _tell(self, job_id: m.JobId, body: m.EventBody) -> None:
        job = self.state.jobs.get(job_id)
        for request, _ in job.followers if job is not None else ():
            self.buildings[request].log.append(body)

    async def _in_pool(self, work: Callable[..., T], *args: object) -> T:
        return await self._loop.run_in_executor(self._pool, work, *args)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "a task of the scheduler failed; what led here:\n%s", self.state.story, exc_info=task.exception()
            )


def _keep(building: Building, outcome: m.Outcome) -> None:
    """Write down what was learned from a request that was built."""
    building.close()
    building.notebook.write()
    if outcome is m.Outcome.BUILT:
        building.remember() if isinstance(building, Compiling) else restored.keep(building)
    building.files.save()
