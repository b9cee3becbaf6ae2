"""Takes in compiles of foreign builds as plans, and publishes their answers for direct hits.

While every file of an answer is unchanged, the shim serves the same compile from the answer (`answers`): no plan, no
key, no queue. Knows stamps and descriptions of tools; `codegen.foreign.command_line` knows what a command line means.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from buildd.builds.active_build import ActiveBuild, StoredResults
from buildd.builds.build_figures import Figures
from buildd.builds.event_log import RequestLog
from buildd.builds.inputs import Inputs
from buildd.builds.planner import Planner
from buildd.errors import BuilddError
from buildd.files import sweep
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import stamp_of
from buildd.files.stamp_set import FolderStamp, Stamps, trusted_stamps
from buildd.files.traits import Traits
from buildd.keys.survey_memory import Memory
from buildd.scheduling import call_notes, proof_calls
from buildd.scheduling.answer_publisher import AnswerPublisher
from buildd.scheduling.delivery import Delivery
from buildd.scheduling.foreign_compile import PASSED_THROUGH, CommandOutputs, CompileReport
from buildd.scheduling.step_jobs import surroundings
from buildd.shims import run_log
from buildd.shims.call_names import call_of
from buildd.store.notebook import Notebook
from buildd.store.store import Store
from buildd.tier.store_tier import StoreTier
from codegen.compilers import temporary_roots
from codegen.compilers.closure import loading_folders
from codegen.compilers.command_parser import Compile, Family, Makes, PassThrough, Reason
from codegen.compilers.temporary_roots import Roots
from codegen.errors import RequestError
from codegen.foreign import called_tool, compile_plan, library_path, several_sources
from codegen.foreign.called_tool import Described
from codegen.foreign.command_line import parse
from codegen.foreign.trial_compile import is_trial
from codegen.plan import Argument, Steps
from codegen.reach import Reach, reach_of
from codegen.steps.module_ids import ids_of
from protocol import messages as m
from protocol.problem import in_one_line
from protocol.request import USUAL_UMASK

_log = logging.getLogger(__name__)

MOST_BUILDS = 32
MOST_TOOLS = 64
MOST_FLAGS = 256
"""Sets of flags of one tool whose steps are remembered."""


@dataclass(frozen=True, slots=True)
class _Tool:
    described: Described
    stamps: Stamps
    steps: dict[tuple[Argument, ...], Steps | str] = field(default_factory=dict)
    """How compiles are carried out, by `foreign.steps_key`; the newest last."""


class ForeignIntake:
    """Takes in the compiles of one store.

    Args:
        in_pool: runs a function in a worker thread.
        tier: where results of other machines are, if the user has named one.
    """

    def __init__(
        self,
        store: Store,
        files: Files,
        notebook: Notebook,
        surveys: Memory,
        planner: Planner,
        in_pool: Callable[..., Awaitable[Any]],
        builds: OrderedDict[m.BuildId, Figures],
        tier: StoreTier | None = None,
    ) -> None:
        self._tier = tier
        self._store = store
        self._files = files
        self._notebook = notebook
        self._surveys = surveys
        self._planner = planner
        self._in_pool = in_pool
        self._builds = builds
        self._publisher = AnswerPublisher(store)
        self._tools: OrderedDict[tuple[object, ...], _Tool] = OrderedDict()
        self._describing = asyncio.Lock()
        self._unpublished = weakref.WeakSet[ActiveBuild]()
        """Compiles whose LD_LIBRARY_PATH names folders that were left out. A shim would not see that a library came."""
        self._sweep = sweep.sweep_of(store.folder)

    async def receive(self, request: m.Request, log: RequestLog) -> ActiveBuild | None:
        """A compile that has to be looked up; None where it is passed through."""
        figures = self._figures(request.build_id)
        told = request
        if value := request.environment.get(library_path.NAME):
            kept = {library_path.NAME: library_path.without_idle(value, self._files.now_ns())}
            others = {name: text for name, text in request.environment.items() if name != library_path.NAME}
            if kept[library_path.NAME] != value:
                told = msgspec.structs.replace(request, environment=others | (kept if any(kept.values()) else {}))
        try:
            build = await self._plan(told, log, figures)
            if build is not None and told is not request:
                self._unpublished.add(build)
            return build
        except PassThrough as why:
            if why.reason not in (Reason.SEVERAL_SOURCES, Reason.LINK) or not self._divide(request, log, why):
                self._pass_through(request, log, figures, why)
        except (RequestError, BuilddError, OSError) as error:
            self._pass_through(request, log, figures, PassThrough(Reason.TOOL, str(error)))
        except Exception as error:  # the edge: a fault of buildd's costs a plain call, and the build's summary tells it
            _log.exception("the compile %s could not be planned", request.request_id)
            said = f"a fault of buildd's: {type(error).__name__}: {in_one_line(error)}"
            self._pass_through(request, log, figures, PassThrough(Reason.NOT_CARRIED_OUT, said))
        return None

    # ----------------------------------------------------------------

    async def _plan(self, request: m.Request, log: RequestLog, figures: Figures) -> ActiveBuild | None:
        if not os.path.isabs(request.project) or not os.path.isdir(request.project) or not request.command:
            raise PassThrough(Reason.TOOL, f"nothing to do in {request.project}")
        if reach_of(request.project, {}) is not Reach.EVERYONE:
            raise PassThrough(Reason.NO_FILE, request.project)
        compile = parse(request.command, request.project, tuple(request.environment.items()))
        compile = temporary_roots.with_tried_objects(compile, request.project)
        tool = self._tools.get(called_tool.tool_key(compile, request))
        build: ActiveBuild | None = None
        if tool is not None:
            build = await self._in_pool(self._begin_known, tool, compile, request, log, figures)
        if tool is not None and build is not None:
            compile = called_tool.settled(compile, tool.described)
        else:
            described = await self._describe(compile, request)
            if several_sources.is_better_divided(compile) and self._divide(request, log, PassThrough(Reason.LINK)):
                return None
            compile = called_tool.settled(compile, described)
            roots = compile_plan.moving_roots(compile, described, request)
            steps = await self._steps(compile, described, request, roots)
            build = await self._in_pool(self._begin, compile, described, request, steps, roots, log, figures)
            build.resources = await self._in_pool(build.expected, build.plan.actions)
        if call_notes.is_proving(request) and not compile.objects and compile.makes is not Makes.RULES:
            reasons = await proof_calls.missing(build, self._in_pool)
            if self._store.unkept is not None:  # nothing that was found is in the user's store
                reasons = (in_one_line(self._store.unkept),)
            if reasons is not None:
                named = os.path.normpath(os.path.join(request.project, compile.source or compile.output))
                passed = m.Done(outcome=m.Outcome.REFUSED, code=PASSED_THROUGH, message="it tries the compiler out")
                log.append(proof_calls.refusal(request, named, reasons) or passed)
                return None
        return build

    def _begin_known(
        self, tool: _Tool, compile: Compile, request: m.Request, log: RequestLog, figures: Figures
    ) -> ActiveBuild | None:
        """Plan a compile and look it up; None if its tool has changed, or its steps are not known. All in one worker
        thread: each change of threads costs as much as the plan or the look-up."""
        if not tool.stamps.hold(self._sweep):
            return None
        described = tool.described
        if several_sources.is_better_divided(compile):
            return None
        compile = called_tool.settled(compile, described)
        roots = compile_plan.moving_roots(compile, described, request)
        steps = tool.steps.get(compile_plan.steps_key(compile, roots))
        if steps is None:
            return None
        build = self._begin(compile, described, request, steps, roots, log, figures)
        if not call_notes.is_proving(request):
            build.look_ahead()
        if build.found_ahead is None:
            build.resources = build.expected(build.plan.actions)
        return build

    def _begin(
        self,
        compile: Compile,
        described: Described,
        request: m.Request,
        steps: Steps | str,
        roots: Roots,
        log: RequestLog,
        figures: Figures,
    ) -> ActiveBuild:
        """Plan a compile. In a worker thread. Raises PassThrough."""
        # The whole of nvcc names a module after the source's path, unless the host compiler alone compiles it.
        nameless = compile.objects or compile.makes is Makes.RULES or compile_plan.is_for_host(compile)
        if compile.family is Family.NVCC and isinstance(steps, str) and not nameless:
            roots = ()
        headers = compile_plan.header_folders(compile, described)
        umask = USUAL_UMASK if request.umask is None else request.umask
        delivery = Delivery(compile, request.project, umask, headers, roots, described.clang)
        plan = compile_plan.plan(compile, described, request, steps, roots)
        (action,) = plan.actions
        delivery.check(compile_plan.named_files(compile, request))
        outputs = CommandOutputs(
            delivery, lambda made: self._keep(made, described), self._publisher.shrink, request.colours
        )
        build = ActiveBuild(
            request,
            log,
            self._notebook,
            Inputs(self._store, self._files, request.project, self._surveys, recache=request.recache),
            results=StoredResults(),
            outputs=outputs,
            report=CompileReport(figures, outputs),
            has_caller=True,
            tier=self._tier,
        )
        build.inputs.lookup.files.waiting = []
        source = build.inputs.snapshot.fact(compile.source)
        if source is not None and Traits.PROCESS in source.traits:
            raise PassThrough(Reason.NO_FILE, f"{compile.source} names one below /dev or /proc")
        build.adopt(plan, [action.resources])
        if isinstance(steps, Steps) and (roots or steps.silent):
            outputs.delivery = replace(delivery, ids=ids_of(steps, action, *surroundings(build, action)))
        if self._store.unkept is not None:
            build.counts.unkept = in_one_line(self._store.unkept)
        return build

    async def _describe(self, compile: Compile, request: m.Request) -> Described:
        key = called_tool.tool_key(compile, request)
        # One at a time: a build begins with as many equal questions as it has jobs.
        async with self._describing:
            tool = self._tools.get(key)
            if tool is not None and await self._in_pool(tool.stamps.hold, self._sweep):
                return tool.described
            began_ns = self._files.now_ns()
            described, asked = await self._planner.learn(
                f"tool {request.command[0]}", lambda knowledge: called_tool.describe(compile, request, knowledge)
            )
            self._tools.pop(key, None)
            stamps = await self._in_pool(self._tool_stamps, described, asked, request, began_ns)
            if stamps is not None:
                self._tools[key] = _Tool(described, stamps)
                while len(self._tools) > MOST_TOOLS:
                    self._tools.popitem(last=False)
            return described

    async def _steps(self, compile: Compile, described: Described, request: m.Request, roots: Roots) -> Steps | str:
        """How a compile is carried out; asked once for all compiles with the same flags."""
        tool = self._tools.get(called_tool.tool_key(compile, request))
        known = tool.steps if tool is not None and tool.described is described else {}
        key = compile_plan.steps_key(compile, roots)
        async with self._describing:
            if key not in known:
                known[key], _ = await self._planner.learn(
                    f"steps of {request.command[0]}",
                    lambda knowledge: compile_plan.steps(compile, described, roots, knowledge),
                )
                if len(known) > MOST_FLAGS:
                    del known[next(iter(known))]
            return known[key]

    def _tool_stamps(
        self, described: Described, asked: tuple[str, ...], request: m.Request, began_ns: int
    ) -> Stamps | None:
        """Stamps that a description depends on: of the tool's files, and of folders where another tool would be found
        first."""
        snapshot = Snapshot(self._files, "/")
        folders = [each for each in called_tool.callers_path(request).split(os.pathsep) if each[:1] == "/"]
        folders += loading_folders(described.environment)
        files = []
        # The command may name another cache's link of the tool.
        for path in dict.fromkeys((*asked, request.command[0], *(file.path for file in described.tool.files))):
            stamp = stamp_of(path)
            if stamp is None:
                folders.append(path if os.path.isdir(path) else os.path.dirname(path))
            else:
                files.append((path, stamp))
        return trusted_stamps(
            files, [FolderStamp(folder, snapshot.folder_stamp(folder)) for folder in folders], began_ns
        )

    def _keep(self, outputs: CommandOutputs, described: Described) -> None:
        """Publish the answer of a compile that was just built. In a worker thread."""
        tool = self._tools.get(called_tool.tool_key(outputs.delivery.compile, outputs.build.request))
        if outputs.build in self._unpublished:
            return
        if tool is not None and tool.described is described:
            self._publisher.publish(outputs, tool.stamps)

    def _figures(self, build: m.BuildId) -> Figures:
        figures = self._builds.pop(build, None) or Figures()
        self._builds[build] = figures
        while len(self._builds) > MOST_BUILDS:
            self._builds.popitem(last=False)
        return figures

    def _pass_through(self, request: m.Request, log: RequestLog, figures: Figures, why: PassThrough) -> None:
        cause = why
        if why.reason is not Reason.QUERY and is_trial(request.command, request.project):
            why = PassThrough(Reason.TRIAL, f"a configure step tries the compiler out ({cause})")
        reason = why.reason.value
        call = call_of(request.command, request.project)
        explained = m.Explained(action=call, would_run=True, reasons=(f"passed through: {why}",))
        one = Figures(passed_through={reason: 1})
        figures.add(one)
        run_log.note_call(
            self._store.folder, request.build_id, run_log.CallNote(explained=explained, counted=one.frozen())
        )
        self._store.tally.count_passed_through(reason)
        done = m.Done(outcome=m.Outcome.REFUSED, code=PASSED_THROUGH, message=str(why))
        if call_notes.is_proving(request):
            done = proof_calls.refusal(request, call, [f"it is never kept: {cause}"], cause) or done
        log.append(done)

    def _divide(self, request: m.Request, log: RequestLog, why: PassThrough) -> bool:
        """Tell the shim the commands with one source each; whether there are any."""
        folder = several_sources.folder_of(request.command, request.project, os.getuid())
        if os.path.lexists(folder):  # another such command runs, or was killed
            folder = several_sources.new_folder(os.urandom(8))
        try:
            parts = several_sources.divided(request.command, request.project, folder)
        except PassThrough:
            return False
        if parts is None:
            return False
        self._publisher.divide(request, parts)
        log.append(
            m.Done(
                outcome=m.Outcome.REFUSED,
                code=PASSED_THROUGH,
                message=str(why),
                commands=parts.commands,
                folder=parts.folder,
                keeps_going=parts.keeps_going,
            )
        )
        return True
