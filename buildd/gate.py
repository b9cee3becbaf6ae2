"""Admission at work: looks at the host and at other daemons, asks the budget, and publishes what it promised.

Decides nothing itself (`admission` does) and knows no job beyond what is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from buildd import memory
from buildd.admission import Admitted, Ask, Budget, Running, Wait, outstanding_bytes
from buildd.claims import Claims
from buildd.memory import HostMemory
from protocol.messages import JobId

LOOK_S = 0.25
ROOMY_LOOK_S = 1.0


class Gate:
    """One daemon's admission.

    Args:
        claims: what this and other daemons have promised.
        look: reads the host's memory.
        short: called where memory makes a job wait or end: what only saves time is to give its own back.
    """

    def __init__(
        self,
        budget: Budget,
        claims: Claims,
        look: Callable[[], HostMemory] = memory.read,
        short: Callable[[], None] = lambda: None,
    ) -> None:
        self._budget = budget
        self._claims = claims
        self._look = look
        self._short = short
        self.look_after_s = LOOK_S
        """When `relieve` wants to be called again."""

    def refusal(self, ask: Ask, running: Sequence[Running]) -> str:
        """Why a job may not start beside those that run; empty when it may, and is then promised its memory."""
        known = self._budget.without_memory(ask, running)
        if isinstance(known, Wait):
            return known.reason  # the usual case, many times a second: no file is read for it
        with self._claims.section():
            host = self._look()
            answer = self._budget.can_start(ask, host, running, self._claims.others(host.total_bytes))
            admitted = isinstance(answer, Admitted)
            self._claims.publish(outstanding_bytes(running) + (ask.memory_bytes if admitted else 0))
        if isinstance(answer, Admitted):
            return ""
        self._short()
        return answer.reason

    def relieve(self, running: Sequence[Running]) -> JobId | None:
        """Look at what runs, a few times a second: tells the other daemons how much of our promise is still open, and
        returns the job that has to end because the host is short of memory."""
        self._claims.publish(outstanding_bytes(running))
        host = self._look()
        # No machine fills half of its memory between two looks.
        self.look_after_s = ROOMY_LOOK_S if host.available_bytes > host.total_bytes // 2 else LOOK_S
        victim = self._budget.relieve(running, host, time.monotonic())
        if victim is not None:
            self._short()
        return victim

    def rest(self) -> None:
        """Nothing is being built: hold nothing back. Without this the others stop believing us after a while."""
        self._claims.publish(0)
