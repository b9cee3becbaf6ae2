"""A job whose action is carried out in steps; its result is filed as if one process had run.

Knows when steps run once more, in another way. `codegen.steps.nvcc_steps` and `hipcc_steps` make the list of steps,
`step_outputs` passes their files on, and `state` decides when each runs.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from buildd.builds import noisy_compiles
from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import output_path
from buildd.errors import StoreError
from buildd.keys.depfiles import Listing
from buildd.processes.executor import Executor
from buildd.processes.launch import EndReason, Exit, Launch
from buildd.scheduling.execution import Execution, time_line_of
from buildd.scheduling.job_failures import storage_failure
from buildd.scheduling.result_keeper import learn
from buildd.scheduling.step_request import StepRequest
from buildd.state.events import Ending
from buildd.store import job_history
from codegen.compilers.checkout_roots import others
from codegen.compilers.temporary_roots import Roots
from codegen.plan import BARE, Action, Discovery
from codegen.steps.expansion import expand, maker, unframed
from codegen.steps.module_ids import ids_of
from codegen.steps.step_kinds import StepKind
from protocol import messages as m


class StepwiseJob(Execution, ABC):
    """An `Execution` of an action with steps. A subclass carries them out.

    Args:
        submit: submits the steps as a request that this job owns, and waits for its outcome; the second argument names
            the steps that are done.
        cancel: cancels that request.
    """

    def __init__(
        self,
        number: m.JobId,
        build: ActiveBuild,
        index: int,
        *,
        final: bool,
        tell: Callable[[m.EventBody], None],
        released: Callable[[], None],
        in_pool: Callable[..., Awaitable[Any]],
        submit: Callable[[StepRequest, frozenset[int]], Awaitable[m.Outcome]],
        cancel: Callable[[m.RequestId], object],
    ) -> None:
        super().__init__(number, build, index, final=final, tell=tell, released=released, in_pool=in_pool)
        self._submit = submit
        self._cancel = cancel
        self._inner: StepRequest | None = None
        self._whole: Launch | None = None

    @abstractmethod
    async def carry_out(self, inner: StepRequest, runner: Executor) -> Ending:
        """Run all steps whose results are not found. Raises OSError and StoreError."""

    async def _side_by_side(self, inner: StepRequest, done: frozenset[int] = frozenset()) -> Ending:
        """Carry the steps that are not done out as a request of their own."""
        self.is_spread = True
        if inner.silent:
            loop = asyncio.get_running_loop()
            inner.report.told = partial(loop.call_soon_threadsafe, self._stop_in_vain, inner)
        outcome = await self._submit(inner, done)
        if outcome is m.Outcome.CANCELLED and (self._kill is not None or not inner.is_in_vain):
            return Ending.KILLED
        return Ending.SUCCESS if outcome is m.Outcome.BUILT else Ending.FAILED

    def _stop_in_vain(self, inner: StepRequest) -> None:
        """Cancel the steps if the compiler will run whole."""
        if inner.is_in_vain:
            self._cancel(inner.build.request.request_id)

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
                node=node,
            )
            for name, began_ns, exit, node in (self._inner.report.done if self._inner is not None else ())
        )

    def time_line(self) -> str:
        return "" if self.exit is None or self._whole is None else time_line_of(self._whole, self.exit)

    async def run(self, runner: Executor) -> Ending:
        """Carry the steps out and return how the job ended, as one process would have."""
        try:
            self._whole = await self._in_pool(self.prepare)
            await self._settle()
            self._tell_started()
            self._began_ns = self.build.files.now_ns()
            ending = await self._steps(runner)
            if self._inner is not None and not self._inner.is_in_vain:
                ending = await self._completed(ending, self._inner, runner)
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED
        inner = self._inner
        if inner is None or ending in (Ending.KILLED, Ending.STALE):
            return ending
        if inner.broke_silence and ending is not Ending.OUT_OF_MEMORY:
            self.build.runs_whole.add(self.index)
            name = self.build.inputs.lookup.name_key(self.action)
            noisy_compiles.remember(self.build.notebook, name, differs=inner.outputs.differs)
            return Ending.STALE
        self.exit = inner.report.exit(time.monotonic() - self.started_s)
        for stream, text in inner.report.shown():
            for line in text.decode(errors="replace").splitlines():
                self._line(stream, line)
        if (failure := inner.report.first_failure) is not None:
            # nvcc writes its depfile before the other steps. A step knows what itself has read.
            listing = self._listing()
            self.failure = failure if listing is None else replace(failure, read=listing.files, listing=listing)
            if ending is Ending.OUT_OF_MEMORY:
                learn(self.build, self.action, self.exit, job_history.JobEnd.OUT_OF_MEMORY)
            return ending
        self._released()
        kept: Ending = await self._in_pool(self.keep)
        return kept

    async def _completed(self, ending: Ending, inner: StepRequest, runner: Executor) -> Ending:
        """How the steps ended, once those that left something out have run again."""
        if inner.results.lacking:
            ending = await self._steps(runner, remade=True)
        if self._inner is not None and self._inner.results.outdated:
            ending = await self._steps(runner, remade=True, exact=True)
        if self._inner is not None and not await self._joined(ending):
            ending = await self._steps(runner, remade=True, exact=True, framed=False)
        return ending

    async def _settle(self) -> None:
        # Without this, a header that was not known yet and was written just now makes the preprocessor run once more.
        # A foreign build would wait for that once for each of its compiles: there only young files count.
        if not self.build.has_caller or self.build.inputs.snapshot.has_seen_young():
            await super()._settle()

    def _inputs(self) -> tuple[str, ...] | None:
        return self._inner.report.read() if self._inner is not None else None

    def _listing(self) -> Listing | None:
        if self._inner is None:
            return None
        if (host := self._inner.report.read_by(Discovery.CLANG_RULES)) is not None:
            return Listing(host)
        return self._inner.outputs.listing()

    def _named(self) -> Collection[str]:
        assert self._inner is not None
        made = Path(output_path(self._private, self.action, self.action.outputs[0].name))
        return {*super()._named(), *self._inner.outputs.named_in(made)}

    def _shows_lines(self, exit: Exit) -> bool:
        assert self._inner is not None
        return self._inner.report.shows_lines()

    def _silent_files(self) -> Collection[str]:
        # The host compiler preprocesses once more, with other macros.
        assert self._inner is not None
        read = self._inner.report.read(StepKind.HOST)
        if read is None:
            return ()
        normal = self.build.inputs.lookup.normal
        again = set(map(normal, read))
        return [spelled for spelled in self._inner.outputs.silent_files() if normal(spelled) not in again]

    def _expanded(self) -> bool:
        assert self._inner is not None
        return self._inner.outputs.all_searched

    def _keep(self, exit: Exit) -> Ending:
        assert self._inner is not None
        # The object has this job's own folder and the name that is looked for; a hit is fetched now.
        for output in maker(self._inner.build.plan).outputs:
            if output.name != BARE:
                self._inner.outputs.where(output.path)
        return super()._keep(exit)

    async def _joined(self, ending: Ending) -> bool:
        """Whether the object is complete, where one was made."""
        assert self._inner is not None
        if any(action.kind == StepKind.FRAME.value for action in self._inner.report.failed_actions()):
            return False
        joined: bool = ending is not Ending.SUCCESS or await self._in_pool(self._inner.outputs.join)
        return joined

    async def _steps(
        self, runner: Executor, *, remade: bool = False, exact: bool = False, framed: bool = True
    ) -> Ending:
        inner: StepRequest = await self._in_pool(self._begin, remade, exact, framed)
        if self._kill is not None:
            return Ending.KILLED
        self._inner = inner
        return await self.carry_out(inner, runner)

    def _begin(self, remade: bool, exact: bool, framed: bool) -> StepRequest:
        for file in Path(self._private).iterdir():  # files of steps that ran before
            if file.is_file():
                file.unlink()
        build = self.build
        steps = build.steps[self.action.steps]
        name = m.RequestId(f"{build.request.request_id}#{self.number}")
        inner = StepRequest(build, name, steps, self._private, remade=remade, exact=exact)
        project, roots, content = surroundings(build, self.action)
        plan = expand(steps, self.action, project, roots, content)
        inner.outputs.ids = ids_of(steps, self.action, project, roots, content)
        inner.adopt(plan if framed else unframed(plan))
        return inner


def surroundings(build: ActiveBuild, action: Action) -> tuple[str, Roots, str]:
    """What `expand` and `ids_of` take of an action's build: project, roots, content."""
    # Where the tool has no root of that name, paths are what they are on this machine.
    project = "" if "project" in dict(build.tool(action).roots) else build.project
    roots = build.outputs.roots
    content = build.inputs.snapshot.digest(action.inputs[0]) if others(roots) else None
    return project, roots, content or ""


class SpreadJob(StepwiseJob):
    """A job whose steps are a request of their own, so that they run side by side and are shared."""

    is_spread = True

    def kill(self, reason: EndReason) -> None:
        self._kill = self._kill or reason
        if self._inner is not None:
            self._cancel(self._inner.build.request.request_id)

    async def carry_out(self, inner: StepRequest, runner: Executor) -> Ending:
        return await self._side_by_side(inner)
