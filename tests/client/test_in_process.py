"""Signals to a build in this process: the first one may not interrupt the loop in the middle of a step."""

from __future__ import annotations

import asyncio
import os
import signal
from types import FrameType

import pytest

from buildd.client.in_process import _first_signal_cancels
from buildd.exits import Interrupted
from tests.support.waiting import until_async


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_first_signal_cancels_between_two_steps_and_the_next_one_interrupts(number: signal.Signals) -> None:
    cancelled: list[bool] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + number)

    async def run() -> list[int]:
        with _first_signal_cancels(asyncio.get_running_loop(), lambda: cancelled.append(True) or True) as stopped:
            os.kill(os.getpid(), number)
            assert not cancelled, "the step goes on to its end"
            await until_async(lambda: cancelled, "the step goes on for ever")
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        return stopped

    before = signal.signal(number, interrupt)
    try:
        assert asyncio.run(asyncio.wait_for(run(), 30)) == [number] and cancelled == [True]
        assert number is signal.SIGINT or signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


def test_a_signal_that_the_caller_leaves_alone_is_left_alone() -> None:
    async def run() -> None:
        with _first_signal_cancels(asyncio.get_running_loop(), lambda: True):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(run())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
