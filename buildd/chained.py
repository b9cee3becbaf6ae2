"""One job that does its steps one after another in its own place, as its tool would.

Every step is looked up, stored and found as those that are spread are; what is left out is a request of their own,
which costs more than it gains where each CPU has a job already. Knows `execution`, decides nothing.
"""

from __future__ import annotations

import asyncio
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
        self._waiting: list[int] = []
        """Steps that were not begun."""
        self._before: Execution | None = None
        """A step that has ended, and whose results are not kept yet."""
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
        self._waiting = list(range(len(inner.plan.actions)))
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
                keeping = asyncio.ensure_future(self._in_pool(self._keep_before, inner))
                try:
                    ending = await step.perform(runner, launch)
                finally:
                    kept: Ending = await keeping
                if kept is not Ending.SUCCESS:
                    return kept
                if ending is not None:
                    return self._failed(inner, step, ending)
        finally:
            for left in (self._before, self._step):
                if left is not None:
                    await self._in_pool(left.close)
            self._before = self._step = None

    def _advance(self, inner: Inner) -> Ending | None:
        """Make the next step that has to run ready; how all ended where there is none. In a worker thread.

        What the step before has made is kept first only where the next one needs it.
        """
        self._before, self._step, self._hits = self._step, None, 0
        while self._before is not None or self._waiting:
            index = self._next(inner)
            if index is None:
                assert self._before is not None, "steps stand on those before them"
                ending = self._keep_before(inner)
                if ending is not Ending.SUCCESS:
                    return ending
                continue
            self._waiting.remove(index)
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

    def _next(self, inner: Inner) -> int | None:
        """A step that needs nothing that is not kept yet; None where there is none.

        They come in the tool's own order, in which the first failure is the one that it would tell of; where the tool
        itself runs once more after any failure, whichever is ready comes.
        """
        lacking = {*self._waiting, *(() if self._before is None else (self._before.index,))}
        makers = inner.plan.makers()
        candidates = self._waiting if inner.silent else self._waiting[:1]
        return next((index for index in candidates if lacking.isdisjoint(makers[index])), None)

    def _keep_before(self, inner: Inner) -> Ending:
        """Keep what the step before has made, if that was not done yet. In a worker thread."""
        before = self._before
        if before is None:
            return Ending.SUCCESS
        ending = before.keep()
        if ending is not Ending.SUCCESS:
            return self._failed(inner, before, ending)
        inner.hand_over(before.index, before.ran)
        before.close()
        self._before = None
        return Ending.SUCCESS

    def _failed(self, inner: Inner, step: Execution, ending: Ending) -> Ending:
        if step.failure is not None:
            inner.tell_failed(self.number, step.index, replace(step.failure, exit=step.exit))
        return ending


def _nobody(body: m.EventBody) -> None:
    """A step's lines are told once all have ended, in the order of the steps."""


def _nothing() -> None:
    """The job holds its CPU until the last step has ended."""
