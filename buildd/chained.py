"""One job that does its steps one after another in its own place, as its tool would.

Every step is looked up, stored and found as those that are spread are; what is left out is a request of their own,
which costs more than it gains where each CPU has a job already. Knows `execution`, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from buildd.execution import Execution
from buildd.inner import Inner
from buildd.launch import KillReason, Launch
from buildd.lookup import Found
from buildd.runner import Runner
from buildd.steps import Ending
from buildd.stepwise import Stepwise
from protocol import messages as m


class Chained(Stepwise):
    """Like `Spread`, but the steps hold this job's own CPU and memory.

    Args:
        looked: told how many more steps were hits and misses.
    """

    def __init__(self, *args: Any, looked: Callable[[int, int], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._looked = looked
        self._step: Execution | None = None
        self._launch: Launch | None = None
        self._hits = 0

    @property
    def memory_bytes(self) -> int:
        return self._step.memory_bytes if self._step is not None else 0

    def kill(self, reason: KillReason) -> None:
        self._kill = self._kill or reason
        if self._step is not None:
            self._step.kill(reason)

    async def carry_out(self, inner: Inner, runner: Runner) -> Ending:
        try:
            while True:
                ended: Ending | None = await self._in_pool(self._advance, inner)
                self._looked(self._hits, int(ended is None))
                if ended is not None:
                    return ended
                step, launch = self._step, self._launch
                assert step is not None and launch is not None
                if self._kill is not None:
                    return Ending.KILLED
                ending = await step.perform(runner, launch)
                if ending is not None:
                    return self._failed(inner, step, ending)
        finally:
            if self._step is not None:
                await self._in_pool(self._step.close)
                self._step = None

    def _advance(self, inner: Inner) -> Ending | None:
        """Keep what the step before has made, and make the next one that has to run ready; how all ended where there is
        none. In a worker thread."""
        before, self._hits = self._step, 0
        if before is not None:
            ending = before.keep()
            if ending is not Ending.SUCCESS:
                return self._failed(inner, before, ending)
            inner.hand_over(before.index, before.ran)
            before.close()
            self._step = None
        for index in range(0 if before is None else before.index + 1, len(inner.plan.actions)):
            if inner.compose(index):
                continue
            answer = inner.look(index, fresh=False)
            if isinstance(answer, Found):
                inner.tell_hit(index, answer.result)
                self._hits += 1
                continue
            self._step = Execution(
                self.number,
                inner,
                index,
                final=self._final,
                tell=_nobody,
                released=_nothing,
                in_pool=self._in_pool,
            )
            self._launch = self._step.prepare()
            return None
        return Ending.SUCCESS

    def _failed(self, inner: Inner, step: Execution, ending: Ending) -> Ending:
        if step.failure is not None:
            inner.tell_failed(self.number, step.index, replace(step.failure, exit=step.exit))
        return ending


def _nobody(body: m.EventBody) -> None:
    """A step's lines are told once all have ended, in the order of the steps."""


def _nothing() -> None:
    """The job holds its CPU until the last step has ended."""
