"""Leases of GPUs through a real server: one holder at a time, which outlives neither its client nor its GPU nor its
limit."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from buildd.host.gpu_watch import command_of
from protocol.aio import AsyncClient
from protocol.errors import RemoteError
from protocol.messages import GiveBack, Lease, Leased, LeaseEnd, LeaseEnded, LeaseId
from protocol.session import HeldLease
from tests.support.gpu_machine import GPU, TIGHT, Machine, machine_with
from tests.support.raw_client import Raw
from tests.support.waiting import until, until_async

OTHER = "GPU-89abcdef-0123-0123-0123-0123456789ab"
PART = "MIG-01234567-0123-0123-0123-0123456789ab"
DEADLINE_S = 30.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_with(tmp_path, f"gpu {GPU}", f"gpu {OTHER}") as made:
        yield made


def work(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(do(), DEADLINE_S))


def test_one_holder_at_a_time_in_the_order_in_which_they_asked(machine: Machine) -> None:
    said: list[str] = []

    async def do() -> None:
        async with machine.client() as client, machine.client() as second:

            async def take(name: str, whose: AsyncClient) -> None:
                async with whose.lease(GPU, what=name):
                    said.append(f"{name} begins")
                    await asyncio.sleep(0)
                    said.append(f"{name} ends")

            async with client.lease(GPU, what="first"):
                tasks = []
                for name, whose in (("a", client), ("b", second), ("c", client)):
                    tasks.append(asyncio.create_task(take(name, whose)))
                    await until_async(lambda: machine.gpus and len(machine.gpus[0].waiting) == len(tasks))
                shown = machine.gpus[0]
                assert shown.holder is not None
                assert (shown.gpu, shown.holder.what, shown.holder.pid) == (GPU, "first", os.getpid())
                assert [each.what for each in shown.waiting] == ["a", "b", "c"]
                async with second.lease(OTHER) as free:  # another GPU has a queue of its own
                    assert free.granted is not None
                assert said == []
            await asyncio.gather(*tasks)
            assert machine.gpus == ()

    work(do)
    assert said == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_who_waits_is_told_for_whom(machine: Machine) -> None:
    ahead: list[str] = []

    async def do() -> None:
        async with machine.client() as client:
            async with client.lease(GPU, what="profile gemm"):
                waiting = asyncio.create_task(
                    _enter(client.lease(GPU, waits=lambda told: ahead.extend(each.what for each in told.ahead)))
                )
                await until_async(lambda: ahead)
            await waiting

    work(do)
    assert ahead == ["profile gemm"]


_HOLD = """
import asyncio, sys
from protocol.aio import AsyncClient
from protocol.endpoint import read_endpoint, runtime_folder
from protocol.session import Route
async def hold():
    route = Route.local(read_endpoint(runtime_folder({"BUILDD_RUNTIME_DIR": sys.argv[1]})))
    async with AsyncClient(route) as client, client.lease(sys.argv[2], what="to be killed"):
        print(flush=True)
        await asyncio.Event().wait()
asyncio.run(hold())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_killed_leaves_it_to_the_next(machine: Machine, how: signal.Signals) -> None:
    folder = Path(machine.served.folder.path).parent
    with subprocess.Popen([sys.executable, "-c", _HOLD, folder, GPU], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()

        async def do() -> None:
            async with machine.client() as client:
                waiting = asyncio.create_task(_enter(client.lease(GPU, what="next")))
                await until_async(lambda: machine.gpus[0].waiting)
                holder.send_signal(how)
                assert (await waiting).granted is not None

        work(do)


def test_a_holder_that_hangs_loses_it_after_its_limit(machine: Machine) -> None:
    """A stopped process never gives back: its limit ends the lease, and it is told when it goes on."""
    with Raw(machine.served) as raw:
        raw.shake()
        raw.say(Lease(lease_id=LeaseId("x"), gpu=GPU, limit_s=TIGHT))
        assert isinstance(raw.hear(), Leased)

        async def do() -> None:
            async with machine.client() as client, client.lease(GPU) as held:
                assert held.granted is not None

        work(do)
        ended = raw.hear()
        assert isinstance(ended, LeaseEnded) and ended.reason is LeaseEnd.EXPIRED
        raw.say(GiveBack(lease_id=LeaseId("x")))
        late = raw.hear()
        assert getattr(late, "code", "") == "unknown-lease"


def test_an_expired_lease_does_not_count(machine: Machine) -> None:
    async def do() -> None:
        async with machine.client() as client:
            async with client.lease(GPU, limit_s=TIGHT) as held:
                await until_async(lambda: held.ended is not None)
            assert held.lost == "the lease has expired"

    work(do)


def test_a_gpu_that_is_lost_ends_the_lease_and_refuses_the_next(machine: Machine) -> None:
    async def do() -> None:
        async with machine.client() as client:
            async with client.lease(GPU) as held:
                machine.has(f"lost {GPU}", f"gpu {OTHER}")
                await until_async(lambda: held.ended is not None)
            assert held.lost == "the GPU is lost"
            with pytest.raises(RemoteError) as refused:
                await _enter(client.lease(GPU))
            assert refused.value.code == "unknown-gpu" and GPU in refused.value.message
            await _enter(client.lease(OTHER))  # the other one works on
            machine.has(f"gpu {GPU}")
            await _enter(client.lease(GPU))

    work(do)


def test_of_a_divided_gpu_its_parts_are_leased(machine: Machine) -> None:
    machine.has(f"divided {GPU}", f"part {PART}")

    async def do() -> None:
        async with machine.client() as client:
            with pytest.raises(RemoteError, match=PART):
                await _enter(client.lease(GPU))
            await _enter(client.lease(PART))

    work(do)


def test_a_foreign_process_is_noticed_and_own_ones_are_not(machine: Machine) -> None:
    async def do() -> None:
        child = subprocess.Popen(["sleep", "60"])  # this client's own, as a measuring process is
        try:
            async with machine.client() as client:
                machine.has(f"gpu {GPU} {child.pid} 1")
                async with client.lease(GPU) as held:
                    assert [each.pid for each in held.beside] == [1]
                    # One that comes in the middle is noticed at the end.
                    machine.has(f"gpu {GPU} {child.pid} {os.getppid()}")
                    await until_async(lambda: any(each.pid == os.getppid() for each in machine.gpus[0].beside))
                assert [each.pid for each in held.beside] == [1, os.getppid()]
                assert all(each.what for each in held.beside)
        finally:
            child.kill()
            child.wait()

    work(do)


@pytest.mark.parametrize("state", ["hang", "broken"])
def test_a_driver_that_hangs_or_fails_delays_a_lease_and_no_more(machine: Machine, state: str) -> None:
    machine.has(state)

    async def do() -> None:
        async with machine.client() as client:
            for _ in range(3):
                await _enter(client.lease(GPU))

    work(do)


def test_another_users_lock_is_waited_for_and_shown(machine: Machine) -> None:
    """Their daemon, or a process without a daemon, locks the file of the GPU."""
    machine.lock.parent.mkdir(exist_ok=True)
    script = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, machine.lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()

        async def do() -> None:
            async with machine.client() as client:
                ahead: list[int] = []
                waiting = asyncio.create_task(
                    _enter(client.lease(GPU, waits=lambda told: ahead.extend(each.pid for each in told.ahead)))
                )
                await until_async(lambda: ahead)
                shown = machine.gpus[0]
                assert shown.holder is not None and [len(shown.waiting), ahead] == [1, [other.pid]]
                assert shown.holder.pid == other.pid and "python" in shown.holder.what
                assert other.stdin is not None
                other.stdin.write("\n")
                other.stdin.flush()
                assert (await waiting).granted is not None

        work(do)


def test_the_daemons_lock_keeps_others_away_and_leaves_them_a_turn(machine: Machine) -> None:
    """Two clients that take turns without a gap must not keep the GPU from a process without a daemon."""

    async def do() -> None:
        over = False
        async with machine.client() as client:
            async with client.lease(GPU):
                with open(machine.lock) as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

            async def use() -> None:
                while not over:
                    await _enter(client.lease(GPU))

            users = [asyncio.create_task(use()) for _ in range(2)]
            script = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)"
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(machine.lock))
            assert await other.wait() == 0
            over = True
            await asyncio.gather(*users)

    work(do)


def test_a_command_is_named_in_one_line() -> None:
    with subprocess.Popen([sys.executable, "-c", "if 1:\n import time\n time.sleep(60)"]) as other:
        try:
            until(lambda: "time" in command_of(other.pid))
            assert command_of(other.pid).endswith(" -c if 1: import time time.sleep(60)")
        finally:
            other.kill()
    assert command_of(other.pid) == ""


def test_a_waiting_client_that_goes_away_leaves_the_queue(machine: Machine) -> None:
    async def do() -> None:
        async with machine.client() as holder, holder.lease(GPU), machine.client() as client:
            waiting = asyncio.create_task(_enter(client.lease(GPU)))
            await until_async(lambda: machine.gpus[0].waiting)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert machine.gpus[0].waiting == ()

    work(do)


@pytest.mark.parametrize("wrong", [{"lease_id": ""}, {"gpu": ""}, {"gpu": "a\0b"}])
def test_an_impossible_lease_is_refused(machine: Machine, wrong: dict[str, Any]) -> None:
    with Raw(machine.served) as raw:
        raw.shake()
        raw.say(Lease(**{"lease_id": LeaseId("x"), "gpu": GPU, **wrong}))
        assert getattr(raw.hear(), "code", "") == "bad-message"


async def _enter(lease: AbstractAsyncContextManager[HeldLease]) -> HeldLease:
    async with lease as held:
        return held


def test_a_lease_that_is_given_back_while_the_driver_is_asked_is_answered(machine: Machine) -> None:
    machine.has("hang")
    with Raw(machine.served) as client:
        client.shake()
        client.say(Lease(lease_id=LeaseId("a"), gpu=GPU))
        until(lambda: any(each.holder is not None for each in machine.gpus))
        client.say(GiveBack(lease_id=LeaseId("a")))
        answer = client.hear()
        assert isinstance(answer, LeaseEnded) and answer.reason is LeaseEnd.GIVEN_BACK, answer


def test_a_fifo_with_the_name_of_a_gpu_stops_no_daemon(machine: Machine) -> None:
    """Any user of the machine can put one into the folder of locks."""
    machine.lock.parent.mkdir(exist_ok=True)
    os.mkfifo(machine.lock)

    async def do() -> None:
        async with machine.client() as client:
            assert (await _enter(client.lease(GPU))).granted is not None

    work(do)
