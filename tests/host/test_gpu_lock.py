"""The lock on a GPU: turns of one process follow each other, other processes get theirs, and everybody is seen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildd.host import gpu_lock
from buildd.host.gpu_lock import GpuLock, lock, processes
from tests.support.waiting import until_async

GPU = "GPU-a"
DEADLINE_S = 30.0
HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"


def test_who_fails_or_is_cancelled_leaves_the_gpu_to_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        turns = GpuLock(GPU, str(tmp_path))
        with pytest.raises(ZeroDivisionError):
            async with turns.held():
                raise ZeroDivisionError
        held = asyncio.Event()

        async def hold() -> None:
            async with turns.held():
                held.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await held.wait()
        holding.cancel()
        async with turns.held():
            pass

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_a_wait_that_is_cancelled_takes_no_turn(tmp_path: Path) -> None:
    """The thread that waits gets the lock all the same, and must release it."""

    async def work() -> None:
        async with lock(GPU, str(tmp_path)):
            waiting = asyncio.create_task(lock(GPU, str(tmp_path)).__aenter__())
            await until_async(lambda: any(not each.holds for each in processes(str(tmp_path))))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with lock(GPU, str(tmp_path)):  # the thread may still wait
            assert sum(each.holds for each in processes(str(tmp_path))) == 1
        await until_async(lambda: not processes(str(tmp_path)))

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_two_tasks_that_hand_it_to_each_other_leave_others_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause the other process would never find the GPU free, even where its wait is not seen."""
    monkeypatch.setattr(gpu_lock, "_MOST_HELD_S", 0.05)
    monkeypatch.setattr(gpu_lock, "processes", lambda *_: ())

    async def work() -> None:
        turns, order, ours = GpuLock(GPU, str(tmp_path)), asyncio.Lock(), True

        async def use() -> None:
            while ours:
                async with order, turns.held():
                    await asyncio.sleep(0.001)

        users = [asyncio.create_task(use()) for _ in range(2)]
        await asyncio.sleep(0)
        async with lock(GPU, str(tmp_path)):
            ours = False
        await asyncio.gather(*users)

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_who_holds_and_who_waits_is_seen(tmp_path: Path) -> None:
    async def work() -> None:
        folder = str(tmp_path)
        async with lock(GPU, folder):
            with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / GPU], stdin=subprocess.PIPE) as other:
                try:
                    await until_async(lambda: len(processes(folder)) == 2)
                    found = {(each.gpu, each.pid, each.holds) for each in processes(folder, GPU)}
                    assert found == {(GPU, os.getpid(), True), (GPU, other.pid, False)}
                    assert GpuLock(GPU, folder).is_wanted()
                    assert processes(folder, "GPU-b") == ()
                finally:
                    other.kill()

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
    assert processes(str(tmp_path / "none")) == ()


def test_a_fifo_in_the_shared_folder_holds_nobody_up(tmp_path: Path) -> None:
    """Any user of the machine can put one there, under the name of a GPU."""
    os.mkfifo(tmp_path / GPU)

    async def work() -> None:
        async with GpuLock(GPU, str(tmp_path)).held():
            pass

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_a_child_that_is_forked_in_a_turn_does_not_keep_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with lock(GPU, str(tmp_path)):
            child = os.fork()
            if child == 0:
                time.sleep(DEADLINE_S)
                os._exit(0)
        try:
            async with lock(GPU, str(tmp_path)):
                assert [each.holds for each in processes(str(tmp_path))] == [True]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S / 2))
