"""The requests that carry out the steps of jobs. The jobs wait for their outcomes.

Knows names and futures; the scheduler acts on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.step_request import StepRequest
from buildd.state.events import StateEvent, Submitted
from protocol.messages import JobId, Outcome, RequestId


class InnerRequests:
    """All of them that have not ended.

    Args:
        builds: what is being built, by request; they are added to it.
        feed: gives the state machine an event.
    """

    def __init__(self, builds: dict[RequestId, ActiveBuild], feed: Callable[[StateEvent], None]) -> None:
        self._builds = builds
        self._feed = feed
        self._outcomes: dict[RequestId, asyncio.Future[Outcome]] = {}

    async def carry_out(self, inner: StepRequest, job: JobId, done: frozenset[int]) -> Outcome:
        """Submit the steps of a job that are not done, and wait for the outcome."""
        build, name = inner.build, inner.build.request.request_id
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outcomes[name] = outcome
        self._builds[name] = build
        self._feed(Submitted(name, build.graph(), build.request.priority, owner=job, done=done))
        return await outcome

    def ended(self, name: RequestId, outcome: Outcome) -> None:
        """Let the job go on that waits for a request. Raises KeyError if the request is none of these."""
        future = self._outcomes.pop(name)
        if not future.done():
            future.set_result(outcome)

    def fail(self, name: RequestId, error: BaseException) -> None:
        """Let the job fail that waits for a request, if the request is one of these."""
        future = self._outcomes.get(name)
        if future is not None and not future.done():
            future.set_exception(error)
