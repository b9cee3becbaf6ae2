"""The compiles that come at once start in the order in which their callers were started."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from buildd.builds.event_log import RequestLog
from buildd.scheduling import start_order
from buildd.scheduling.start_order import StartOrder
from buildd.state.events import Missed
from protocol import messages as m
from protocol.messages import RequestId
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.toolkit import host_compiler
from tests.support.waiting import until, until_async

A, B, C, D = (RequestId(name) for name in "abcd")
NOBODY = 1 << 23
"""No process has this number, or a larger one."""


def missed(name: RequestId) -> Missed:
    return Missed(name, 0, name, 1, 0)


class Line:
    """Three compiles that came while nothing ran, the last one first, and what was fed."""

    def __init__(self) -> None:
        self.fed: list[str] = []
        self.order = StartOrder(lambda event: self.fed.append(event.request))
        for number, name in enumerate((C, B, A)):
            self.order.came(name, NOBODY + 9 - number, is_idle=not number)

    def __call__(self, name: RequestId) -> bool:
        return self.order.holds(missed(name))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_order, "LONGEST_S", 60.0)


def in_loop(story: Callable[[], None]) -> None:
    async def run() -> None:
        story()

    asyncio.run(run())


def test_they_start_in_the_order_of_their_callers_once_each_is_known() -> None:
    def story() -> None:
        line = Line()
        assert [line(name) for name in (B, C, A)] == [True] * 3 and line.fed == [A, B, C]
        line.order.came(D, 1, is_idle=False)
        assert not line(A) and not line(D), "those that come later are as they come"

    in_loop(story)


@pytest.mark.parametrize("first", [True, False])
def test_one_that_is_a_hit_or_cancelled_is_not_waited_for(first: bool) -> None:
    def story() -> None:
        line = Line()
        assert line(C) and line(B) and not line.fed
        if first:
            line.order.ended(B)
            assert line(A) and line.fed == [A, C]
        else:
            line.order.ended(A)
            assert line.fed == [B, C]

    in_loop(story)


def test_none_waits_long_for_one_whose_files_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_order, "LONGEST_S", 0.01)

    async def story() -> None:
        line = Line()
        assert line(C) and line(A)
        await until_async(lambda: line.fed, "the two go on")
        assert line.fed == [A, C] and not line(B)

    asyncio.run(story())


def test_a_compile_alone_and_one_that_comes_while_others_run_do_not_wait() -> None:
    def story() -> None:
        fed: list[Missed] = []
        order = StartOrder(fed.append)
        order.came(B, 2, is_idle=False)
        assert not order.holds(missed(B))
        order.came(A, 1, is_idle=True)
        assert order.holds(missed(A)) and fed == [missed(A)], "at once"

    in_loop(story)


def test_a_shell_that_is_slow_to_start_its_compiler_keeps_its_turn() -> None:
    shells = [subprocess.Popen(["sh", "-c", "read go; sleep 60; :"], stdin=subprocess.PIPE) for _ in range(2)]
    compilers: dict[int, psutil.Process] = {}
    try:
        for number in (1, 0):
            told = shells[number].stdin
            assert told is not None
            told.write(b"go\n")
            told.flush()
            shell = psutil.Process(shells[number].pid)
            compilers[number] = until(shell.children, "the shell starts its compiler")[0]

        def story() -> None:
            fed: list[str] = []
            order = StartOrder(lambda event: fed.append(event.request))
            for name, number in ((B, 1), (A, 0)):
                order.came(name, compilers[number].pid, is_idle=True)
            assert order.holds(missed(B)) and order.holds(missed(A)) and fed == [A, B]

        in_loop(story)
    finally:
        for process in (*compilers.values(), *shells):
            process.kill()
        for each in shells:
            each.communicate()


def test_the_scheduler_starts_compiles_in_that_order(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, cpus=1)

    async def story() -> list[m.JobId]:
        async with Harness(workspace) as harness:
            logs = []
            for caller in (3, 1, 2):
                workspace.write(f"{caller}.cpp", f"int f{caller}() {{ return {caller}; }}\n")
                command = (host_compiler(), "-c", f"{caller}.cpp", "-o", f"{caller}.o")
                request = workspace.request(mode=m.Mode.COMPILE, command=command)
                logs.append(RequestLog(request.request_id))
                harness.scheduler.submit(request, logs[-1], caller=NOBODY + caller)
            stories = [await harness.finish(log) for log in logs]
            assert [each.done.outcome for each in stories] == [m.Outcome.BUILT] * 3, stories
            return [each.of(m.Started)[0].job_id for each in stories]

    assert asyncio.run(story()) == [3, 1, 2]
