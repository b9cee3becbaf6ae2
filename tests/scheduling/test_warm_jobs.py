"""Jobs that may fork a process which has imported their package, and the switch that keeps them from it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from codegen.plan import Action, Knowledge, Plan, Tool, ToolFile
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.warm_worker import DEADLINE_S, LIBRARY, WORKER


@pytest.mark.parametrize("place", ["shell", "buildd.toml"])
def test_warm_workers_may_be_turned_off(tmp_path: Path, place: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "library.py").write_text(LIBRARY)

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        """One job of the worker, which is a fresh process or a fork of a warm one."""
        action = Action(
            name="job",
            kind="worker",
            tool="worker",
            argv=(sys.executable, str(tmp_path / "worker.py")),
            environment=(("PATH", "/usr/bin:/bin"), ("PYTHONPATH", str(tmp_path))),
            warm=True,
            uncacheable="each job says where it ran",
        )
        worker = Tool(name="worker", files=(ToolFile(role="worker", path=str(tmp_path / "worker.py")),))
        return Plan(targets=("t",), actions=(action,), tools=(worker,))

    workspace = Workspace(tmp_path, make=make)

    async def is_forked(harness: Harness, **request: object) -> bool:
        story = await harness.build(workspace.request(**request))
        assert story.done.outcome is m.Outcome.BUILT, story
        (line,) = [line.text for line in story.of(m.LogLine) if line.stream == "stdout"]
        return not json.loads(line)["fresh"]

    async def told() -> list[bool]:
        async with Harness(workspace) as harness:
            deadline_s = time.monotonic() + DEADLINE_S
            while not await is_forked(harness):
                assert time.monotonic() < deadline_s, "no job is forked"
            environment, file = workspace.set_in(place, BUILDD_WARM_WORKERS="0")
            return [await is_forked(harness, environment=environment, file=file) for _ in range(3)]

    assert asyncio.run(told()) == [False] * 3
