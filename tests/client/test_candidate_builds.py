"""Candidates built through the daemon: who is asked for when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from buildd.client import candidate_builds
from buildd.client import connect as connecting
from buildd.client.candidate_builds import Built, ThroughDaemon
from protocol import messages as m
from tests.support.carry_out import request_for
from tests.support.waiting import until_async

DEADLINE_S = 30.0
DONE = m.Done(outcome=m.Outcome.BUILT, hits=1)
STARTED = m.Started(job_id=m.JobId(1), action="k.o", command="nvcc")


class Daemon:
    """Says of each request what it is told to, when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.turns: dict[str, list[tuple[threading.Event, Any]]] = {}
        monkeypatch.setattr(connecting, "connect", lambda *_, **__: SimpleNamespace(instance="it", close=lambda: None))
        monkeypatch.setattr(candidate_builds, "submit_through", self._submit)

    def _submit(self, _: Any, request: m.Request) -> Iterator[Any]:
        (name,) = request.targets
        self.asked.append(name)
        for may, body in self.turns[name]:
            assert may.wait(DEADLINE_S)
            yield SimpleNamespace(body=body)


def test_what_is_found_comes_one_by_one_and_what_is_made_keeps_nobody_waiting(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_builds, "LOOKS_S", DEADLINE_S)
    daemon, names = Daemon(monkeypatch), ["made", "found", "next", "last"]
    steps = {(name, body): threading.Event() for name in names for body in ("started", "done")}
    for name in names:
        started = [(steps[name, "started"], STARTED)] if name == "made" else []
        daemon.turns[name] = [*started, (steps[name, "done"], DONE)]
    request = request_for(tmp_path, store=str(tmp_path))

    async def asked(count: int) -> None:
        await until_async(lambda: len(daemon.asked) >= count, f"{count} are asked")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert daemon.asked == names[:count]

    async def work() -> list[Built]:
        builder = ThroughDaemon({})
        builds = [
            asyncio.create_task(builder.build(msgspec.structs.replace(request, targets=(name,)))) for name in names
        ]
        await asked(2)
        steps["made", "started"].set()
        await asked(3)
        steps["found", "done"].set()
        await asked(4)
        for step in steps.values():
            step.set()
        return await asyncio.gather(*builds)

    built = asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
    assert [one.outcome for one in built] == [m.Outcome.BUILT] * 4
