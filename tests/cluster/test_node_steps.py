"""The processes below a tool are seen with their names and times; a job on a node tells of them at its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.cluster import node_task
from buildd.cluster.node_steps import MOST_STEPS, Steps, _Seen
from buildd.cluster.parcel import Parcel
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from buildd.cluster.remote_tool import RemoteTool
from buildd.processes.launch import Launch
from tests.support.waiting import until_async


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def test_a_process_is_one_step_however_often_it_is_seen(child: subprocess.Popen[bytes]) -> None:
    steps = Steps()
    for size_bytes in (1, 9, 4):
        steps.look({child.pid: size_bytes, 1 << 30: 7})
    ((name, start_s, wall_s, peak_bytes),) = steps.found()
    assert (name, peak_bytes) == ("cat", 9) and start_s >= 0 and wall_s >= 0


def test_shells_and_processes_that_have_ended_are_no_steps() -> None:
    shell = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    steps = Steps()
    steps.look({shell.pid: 1, ended.pid: 1})
    shell.communicate(b"")
    ended.wait()
    assert steps.found() == ()


def test_a_tool_with_many_processes_has_the_first_ones(child: subprocess.Popen[bytes]) -> None:
    steps = Steps()
    steps._seen = dict.fromkeys(((-number, 0) for number in range(MOST_STEPS)), _Seen(0.0))
    steps.look({child.pid: 1})
    assert len(steps._seen) == MOST_STEPS


def test_a_job_on_a_node_tells_its_steps(tmp_path: Path) -> None:
    """The step waits at a pipe until the node has looked: a sign of life comes after a look."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    spec = {
        "files": {},
        "folder": str(tmp_path / "job"),
        "outputs": (),
        "depfiles": (),
        "environment": ((b"PATH", b"/usr/bin:/bin"),),
        "argv": [b"/bin/sh", b"-c", b'cat "$1"; exit 0', b"sh", os.fsencode(gate)],
        "cwd": os.fsencode(tmp_path),
        "payload": b"",
        "umask": 0o022,
        "timeout_s": 120.0,
        "search": (),
    }
    is_open, found = False, {}
    for kind, *rest in node_task.run(spec, lambda *_: None, Steps):
        if kind == "beat" and not is_open:
            is_open = True
            gate.write_bytes(b"")
        if kind == "ended":
            (found,) = rest
    assert is_open and found["status"] == 0
    ((name, start_s, wall_s, peak_bytes),) = found["steps"]
    assert name == "cat" and 0 <= start_s < found["figures"][0] and wall_s > 0 and peak_bytes > 0


@pytest.mark.ray
def test_steps_come_back_from_a_node_of_ray(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run() -> None:
        engine = RayEngine(RaySettings(address, sys.executable), dict(os.environ))
        try:
            engine.wake()
            await until_async(lambda: engine.slots() > 0, "a node is there", 60.0)
            launch = Launch(("sh", "-c", f"cat {gate}; exit 0"), str(tmp_path), (("PATH", "/usr/bin:/bin"),))
            tool = engine.lane(Parcel()).begin(launch, lambda *_: None)
            await until_async(lambda: tool.memory_bytes > 0, "its node tells that it lives", 60.0)
            gate.write_bytes(b"")
            assert (await tool.wait()).ok
            assert isinstance(tool, RemoteTool) and tool.found is not None
            assert [name for name, *_ in tool.found.steps] == ["cat"]
        finally:
            await engine.close()

    asyncio.run(run())
