"""Looks the actions of requests up in the store, the urgent ones first, and tells the state machine what was found.

Knows builds that have a plan; what a look-up does to one is the build's own (`ActiveBuild.look_all`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from buildd.builds import shared_results
from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Failure
from buildd.keys.lookup import Found
from buildd.scheduling.execution import Execution
from buildd.scheduling.tasks import Tasks
from buildd.scheduling.travel import travels
from buildd.state.events import Hit, LookUp, Missed, StateEvent, Undeliverable
from buildd.state.machine import State
from buildd.tier.fetcher import Fetched
from protocol import messages as m

LOOK_BATCH = 32
"""Look-ups done by one thread before their answers go back to the loop."""


class LookUps:
    """The look-ups of one scheduler.

    Args:
        executions: the jobs that run; look-ups that nothing waits for begin after them.
        counters: of the scheduler; counts hits.
        cpus: how many look-ups at the beginning of a build may lead to jobs at once.
        in_pool: runs a function in a worker thread.
        feed: gives the state machine an event.
        may_travel: there are other machines that run jobs.
    """

    def __init__(
        self,
        state: State,
        executions: Mapping[m.JobId, Execution],
        counters: dict[str, int],
        cpus: int,
        in_pool: Callable[..., Awaitable[Any]],
        feed: Callable[[StateEvent], None],
        tasks: Tasks,
        *,
        may_travel: bool = False,
    ) -> None:
        self._state, self._executions, self._counters, self._cpus = state, executions, counters, cpus
        self._in_pool, self._feed, self._tasks = in_pool, feed, tasks
        self._may_travel = may_travel

    def is_hit(self, build: ActiveBuild) -> bool:
        """Whether all of a build was found while it was planned. If so, tell it, and the state machine has no work."""
        found = build.found_ahead
        if found is None:
            return False
        self._hit(build, 0, found)
        return True

    async def look_up(self, build: ActiveBuild, several: list[LookUp]) -> None:
        """Look actions of one build up."""
        first = [look for look in several if look.node in build.urgent] or several[: self._cpus]
        # Alone, until the jobs that it leads to run: threads would share the time.
        await self._look(build, first)
        await asyncio.gather(*(e.begun.wait() for e in self._executions.values() if e.build is build))
        done = {look.node for look in first}
        rest = [look for look in several if look.node not in done]
        for start in range(0, len(rest), LOOK_BATCH):
            self._tasks.spawn(self._look(build, rest[start : start + LOOK_BATCH]), build.request.request_id)

    async def _look(self, build: ActiveBuild, batch: list[LookUp]) -> None:
        for answer in build.looked_ahead(batch) or await self._in_pool(build.look_all, batch):
            if build.request.request_id not in self._state.requests:
                return
            index, found, problem = answer
            asked = shared_results.begin(build, index) if found is None and problem is None else None
            if asked is None:
                self._tell(build, *answer)
            else:
                self._tasks.spawn(self._look_in_tier(build, index, asked), build.request.request_id)

    async def _look_in_tier(self, build: ActiveBuild, index: int, asked: Future[Fetched | None]) -> None:
        """Wait for the tier, no longer than the job would take, and look again if it had the result."""
        name = build.request.request_id
        _, late = await asyncio.wait({asyncio.wrap_future(asked)}, timeout=shared_results.deadline_s(build, index))
        if name not in self._state.requests:
            return
        answer: tuple[int, Found | None, tuple[str, str] | None] = (index, None, None)
        if shared_results.settle(build, index, asked, is_over=bool(late)):
            (answer,) = await self._in_pool(build.look_all, [LookUp(name, index, fresh=False)])
        if name in self._state.requests:
            self._tell(build, *answer)

    def _tell(self, build: ActiveBuild, index: int, found: Found | None, problem: tuple[str, str] | None) -> None:
        name = build.request.request_id
        if problem:
            build.report.tell_failed(m.JobId(0), index, Failure(m.FailureKind.STORE, *problem))
            self._feed(Undeliverable(name, index))
        elif found is not None:
            self._hit(build, index, found)
            self._feed(Hit(name, index))
        elif build.is_proof and not build.plan.actions[index].traces:
            build.counts.done += 1
            build.report.tell_would_run(index)
            self._feed(Undeliverable(name, index))
        else:
            resources = build.resources[index]
            where = f"{build.store.folder}\0{build.project}\0{build.outputs.roots}"
            in_flight_key = f"{where}\0{build.misses[index].first}"
            is_in_steps = bool(build.plan.actions[index].steps) and index not in build.runs_whole
            self._feed(
                Missed(
                    name,
                    index,
                    in_flight_key,
                    resources.cpus,
                    resources.memory_bytes,
                    steps=is_in_steps,
                    travels=self._may_travel and travels(build, index),
                )
            )

    def _hit(self, build: ActiveBuild, index: int, found: Found) -> None:
        build.counts.done += 1
        self._counters["step_hits" if build.is_steps else "hits"] += 1
        build.report.tell_hit(index, found.result)
