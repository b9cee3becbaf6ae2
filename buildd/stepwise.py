"""One job whose action is carried out in steps: a request of its own inside the scheduler, its result filed as ever.

Knows when steps are done once more, in another way. How their files reach each other is `inner`'s, which steps there
are `codegen.nvcc_steps`' and `hipcc_steps`', what runs when `state`'s.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from buildd import history, outspoken
from buildd.building import Building
from buildd.errors import StoreError
from buildd.execution import Execution, storage_failure, time_line_of
from buildd.inner import Inner, Quiet
from buildd.launch import Exit, KillReason, Launch
from buildd.runner import Runner
from buildd.steps import Ending
from codegen.expansion import expand, unframed
from codegen.step_kinds import Kind
from protocol import messages as m


class Stepwise(Execution, ABC):
    """Like `Execution`, for an action with steps. How they are carried out is a subclass's."""

    def __init__(
        self,
        number: m.JobId,
        building: Building,
        index: int,
        *,
        final: bool,
        tell: Callable[[m.EventBody], None],
        released: Callable[[], None],
        in_pool: Callable[..., Awaitable[Any]],
    ) -> None:
        super().__init__(number, building, index, final=final, tell=tell, released=released, in_pool=in_pool)
        self._inner: Inner | None = None
        self._whole: Launch | None = None

    @abstractmethod
    async def carry_out(self, inner: Inner, runner: Runner) -> Ending:
        """Do all steps, as far as they have to be done. Raises OSError and StoreError."""

    @property
    def steps(self) -> tuple[m.Step, ...]:
        before = len(self.action.name) + len(": ")
        return tuple(
            m.Step(
                name=name[before:],
                start_s=max(0, began_ns - self._began_ns) / 1e9,
                wall_s=exit.timing.wall_s if exit is not None else 0.0,
                peak_rss_bytes=exit.timing.peak_rss_bytes if exit is not None else 0,
                hit=exit is None,
            )
            for name, began_ns, exit in (self._inner.done if self._inner is not None else ())
        )

    def time_line(self) -> str:
        return "" if self.exit is None or self._whole is None else time_line_of(self._whole, self.exit)

    async def run(self, runner: Runner) -> Ending:
        """Carry the steps out and say how it ended, as one process would have."""
        try:
            self._whole = await self._in_pool(self.prepare)
            await self._settle()
            self._tell_started()
            self._began_ns = time.time_ns()
            ending = await self._steps(runner)
            if self._inner is not None and self._inner.lacking:
                ending = await self._steps(runner, remade=True)
            if self._inner is not None and self._inner.outdated:
                ending = await self._steps(runner, remade=True, exact=True)
            if self._inner is not None and not await self._joined(ending):
                ending = await self._steps(runner, remade=True, exact=True, framed=False)
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error)
            return Ending.FAILED
        inner = self._inner
        if inner is None or ending in (Ending.KILLED, Ending.STALE):
            return ending
        if inner.broke_silence and ending is not Ending.OUT_OF_MEMORY:
            self.building.runs_whole.add(self.index)
            outspoken.remember(self.building.notebook, self.building.lookup.name_key(self.action), spoke=True)
            return Ending.STALE
        self.exit = inner.exit(time.monotonic() - self.started_s)
        for stream, text in inner.shown():
            for line in text.decode(errors="replace").splitlines():
                self._line(stream, line)
        if inner.failed:
            self.failure = inner.failed[min(inner.failed)]
            if ending is Ending.OUT_OF_MEMORY:
                self._learn(self.exit, history.Ended.OUT_OF_MEMORY)
            return ending
        self._released()
        kept: Ending = await self._in_pool(self.keep)
        return kept

    async def _settle(self) -> None:
        # A header of which nobody knew yet, and that was written just now, has the preprocessor run once more.
        if not self.building.is_settled():
            await super()._settle()

    def _inputs(self) -> tuple[str, ...] | None:
        return self._inner.read() if self._inner is not None else None

    def _named(self) -> Collection[str]:
        assert self._inner is not None
        return {*super()._named(), *self._inner.named}

    def _keep(self, exit: Exit) -> Ending:
        assert self._inner is not None
        # Its folder is this job's own, and its name the one that is looked for; where it was a hit it comes now.
        self._inner.where(self._inner.plan.actions[-1].outputs[0].path)
        return super()._keep(exit)

    async def _joined(self, ending: Ending) -> bool:
        """Whether the object is whole, where it was made."""
        assert self._inner is not None
        if any(action.kind == Kind.FRAME.value for action in self._inner.failed_actions()):
            return False
        joined: bool = ending is not Ending.SUCCESS or await self._in_pool(self._inner.join)
        return joined

    async def _steps(self, runner: Runner, *, remade: bool = False, exact: bool = False, framed: bool = True) -> Ending:
        inner: Inner = await self._in_pool(self._begin, remade, exact, framed)
        if self._kill is not None:
            return Ending.KILLED
        self._inner = inner
        return await self.carry_out(inner, runner)

    def _begin(self, remade: bool, exact: bool, framed: bool) -> Inner:
        for file in Path(self._private).iterdir():  # of steps that were done before
            if file.is_file():
                file.unlink()
        building = self.building
        steps = building.steps[self.action.steps]
        inner = Inner(
            msgspec.structs.replace(
                building.request, request_id=m.RequestId(f"{building.request.request_id}#{self.number}")
            ),
            Quiet(building.request.request_id),
            building.store,
            building.files,
            building.notebook,
            outer=building,
            begun_s=building.begun_s,
            settled_s=building.settled_s,
            remade=remade,
            exact=exact,
            silent=steps.silent,
        )
        inner.scratch = self._private
        # Where the tool has no root of that name, paths are what they are on this machine.
        project = "" if "project" in dict(building.tool(self.action).roots) else building.project
        content = building.snapshot.digest(self.action.inputs[0]) if building.roots else None
        plan = expand(steps, self.action, project, building.roots, content or "")
        inner.begin(plan if framed else unframed(plan), steps.said)
        return inner


class Spread(Stepwise):
    """Its steps are a request of their own, so that they run side by side and are shared.

    Args:
        submit: submits the steps as a request of this job's, and waits for their outcome.
        cancel: ends that request.
    """

    def __init__(
        self,
        *args: Any,
        submit: Callable[[Inner], Awaitable[m.Outcome]],
        cancel: Callable[[m.RequestId], object],
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._submit = submit
        self._cancel = cancel

    def kill(self, reason: KillReason) -> None:
        self._kill = self._kill or reason
        if self._inner is not None:
            self._cancel(self._inner.request.request_id)

    async def carry_out(self, inner: Inner, runner: Runner) -> Ending:
        outcome = await self._submit(inner)
        return {m.Outcome.BUILT: Ending.SUCCESS, m.Outcome.CANCELLED: Ending.KILLED}.get(outcome, Ending.FAILED)
