"""Deliveries: what a job has made is handed to one follower after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.deliveries import Deliveries
from buildd.scheduling.execution import Execution
from protocol import messages as m


def test_two_followers_of_one_job_do_not_put_its_files_there_at_once() -> None:
    """The second one would replace what the first one's next job reads already."""
    events: list[str] = []

    async def in_pool(function: Callable[..., Any], *arguments: Any) -> Any:
        events.append("begun")
        await asyncio.sleep(0)  # as a thread, it gives the other deliveries time to begin
        function(*arguments)
        events.append("ended")

    async def deliver() -> list[tuple[str, str] | None]:
        job = m.JobId(1)
        execution = cast(Execution, SimpleNamespace(number=job, ran=None, close=lambda: None))
        executions = {job: execution}
        deliveries = Deliveries(executions, in_pool)
        build = cast(ActiveBuild, SimpleNamespace(hand_over=lambda index, ran: None))
        for _ in range(3):
            deliveries.expect(job)
        problems = await asyncio.gather(*(deliveries.deliver(build, 0, execution) for _ in range(3)))
        assert events == ["begun", "ended"] * 3
        for _ in range(3):
            await deliveries.delivered(execution)
        assert not executions
        return list(problems)

    assert asyncio.run(deliver()) == [None] * 3
