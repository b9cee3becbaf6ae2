"""Both engines, held to one contract: a tool's status, lines, environment, end and figures."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from buildd.cluster.parcel import Parcel
from buildd.processes.executor import BegunTool, Executor
from buildd.processes.launch import EndReason, Launch
from buildd.processes.runner import Runner
from tests.support.waiting import until_async

DEADLINE_S = 60.0
ENVIRONMENT = (("PATH", "/usr/bin:/bin"), ("WORD", "a word"))


class Heard:
    """A listener that keeps what it hears, and when."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.came = asyncio.Event()

    def __call__(self, stream: str, text: str) -> None:
        self.lines.append((stream, text))
        self.came.set()


Case = Callable[[Callable[[], Executor], Path], Awaitable[None]]


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def hold(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Case], None]:
    """Runs a case with an engine."""
    if request.param == "local":

        async def locally(case: Case) -> None:
            runner = Runner(grace_s=0.3, linger_s=0.3)
            try:
                await asyncio.wait_for(case(lambda: runner, tmp_path), DEADLINE_S)
            finally:
                await runner.close()

        return lambda case: asyncio.run(locally(case))
    address = request.getfixturevalue("address")

    async def away(case: Case) -> None:
        import sys

        from buildd.cluster.ray_engine import RayEngine
        from buildd.cluster.ray_settings import RaySettings

        engine = RayEngine(RaySettings(address, sys.executable), dict(os.environ))
        try:
            engine.wake()
            await until_async(lambda: engine.slots() > 0, timeout_s=DEADLINE_S)
            await asyncio.wait_for(case(lambda: engine.lane(Parcel()), tmp_path), DEADLINE_S)
        finally:
            await engine.close()

    return lambda case: asyncio.run(away(case))


def shell(script: str, cwd: Path, **more: object) -> Launch:
    return Launch(("sh", "-c", script), str(cwd), ENVIRONMENT, **more)  # type: ignore[arg-type]


Hold = Callable[[Case], None]


def test_status_streams_environment_and_folder(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        heard = Heard()
        script = 'echo "$WORD in $(pwd)"; echo problem >&2; echo "${HOME-nothing}"; exit 3'
        exit = await engine().begin(shell(script, folder), heard).wait()
        assert (exit.status, exit.signal, exit.ok, exit.lost) == (3, 0, False, False)
        assert exit.stdout == f"a word in {folder}\nnothing\n".encode() and exit.stderr == b"problem\n"
        assert sorted(heard.lines) == [
            ("stderr", "problem"),
            ("stdout", f"a word in {folder}"),
            ("stdout", "nothing"),
        ]

    hold(case)


def test_a_line_arrives_while_the_tool_runs(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        heard = Heard()
        gate = folder / "gate"
        script = f"echo first; while [ ! -e {gate} ]; do sleep 0.05; done; printf last"
        tool = engine().begin(shell(script, folder), heard)
        await heard.came.wait()
        assert heard.lines == [("stdout", "first")]
        gate.touch()
        exit = await tool.wait()
        assert exit.ok and heard.lines == [("stdout", "first"), ("stdout", "last")]

    hold(case)


def test_input_comes_from_the_payload(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        payload = bytes(range(256)) * 1024
        exit = await engine().begin(shell("wc -c; wc -c", folder, payload=payload), Heard()).wait()
        assert exit.stdout.split() == [b"262144", b"0"]
        assert (await engine().begin(shell("cat", folder), Heard()).wait()).stdout == b""

    hold(case)


def test_a_kill_ends_the_whole_tree(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        ids = folder / "ids"
        tool = engine().begin(shell(f"sleep 600 & echo $! $$ > {ids}; echo ready; wait", folder), heard := Heard())
        await heard.came.wait()
        pids = [int(word) for word in ids.read_text().split()]
        tool.kill(EndReason.CANCELLED)
        exit = await tool.wait()
        assert exit.cancelled and not exit.ok and not exit.lost
        await until_async(lambda: not any(map(_lives, pids)), timeout_s=DEADLINE_S)

    hold(case)


def test_a_tool_that_takes_too_long_is_ended(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        began_s = time.monotonic()
        exit = await engine().begin(shell("sleep 600", folder, timeout_s=0.5), Heard()).wait()
        assert exit.timed_out and not exit.ok and time.monotonic() - began_s < DEADLINE_S / 2

    hold(case)


def test_a_signal_is_told_as_a_shell_tells_it(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        exit = await engine().begin(shell("kill -SEGV $$", folder), Heard()).wait()
        assert (exit.status, exit.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)

    hold(case)


def test_what_a_tool_leaves_behind_does_not_hold_it_up(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        ids = folder / "id"
        exit = await engine().begin(shell(f"sleep 600 & echo $! > {ids}", folder), Heard()).wait()
        assert exit.ok
        pid = int(ids.read_text())
        await until_async(lambda: not _lives(pid), timeout_s=DEADLINE_S)

    hold(case)


def test_figures_are_measured(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        script = "import time; held = bytearray(96 << 20); time.sleep(0.2)"
        launch = Launch(("python3", "-I", "-S", "-c", script), str(folder), ENVIRONMENT)
        exit = await engine().begin(launch, Heard()).wait()
        assert exit.ok and exit.timing.wall_s >= 0.2 and exit.timing.peak_rss_bytes > 96 << 20

    hold(case)


def test_many_at_once_each_have_their_own_end(hold: Hold) -> None:
    async def case(engine: Callable[[], Executor], folder: Path) -> None:
        tools: list[BegunTool] = [engine().begin(shell(f"echo {n}; exit {n % 7}", folder), Heard()) for n in range(40)]
        exits = await asyncio.gather(*(tool.wait() for tool in tools))
        assert [(exit.status, exit.stdout) for exit in exits] == [(n % 7, f"{n}\n".encode()) for n in range(40)]

    hold(case)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
