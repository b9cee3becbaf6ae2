"""Takes in compiles of foreign builds as plans, and publishes their answers for direct hits.

While every file of an answer is unchanged, the shim serves the same compile from the answer (`answers`): no plan, no
key, no queue. Knows stamps and descriptions of tools; `codegen.foreign.command_line` knows what a command line means.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from blake3 import blake3

from buildd.builds import shared_results
from buildd.builds.active_build import ActiveBuild, StoredResults
from buildd.builds.event_log import RequestLog
from buildd.builds.inputs import Inputs
from buildd.builds.planner import Planner
from buildd.errors import BuilddError
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import Stamp, stamp_of, trustworthy
from buildd.files.stamp_set import FolderStamp, Stamps, listed_names
from buildd.files.traits import Traits
from buildd.keys.include_search import asked_names, library_rivals
from buildd.keys.lookup import Missing
from buildd.keys.survey_memory import Memory
from buildd.native import sweep
from buildd.scheduling import call_notes
from buildd.scheduling.build_figures import Figures
from buildd.scheduling.delivery import Delivery
from buildd.scheduling.foreign_compile import PASSED_THROUGH, CommandOutputs, CompileReport
from buildd.shims import run_log
from buildd.store.answers import Answer, Answers, question_of
from buildd.store.notebook import Notebook
from buildd.store.store import Store
from buildd.tier.store_tier import StoreTier
from codegen.compilers.command_parser import Compile, Family, Makes, PassThrough, Reason
from codegen.compilers.temporary_roots import Roots
from codegen.errors import RequestError
from codegen.foreign import called_tool, compile_plan, several_sources
from codegen.foreign.called_tool import Described
from codegen.foreign.command_line import parse
from codegen.foreign.compile_plan import DEPENDENCIES
from codegen.plan import Action, Argument, Steps
from codegen.reach import Reach, reach_of, read_regular
from protocol import messages as m

MOST_BUILDS = 32
MOST_TOOLS = 64
MOST_FLAGS = 256
"""Sets of flags of one tool whose steps are remembered."""
_NO_DIGEST = bytes(32)
_MOST_ASKING = 1 << 10
"""Headers whose `__has_include` words are remembered."""


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
        self._answers = Answers(store.folder, store.limit_bytes)
        self._tools: OrderedDict[tuple[object, ...], _Tool] = OrderedDict()
        self._describing = asyncio.Lock()
        self._sweep = sweep.sweep_of(store.folder)
        self._asked: dict[m.Digest, frozenset[str]] = {}
        """Words that headers ask `__has_include` for, by the header's digest. Threads may work one out twice."""

    async def receive(self, request: m.Request, log: RequestLog) -> ActiveBuild | None:
        """A compile that has to be looked up; None where it is passed through."""
        figures = self._figures(request.build_id)
        try:
            return await self._plan(request, log, figures)
        except PassThrough as why:
            if why.reason not in (Reason.SEVERAL_SOURCES, Reason.LINK) or not _divide(request, log, why):
                self._pass_through(request, log, figures, why)
        except (RequestError, BuilddError, OSError) as error:
            self._pass_through(request, log, figures, PassThrough(Reason.TOOL, str(error)))
        return None

    # ----------------------------------------------------------------

    async def _plan(self, request: m.Request, log: RequestLog, figures: Figures) -> ActiveBuild | None:
        if not os.path.isabs(request.project) or not os.path.isdir(request.project) or not request.command:
            raise PassThrough(Reason.TOOL, f"nothing to do in {request.project}")
        if reach_of(request.project, {}) is not Reach.EVERYONE:
            raise PassThrough(Reason.NO_FILE, request.project)
        compile = parse(request.command, request.project, tuple(request.environment.items()))
        described = await self._describe(compile, request)
        compile = called_tool.settled(compile, described)
        system = compile_plan.system_folders(compile, described)
        roots = compile_plan.moving_roots(compile, described, request)
        steps = await self._steps(compile, described, request, roots)
        if compile.family is Family.NVCC and isinstance(steps, str):
            roots = ()
        delivery = Delivery(compile, request.project, request.umask, system, roots, described.clang)
        plan = compile_plan.plan(compile, described, request, steps, roots)

        def begin() -> ActiveBuild:
            delivery.check(compile_plan.named_files(compile, request))
            outputs = CommandOutputs(delivery, lambda made: self._keep(made, described))
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
            source = build.inputs.snapshot.fact(compile.source)
            if source is not None and Traits.PROCESS in source.traits:
                raise PassThrough(Reason.NO_FILE, f"{compile.source} names one below /dev or /proc")
            build.adopt(plan, build.expected(plan.actions))
            return build

        build: ActiveBuild = await self._in_pool(begin)
        if call_notes.is_proving(request) and not compile.objects and compile.makes is not Makes.RULES:
            known = await self._in_pool(lambda: shared_results.look(build, 0))
            if isinstance(known, Missing):
                named = os.path.normpath(os.path.join(request.project, compile.source or compile.output))
                log.append(call_notes.need(request, named, known.reasons))
                return None
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
        folders = [folder for folder in request.environment.get("PATH", "").split(os.pathsep) if folder[:1] == "/"]
        files = []
        for path in dict.fromkeys((*asked, *(file.path for file in described.tool.files))):
            stamp = stamp_of(path)
            if stamp is None:
                folders.append(path if os.path.isdir(path) else os.path.dirname(path))
            else:
                files.append((path, stamp))
        return _stamps(files, [FolderStamp(folder, snapshot.folder_stamp(folder)) for folder in folders], began_ns)

    def _answer(self, outputs: CommandOutputs, action: Action, used: tuple[str, ...], tool: Stamps) -> Answer | None:
        """The answer to the same compile while its files are as they are; None where stamps cannot tell that."""
        result, delivery, store = outputs.result, outputs.delivery, self._store
        stamps = self._stamps_of(outputs.build, delivery.compile, action, used)
        if result is None or stamps is None:
            return None
        made = {output.name: output.digest for output in result.outputs}
        listed, *content = (store.get(digest) for digest in (made.pop(DEPENDENCIES), *made.values()))
        said = delivery.said(store, result)
        if listed is None or len(content) != 1 or content[0] is None or said is None:
            return None
        depfile = delivery.compile.depfile
        return Answer(
            question=question_of(outputs.build.request),
            stamps=stamps.joined(tool),
            output=delivery.compile.output,
            object=content[0],
            depfile=depfile.path if depfile else "",
            rules=delivery.rules(listed),
            mode=delivery.mode,
            stdout=said[0],
            stderr=said[1],
            key=result.key,
            saved_s=result.timing.wall_s,
        )

    def _stamps_of(self, build: ActiveBuild, compile: Compile, action: Action, used: tuple[str, ...]) -> Stamps | None:
        snapshot = build.inputs.snapshot
        files, digests, bare = [], [], []
        # The others are response files and precompiled headers.
        texts = {action.inputs[0], *used} if build.inputs.lookup.holds_for_bare(action) else set()
        taken = (path for path, _ in build.inputs.lookup.precompiled_of(action).present)
        for path in dict.fromkeys((*action.inputs, *used, *taken, *compile.read)):
            fact = snapshot.fact(path)
            if fact is None:
                return None
            files.append((snapshot.absolute(path), fact.stamp))
            digests.append(bytes.fromhex(fact.digest))
            form = bytes.fromhex(fact.bare)[: len(_NO_DIGEST)] if path in texts else b""
            bare.append(form or _NO_DIGEST)
        try:
            names = self._names(build, action, used)
            listings = self._listings(build, compile, names)
        except OSError:
            return None
        folders = [
            FolderStamp(path, stamp, listings.get(path))
            for path, stamp in ((_folder(snapshot, f), stamp) for f, stamp in build.inputs.lookup.folders.items())
        ]
        stamps = _stamps(files, folders, build.started_ns, names)
        return None if stamps is None else replace(stamps, digests=b"".join(digests), bare=b"".join(bare))

    def _names(self, build: ActiveBuild, action: Action, used: tuple[str, ...]) -> frozenset[str]:
        """The names that matter in the folders of the outputs: those that an include could mean, since they are parts
        of paths that were read or searched, and those that `__has_include` asked for. Raises OSError."""
        snapshot = build.inputs.snapshot
        words = set(_words(used))
        for path in (*action.search, *build.tool(action).search, *(os.path.dirname(p) for p in action.inputs)):
            words.update(path.split("/"))
        words.update(build.inputs.lookup.precompiled_of(action).names())
        for path in (*used, *action.inputs):
            fact = snapshot.fact(path)
            if fact is not None and Traits.HAS_INCLUDE in fact.traits:
                words.update(self._asked_words(snapshot.absolute(path), fact.digest))
        return frozenset(words)

    def _asked_words(self, path: str, digest: m.Digest) -> frozenset[str]:
        """Parts of the names that a file asks `__has_include` for. Raises OSError."""
        known = self._asked.get(digest)
        if known is None:
            content = read_regular(path)
            known = frozenset(part for name in asked_names(content) for part in name.split("/"))
            if len(self._asked) >= _MOST_ASKING:
                self._asked.clear()
            if blake3(content).hexdigest() == digest:  # otherwise it was changed just now
                self._asked[digest] = known
        return known

    def _listings(
        self, build: ActiveBuild, compile: Compile, names: frozenset[str]
    ) -> dict[str, frozenset[tuple[str, bool]]]:
        """Which of those names are in the folders of the outputs. Raises OSError."""
        snapshot = build.inputs.snapshot
        found = {}
        for output in (compile.output, compile.depfile.path if compile.depfile else ""):
            folder = os.path.realpath(os.path.join(snapshot.project, os.path.dirname(output)))
            listed = snapshot.listed("." if folder == snapshot.project else folder)
            now = listed_names(folder, names)
            # Only as it was when the answer was found: files that came since are no part of it.
            if listed is not None and {name for name, _ in now} == names & listed:
                found[folder] = now
        return found

    def _keep(self, outputs: CommandOutputs, described: Described) -> None:
        """Publish the answer of a compile that was just built. In a worker thread."""
        build, compile = outputs.build, outputs.delivery.compile
        action = build.plan.actions[0]
        tool = self._tools.get(called_tool.tool_key(compile, build.request))
        used = build.inputs.lookup.used_by(action)
        if used is None or tool is None or tool.described is not described or self._store.read_only:
            return
        if compile.native:
            return  # no stamp tells that the store has come to another machine
        if several_sources.is_part(compile.output) or call_notes.are_wanted(build.request):
            return  # its folder, or the one for notes, has another name the next time
        answer = self._answer(outputs, action, used, tool.stamps)
        if answer is not None:
            self._answers.publish(answer)

    def _figures(self, build: m.BuildId) -> Figures:
        figures = self._builds.pop(build, None) or Figures()
        self._builds[build] = figures
        while len(self._builds) > MOST_BUILDS:
            self._builds.popitem(last=False)
        return figures

    def _pass_through(self, request: m.Request, log: RequestLog, figures: Figures, why: PassThrough) -> None:
        reason = why.reason.value
        call = run_log.call_of(request.command, request.project)
        explained = m.Explained(action=call, would_run=True, reasons=(f"passed through: {why}",))
        run_log.note_call(self._store.folder, request.build_id, explained)
        figures.count_passed_through(reason)
        self._store.tally.count_passed_through(reason)
        if call_notes.is_proving(request) and call_notes.is_compile(request.command, why):
            log.append(call_notes.need(request, call, [f"it is never kept: {why}"]))
            return
        log.append(m.Done(outcome=m.Outcome.REFUSED, code=PASSED_THROUGH, message=str(why)))


@lru_cache(maxsize=32)  # the sources of a build share their headers
def _words(used: tuple[str, ...]) -> frozenset[str]:
    """The names on the paths of files, and those that a linker takes in place of a library's."""
    words = {part for path in used for part in path.split("/")}
    return frozenset(words.union(*(library_rivals(os.path.basename(path)) for path in used)))


def _divide(request: m.Request, log: RequestLog, why: PassThrough) -> bool:
    """Tell the shim the commands with one source each; whether there are any."""
    try:
        parts = several_sources.divided(request.command, request.project, several_sources.new_folder(os.urandom(8)))
    except PassThrough:
        return False
    if parts is None:
        return False
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


def _folder(snapshot: Snapshot, folder: str) -> str:
    return snapshot.project if folder == "." else os.path.normpath(snapshot.absolute(folder))


def _stamps(
    files: list[tuple[str, Stamp]], folders: list[FolderStamp], since_ns: int, names: frozenset[str] = frozenset()
) -> Stamps | None:
    """Stamps of files and folders; None where the stamps of now would not tell every later change."""
    if any(folder.stamp == -1 and folder.there is None for folder in folders):
        return None
    if not all(trustworthy(stamp, since_ns) for _, stamp in files):
        return None
    numbers = sweep.packed([number for _, stamp in files for number in stamp])
    return Stamps([os.fsencode(path) for path, _ in files], numbers, tuple(folders), names)
