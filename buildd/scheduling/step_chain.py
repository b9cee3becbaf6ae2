"""A job that runs its steps one after another in its own place, as its tool would.

Every step is looked up and stored as the steps of a spread job are. But the steps form no request of their own: if each
CPU has a job already, such a request costs more than it gains. Near the end of a build CPUs become idle: then the steps
that are left run side by side. Knows `execution`, decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from buildd.builds import shared_results
from buildd.keys.lookup import Found
from buildd.processes.executor import Executor
from buildd.processes.launch import EndReason, Launch
from buildd.scheduling.execution import Execution
from buildd.scheduling.step_jobs import StepwiseJob
from buildd.scheduling.step_request import StepRequest
from buildd.state.events import Ending
from codegen.plan import Action
from codegen.steps.step_kinds import StepKind
from protocol import messages as m


class ChainedJob(StepwiseJob):
    """A job like `SpreadJob`, but its steps hold the job's own CPU and memory.

    Args:
        looked: called with the numbers of further steps that were hits and misses.
        may_widen: whether the job had better be spread by now.
    """

    def __init__(
        self, *args: Any, looked: Callable[[int, int], None], may_widen: Callable[[], bool], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._looked = looked
        self._may_widen = may_widen
        self._waiting: list[int] = []
        """Steps that have not begun, and that may still count."""
        self._makers: list[tuple[int, ...]] = []
        self._failed_with = Ending.SUCCESS
        """How a step ended that failed before the tool would have run it."""
        self._before: Execution | None = None
        """A step that has ended, and whose results are not stored yet."""
        self._step: Execution | None = None
        self._launch: Launch | None = None
        self._hits = 0

    @property
    def memory_bytes(self) -> int:
        return self._step.memory_bytes if self._step is not None else 0

    def hold(self, held: bool) -> None:
        self.held = held
        if self._step is not None:
            self._step.hold(held)

    def kill(self, reason: EndReason) -> None:
        self._kill = self._kill or reason
        if self.is_spread and self._inner is not None:
            self._cancel(self._inner.build.request.request_id)
        elif self._step is not None:
            self._step.kill(reason)

    async def carry_out(self, inner: StepRequest, runner: Executor) -> Ending:
        if self.is_spread:  # the steps run once more, in another way
            return await self._side_by_side(inner)
        self._makers = inner.build.plan.makers()
        self._waiting = _in_order(inner.build.plan.actions, self._makers)
        try:
            while True:
                if self._is_wide(inner) and self._may_widen():
                    return await self._widen(inner)
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
                    ending = self._failed(inner, step, ending)
                    # The tool would have stopped at the first failure: the steps before this one still count.
                    self._waiting = [index for index in self._waiting if index < step.index]
                    if ending is not Ending.FAILED or not self._waiting:
                        return ending
                    self._failed_with, self._step = ending, None
                    await self._in_pool(step.close)
        finally:
            for left in (self._before, self._step):
                if left is not None:
                    await self._in_pool(left.close)
            self._before = self._step = None

    def _is_wide(self, inner: StepRequest) -> bool:
        """Whether several steps could run at once now that the last one has ended."""
        left = set(self._waiting)
        ready = sum(left.isdisjoint(self._makers[index]) for index in self._waiting)
        return ready > 1 and self._failed_with is Ending.SUCCESS and not self.held and not inner.is_in_vain

    async def _widen(self, inner: StepRequest) -> Ending:
        """Spread the steps that are left."""
        self._before, self._step = self._step, None
        kept: Ending = await self._in_pool(self._keep_before, inner)
        if kept is not Ending.SUCCESS or inner.is_in_vain:
            return kept
        if self._kill is not None:
            return Ending.KILLED
        return await self._side_by_side(inner, frozenset(range(len(self._makers))).difference(self._waiting))

    def _advance(self, inner: StepRequest) -> Ending | None:
        """Prepare the next step that has to run; where there is none, return how the steps ended. In a worker thread.

        The results of the step before are stored first only where the next step needs them.
        """
        self._before, self._step, self._hits = self._step, None, 0
        while (self._before is not None or self._waiting) and not inner.is_in_vain:
            index = self._next(inner)
            if index is None:
                assert self._before is not None, "steps depend on those before them"
                ending = self._keep_before(inner)
                if ending is not Ending.SUCCESS:
                    return ending
                continue
            self._waiting.remove(index)
            if inner.outputs.compose(index):
                continue
            answer = shared_results.look(inner.build, index)
            if isinstance(answer, Found):
                inner.report.tell_hit(index, answer.result)
                self._hits += 1
                continue
            self._step = Execution(
                self.number,
                inner.build,
                index,
                final=self._final,
                tell=_drop,
                released=_keep_cpu,
                in_pool=self._in_pool,
            )
            self._step.held = self.held
            self._launch = self._step.prepare()
            return None
        return self._failed_with

    def _next(self, inner: StepRequest) -> int | None:
        """The first step whose inputs are all stored; None where there is none. While it runs, the results of the step
        before are stored."""
        lacking = {*self._waiting, *(() if self._before is None else (self._before.index,))}
        for index in self._waiting:
            if lacking.isdisjoint(self._makers[index]):
                return index
            if inner.build.plan.actions[index].kind == StepKind.CUDAFE.value:
                return None  # cicc would find the same errors, and take longer
        return None

    def _keep_before(self, inner: StepRequest) -> Ending:
        """Store the results of the step before, if that was not done yet. In a worker thread."""
        before = self._before
        if before is None:
            return Ending.SUCCESS
        ending = before.keep()
        if ending is not Ending.SUCCESS:
            return self._failed(inner, before, ending)
        inner.build.hand_over(before.index, before.ran)
        before.close()
        self._before = None
        return Ending.SUCCESS

    def _failed(self, inner: StepRequest, step: Execution, ending: Ending) -> Ending:
        if step.failure is not None:
            inner.report.tell_failed(self.number, step.index, replace(step.failure, exit=step.exit))
        return ending


def _in_order(actions: Sequence[Action], makers: Sequence[tuple[int, ...]]) -> list[int]:
    """The order in which steps are begun: nvcc's own, but what cudafe++ reads comes first. While the texts for devices
    are made, it is stored."""
    first = {
        maker
        for action, own in zip(actions, makers, strict=True)
        if action.kind == StepKind.CUDAFE.value
        for maker in own
    }
    return sorted(range(len(actions)), key=lambda index: index not in first)


def _drop(body: m.EventBody) -> None:
    """Drop a step's lines: they are sent once all steps have ended, in the order of the steps."""


def _keep_cpu() -> None:
    """Keep the CPU: the job holds it until the last step has ended."""
