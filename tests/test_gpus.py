"""Turns on a GPU: tasks of one process follow each other, and whoever else waits is not shut out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from buildd import gpus
from buildd.gpus import Gpu, Turns, lease

GPU = Gpu(index=0, uuid="GPU-a", name="NVIDIA A100", driver="580.1", capability="8.0")
DEADLINE_S = 30.0


def test_one_at_a_time_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    order: list[str] = []

    async def work() -> None:
        turns = Turns(GPU, str(tmp_path))

        async def take(name: str) -> None:
            async with turns.turn():
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await asyncio.wait_for(asyncio.gather(*map(take, "abc")), DEADLINE_S)

    asyncio.run(work())
    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_who_fails_or_is_cancelled_leaves_the_gpu_to_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        turns = Turns(GPU, str(tmp_path))
        with pytest.raises(ZeroDivisionError):
            async with turns.turn():
                raise ZeroDivisionError
        held = asyncio.Event()

        async def hold() -> None:
            async with turns.turn():
                held.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await held.wait()
        holding.cancel()
        async with turns.turn():
            pass

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_two_tasks_that_hand_it_to_each_other_leave_others_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the gap the other one, which looks now and then, would never find it free."""
    monkeypatch.setattr(gpus, "_OURS_S", 0.05)

    async def work() -> None:
        turns, ours = Turns(GPU, str(tmp_path)), True

        async def use() -> None:
            while ours:
                async with turns.turn():
                    await asyncio.sleep(0.001)

        users = [asyncio.create_task(use()) for _ in range(2)]
        await asyncio.sleep(0)
        async with lease(GPU, str(tmp_path)):
            ours = False
        await asyncio.gather(*users)

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
