"""Delivers the files of jobs to the builds that follow them: a job's folder stays until the last build has its files.

Knows jobs that ended and the builds that follow them; tells the state machine nothing (`scheduler`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import INTERNAL_FAULT
from buildd.errors import BuilddError
from buildd.scheduling.execution import Execution
from buildd.state.machine import State
from protocol import messages as m
from protocol.problem import message_and_step

_log = logging.getLogger(__name__)


class Deliveries:
    """Deliveries of all jobs.

    Args:
        executions: all jobs that run or are delivered; those that are put away leave it.
        in_pool: runs a function in a worker thread.
    """

    def __init__(self, executions: dict[m.JobId, Execution], in_pool: Callable[..., Awaitable[Any]]) -> None:
        self._executions = executions
        self._in_pool = in_pool
        self._left: Counter[m.JobId] = Counter()
        """How many followers of each job have not got its files yet."""
        self._turns: defaultdict[m.JobId, asyncio.Lock] = defaultdict(asyncio.Lock)

    def expect(self, job: m.JobId) -> None:
        """Keep a job's folder for one more delivery."""
        self._left[job] += 1

    async def deliver(self, build: ActiveBuild, index: int, execution: Execution) -> tuple[str, str] | None:
        """Hand a job's files to a follower; the problem (what, next step) where that fails."""
        try:
            # One follower after another: if two builds of one project put the same file there, the second one would
            # replace what the first one's next job reads already, and that job's result would not be stored.
            async with self._turns[execution.number]:
                await self._in_pool(build.hand_over, index, execution.ran)
        except (OSError, BuilddError) as error:
            return message_and_step(error)
        except Exception:  # the edge: a fault of buildd's must not leave the client waiting
            _log.exception("delivering job %s failed inside", execution.number)
            return INTERNAL_FAULT
        return None

    async def delivered(self, execution: Execution) -> None:
        """Count a delivery that was expected as done, well or not."""
        self._left[execution.number] -= 1
        await self.put_away(execution)

    @staticmethod
    def waited_for(build: ActiveBuild, index: int, state: State) -> str:
        """The name of the last action that ran and whose files this one reads; empty if there is none."""
        asked = state.requests.get(build.request.request_id)
        if asked is None or not build.delivered:
            return ""
        ran = [each for each in asked.nodes[index].spec.depends if each in build.delivered]
        return build.plan.actions[max(ran, key=build.delivered.__getitem__)].name if ran else ""

    async def put_away(self, execution: Execution) -> None:
        """Remove a job that has ended, unless deliveries are expected."""
        if self._left[execution.number]:
            return
        del self._left[execution.number]
        self._turns.pop(execution.number, None)
        # A job that was put back in line has a new execution under the same number already.
        if self._executions.get(execution.number) is execution:
            del self._executions[execution.number]
        await self._in_pool(execution.close)
