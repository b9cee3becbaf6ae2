"""Processes that measure one candidate after another: when they are kept, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from buildd.profiling.bench import Bench, Measurement
from buildd.profiling.measuring_process import GpuFailed
from buildd.store.profiles import Outcome
from tests.support.profiling_cases import MEASURE

DEADLINE_S = 30.0


class Table:
    """A bench, and candidates that do what their words say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = Bench(MEASURE, {"PATH": "/usr/bin:/bin"}, "GPU-a")
        self.turns = 0
        self._asked = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.turns += 1
        yield

    async def ask(self, words: str, *, timeout_s: float = DEADLINE_S) -> Measurement:
        self._asked += 1
        library = self.folder / f"a folder\twith\nodd letters {self._asked}"
        library.write_text(words)
        question = (str(library), "g", "64", "64", "64", "fp16", "fp16", "rcr", "none", "2e-3")
        return await self.bench.measure(question, self.turn, lambda: 0.0, timeout_s=timeout_s)

    @property
    def processes(self) -> list[int]:
        return [int(line) for line in (self.folder / "who").read_text().split()]


def at(folder: Path, work: Callable[[Table], Coroutine[Any, Any, None]]) -> Table:
    table = Table(folder)

    async def whole() -> None:
        try:
            await asyncio.wait_for(work(table), DEADLINE_S)
        finally:
            await table.bench.close()

    asyncio.run(whole())
    return table


def test_one_process_measures_what_works(tmp_path: Path) -> None:
    async def work(table: Table) -> None:
        who = f"who {tmp_path}/who"
        assert [(await table.ask(f"{who} {us}")).time_us for us in (5, 7)] == [5.0, 7.0]
        assert (await table.ask("wrong")).outcome is Outcome.WRONG
        assert (await table.ask(f"{who} 6")).time_us == 6.0

    table = at(tmp_path, work)
    first, second, third = table.processes
    assert first == second != third
    assert table.turns == 5 + 3, "what was wrong is asked again alone, and each process takes one for its context"
    for process in (first, third):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_what_others_left_behind_is_nobodys_fault(tmp_path: Path) -> None:
    async def work(table: Table) -> None:
        assert (await table.ask("spoils 5")).outcome is Outcome.MEASURED
        found = await table.ask("time 6")
        assert (found.outcome, found.time_us) == (Outcome.MEASURED, 6.0)
        assert (await table.ask("crash")).note == "signal 11: an illegal memory access"

    at(tmp_path, work)


def test_a_gpu_that_fails_is_asked_twice_where_others_were_before(tmp_path: Path) -> None:
    async def work(table: Table) -> None:
        assert (await table.ask("time 5")).outcome is Outcome.MEASURED
        with pytest.raises(GpuFailed, match="a reason"):
            await table.ask("gpu")
        assert table.turns == 3 + 2

    at(tmp_path, work)


def test_a_context_has_one_queue_unless_the_user_wants_more() -> None:
    for given, queues in ({}, "1"), ({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "8"):
        said = '"{\\"outcome\\": \\"gpu\\", \\"note\\": \\"$CUDA_DEVICE_MAX_CONNECTIONS\\"}"'
        script = f"echo ready; read line; echo {said}"
        bench = Bench(("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin", **given}, "GPU-a")
        with pytest.raises(GpuFailed, match=f"^{queues}$"):
            asyncio.run(bench.start(nullcontext, timeout_s=DEADLINE_S))


def test_a_process_that_was_started_before_is_the_one_that_measures(tmp_path: Path) -> None:
    async def work(table: Table) -> None:
        await table.bench.start(table.turn)
        await table.bench.start(table.turn)
        assert table.turns == 1
        assert (await table.ask(f"who {tmp_path}/who 5")).time_us == 5.0
        assert table.turns == 2

    at(tmp_path, work)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("""echo '{"outcome": "gpu", "note": "no driver"}'""", "no driver"),
        ("echo ready; read line; echo nonsense; echo none >&2; exit 3", "status 3: none"),
        ("""echo ready; read line; echo '{"outcome": "measured"}'""", "answered 'measured'"),
        ("exec sleep 60", "no answer within 0 s"),
        ("echo ready; exec sleep 60", "no answer within 0 s"),
    ],
)
def test_a_process_that_gets_no_context_is_no_candidates_fault(tmp_path: Path, script: str, why: str) -> None:
    async def work(table: Table) -> None:
        table.bench = Bench(("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin"}, "GPU-a")
        timeout_s = 0.2 if "sleep" in script else DEADLINE_S
        with pytest.raises(GpuFailed, match=why):
            await table.bench.start(table.turn, timeout_s=timeout_s)
        with pytest.raises(GpuFailed, match=why):
            await table.ask("time 5", timeout_s=timeout_s)

    at(tmp_path, work)
