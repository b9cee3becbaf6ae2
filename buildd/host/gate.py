"""The gate for jobs: looks at the host and at other daemons, asks the budget, and publishes the memory it promised.

Decides nothing itself (`admission` does) and knows no job beyond what is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from buildd.host import memory
from buildd.host.admission import (
    Admitted,
    Ask,
    Budget,
    Hold,
    Running,
    Wait,
    budget_bytes,
    holding_bytes,
    outstanding_bytes,
)
from buildd.host.claims import Claims
from buildd.host.confinement import Confinement
from buildd.host.memory import HostMemory
from buildd.state.events import OwnLimit
from protocol.messages import JobId

LOOK_S = 0.25
ROOMY_LOOK_S = 1.0
SHARED_LOOK_S = 0.05
"""How long jobs that start one after another share a look at a roomy host: a look costs as much as a small step."""
NEAR_LOOK_S = 0.1


class HostGate:
    """One daemon's admission.

    Args:
        claims: the promises of this and other daemons.
        look: reads the host's memory.
        look_within: reads the memory that the cgroups of a client leave.
        clock: monotonic, in seconds.
        short: called when memory makes a job wait or end, so that processes which only save time free theirs.
    """

    def __init__(
        self,
        budget: Budget,
        claims: Claims,
        look: Callable[[], HostMemory] = memory.read,
        short: Callable[[], None] = lambda: None,
        look_within: Callable[[Confinement], HostMemory] = lambda limits: memory.read(membership=limits.membership),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._claims = claims
        self._look = look
        self._short = short
        self._seen: tuple[float, HostMemory] | None = None
        """The last look, and when it was taken, while the host was roomy."""
        self._look_within = look_within
        self._clock = clock
        self._budgets: dict[Confinement, Budget] = {}
        """The budgets of clients with limits of their own that have jobs now."""
        self.look_after_s = LOOK_S
        """After how long (s) `hold` and `relieve` are to be called again."""
        self.memory_bytes = 0
        """Resident memory of all jobs, at the last call of `relieve`."""
        self.budget_bytes = 0
        """The memory that all jobs together might use then; 0 before the first call."""

    def refusal(self, ask: Ask, running: Sequence[Running]) -> str:
        """Why a job may not start beside those that run; empty when it may, and then its memory is promised."""
        known = self._budget.without_memory(ask, running)
        if isinstance(known, Wait):
            return known.reason  # the usual case, many times a second: no file is read for it
        if ask.within is not None and (reason := self._refusal_within(ask.within, ask, running)):
            return OwnLimit(reason)
        with self._claims.section():
            others = self._claims.others
            if (host := self._recent()) is not None:
                answer = self._budget.can_start(ask, host, running, others(host.total_bytes))
            if host is None or isinstance(answer, Wait):
                host = self._look()
                self._seen = (time.monotonic(), host) if _is_roomy(host) else None
                answer = self._budget.can_start(ask, host, running, others(host.total_bytes))
            admitted = isinstance(answer, Admitted)
            self._claims.publish(outstanding_bytes(running) + (ask.memory_bytes if admitted else 0))
        if isinstance(answer, Admitted):
            return ""
        self._short()
        return answer.reason

    def _refusal_within(self, limits: Confinement, ask: Ask, running: Sequence[Running]) -> str:
        """Why the limits of a job's own client do not let it start; empty when they do."""
        beside = [job for job in running if job.within == limits]
        budget = self._budgets.setdefault(limits, Budget(limits.cpus))
        answer = budget.without_memory(ask, beside) or budget.can_start(ask, self._look_within(limits), beside)
        return f"{answer.reason} (limits of its client)" if isinstance(answer, Wait) else ""

    def hold(self, running: Sequence[Running]) -> tuple[Hold, ...]:
        """The jobs to stop, or to let go on. Call it as often as `relieve`, and before it."""
        found = self._budget.hold(running, self._look())
        for limits, budget in self._budgets.items():
            beside = [job for job in running if job.within == limits]
            found = found or budget.hold(beside, self._look_within(limits))
        return found

    def relieve(self, running: Sequence[Running]) -> JobId | None:
        """Watch the running jobs; call it a few times a second.

        Publishes how much of the promised memory is still unused, and returns the job that has to end because the host
        is short of memory; None where none has to.
        """
        self._claims.publish(outstanding_bytes(running))
        host = self._look()
        self.memory_bytes = sum(job.resident_bytes for job in running)
        others = self._claims.others(host.total_bytes)
        self.budget_bytes = budget_bytes(host, running, others, self._budget.memory_cap_bytes)
        is_near = host.available_bytes < 3 * holding_bytes(host) and len(running) > 1
        self.look_after_s = NEAR_LOOK_S if is_near else ROOMY_LOOK_S if _is_roomy(host) else LOOK_S
        now_s = self._clock()
        victim = self._budget.relieve(running, host, now_s)
        confined = {job.within for job in running}
        self._budgets = {limits: budget for limits, budget in self._budgets.items() if limits in confined}
        for limits, budget in self._budgets.items():
            self.look_after_s = NEAR_LOOK_S
            beside = [job for job in running if job.within == limits]
            victim = victim or budget.relieve(beside, self._look_within(limits), now_s)
        if victim is not None:
            self._short()
        return victim

    def _recent(self) -> HostMemory | None:
        """A look at a roomy host that another job took just now; None if there is none."""
        if self._seen is not None and time.monotonic() - self._seen[0] < SHARED_LOOK_S:
            return self._seen[1]
        return None

    def rest(self) -> None:
        """Withdraw the claim, because nothing is being built. Without this it expires after a while."""
        self._claims.publish(0)
        self.memory_bytes = 0


def _is_roomy(host: HostMemory) -> bool:
    """Whether half of the memory is left: no machine fills that between two looks."""
    return host.available_bytes > host.total_bytes // 2
