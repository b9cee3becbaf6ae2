"""Turns on a GPU through the daemon's leases: what was timed without one is timed again, and others are named."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.host import gpu_lock
from buildd.host.gpu_watch import GpuWatch
from buildd.profiling.bench import Bench
from buildd.profiling.devices import Gpu
from buildd.profiling.lanes import GpuUse, Lane
from buildd.profiling.measuring_process import GpuFailed
from buildd.profiling.turns import NoTurn, Turns
from protocol.endpoint import is_alive, read_endpoint, runtime_folder
from protocol.session import HeldLease, Route
from tests.support.gpu_machine import GPU, Machine, fake_nvml, machine_with
from tests.support.profiling_cases import A100, MEASURE
from tests.support.user import User
from tests.support.waiting import until_async

HERE = msgspec.structs.replace(A100, uuid=GPU)
DEADLINE_S = 30.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_with(tmp_path, f"gpu {GPU}") as made:
        yield made


def question(library: Path) -> tuple[str, ...]:
    return (str(library), *"abcdefgh", "0.01")


def work(do: Any) -> None:
    asyncio.run(asyncio.wait_for(do(), DEADLINE_S))


def lane_of(turns: Turns) -> tuple[Bench, Lane]:
    bench = Bench(MEASURE, os.environ, HERE.shown_as)
    return bench, Lane(bench, turns, HERE, GpuUse(1), DEADLINE_S)


def test_two_profiles_never_measure_side_by_side(machine: Machine, tmp_path: Path) -> None:
    """The words make a file while a candidate is measured, and fail where there is one already."""
    (tmp_path / "library").write_text(f"alone {tmp_path}/alone 5")

    async def do() -> None:
        async def profile(name: str) -> None:
            turns = Turns(name, print, machine.route, folder=machine.locks)
            bench, lane = lane_of(turns)
            for _ in range(10):
                found = await lane.measure(question(tmp_path / "library"), lambda: 0.0)
                assert found.outcome.value == "measured", found
            await bench.close()
            await turns.close()

        await asyncio.gather(*map(profile, ("one", "two", "three")))

    work(do)


def test_what_is_timed_while_the_lease_is_lost_is_timed_again(machine: Machine, tmp_path: Path) -> None:
    """The GPU goes away in the middle of the first measurement, and comes back."""
    place = tmp_path / "who"
    (tmp_path / "library").write_text(f"who {place} 5")
    said: list[str] = []

    class Losing(Turns):
        times = 0

        @asynccontextmanager
        async def on(self, gpu: Gpu, limit_s: float) -> AsyncIterator[HeldLease]:
            self.times += 1
            async with super().on(gpu, limit_s) as held:
                yield held
                if self.times == 2:  # the first turn makes the context
                    await until_async(lambda: machine.gpus)
                    machine.has(f"lost {GPU}")
                    await until_async(lambda: held.ended is not None)
                    machine.has(f"gpu {GPU}")

    async def do() -> None:
        turns = Losing("lost", said.append, machine.route, folder=machine.locks)
        bench, lane = lane_of(turns)
        found = await lane.measure(question(tmp_path / "library"), lambda: 0.0)
        assert found.outcome.value == "measured" and len(place.read_text().splitlines()) == 2
        await bench.close()
        await turns.close()

    work(do)


def test_a_gpu_that_is_lost_is_not_the_candidates_fault(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "library").write_text("time 5")
    machine.has(f"lost {GPU}")

    async def do() -> None:
        turns = Turns("x", print, machine.route, folder=machine.locks)
        bench, lane = lane_of(turns)
        with pytest.raises(GpuFailed, match=GPU):
            await lane.measure(question(tmp_path / "library"), lambda: 0.0)
        await bench.close()
        await turns.close()

    work(do)


@pytest.mark.parametrize("through_daemon", [True, False])
def test_a_process_that_computes_there_without_a_lease_is_named_once(
    machine: Machine, tmp_path: Path, through_daemon: bool
) -> None:
    machine.has(f"gpu {GPU} {os.getpid()} {os.getppid()}")
    said: list[str] = []

    async def do() -> None:
        watch = GpuWatch(str(fake_nvml(tmp_path)))
        route = machine.route if through_daemon else None
        turns = Turns("x", said.append, route, folder=machine.locks, watch=watch)
        for _ in range(2):
            async with turns.on(HERE, 5.0):
                pass
        machine.has(f"divided {GPU}")
        if not through_daemon:
            with pytest.raises(NoTurn, match="divided"):
                async with turns.on(HERE, 5.0):
                    pass
        await turns.close()

    work(do)
    assert len(said) == 1 and said[0].startswith(f"process {os.getppid()} (") and "GPU 0" in said[0]


def test_where_the_daemon_is_killed_the_lock_goes_on(user: User, tmp_path: Path) -> None:
    """What was timed when it ended does not count: nothing kept others away."""
    assert user.buildd("up")[0] == 0
    endpoint = read_endpoint(runtime_folder(user.environ))
    assert endpoint is not None
    there = msgspec.structs.replace(A100, uuid=f"GPU-test-{os.getpid()}")  # on the machine's own folder of locks

    async def do() -> None:
        turns = Turns("x", print, Route.local(endpoint), folder=str(tmp_path / "locks"))
        async with turns.on(there, 5.0) as held:
            os.kill(endpoint.pid, signal.SIGKILL)
            await until_async(lambda: not is_alive(endpoint))
        assert held.lost == "the daemon has ended, or does not answer"
        async with turns.on(there, 5.0) as held:
            assert not held.lost and (tmp_path / "locks" / there.uuid).exists()
        await turns.close()

    try:
        work(do)
    finally:
        Path(gpu_lock.FOLDER, there.uuid).unlink(missing_ok=True)


@pytest.mark.parametrize("through_daemon", [True, False])
def test_a_long_wait_is_explained(machine: Machine, monkeypatch: pytest.MonkeyPatch, through_daemon: bool) -> None:
    """Also one for a process without a daemon: nobody knows for how long it has had the GPU."""
    monkeypatch.setattr("buildd.profiling.turns._PATIENCE_S", 0.05)
    machine.lock.parent.mkdir(exist_ok=True)
    script = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", script, machine.lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()

        async def do() -> None:
            turns = Turns("x", said.append, machine.route if through_daemon else None, folder=machine.locks)

            async def take() -> None:
                async with turns.on(HERE, 5.0):
                    said.append("has it")

            taking = asyncio.create_task(take())
            await until_async(lambda: said)
            other.communicate("\n")
            await taking
            await turns.close()

        work(do)
    assert len(said) == 2 and said[0].startswith(f"waiting for GPU 0: process {other.pid} ("), said
