"""Takes in compiles of foreign builds as plans, and publishes what they came to: known answers.

Whoever asks the same again, with every file of the answer as it was, finds it there without us (`answers`): no plan, no
key, no queue. Knows stamps and descriptions of tools; what a command line means is `codegen.commandline`'s business.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from blake3 import blake3

from buildd import history, sweep
from buildd.answers import Answer, Answers, question_of
from buildd.compiling import Compiling, Delivery, Figures
from buildd.errors import BuilddError
from buildd.eventlog import RequestLog
from buildd.files import Files, Snapshot, Stamp, stamp_of, trustworthy
from buildd.notebook import Notebook
from buildd.planner import Planner
from buildd.shadow import Memory, asked_names, library_rivals
from buildd.stamps import Folder, Stamps, listed_names
from buildd.store import Store
from buildd.traits import Traits
from codegen import foreign
from codegen.commandline import parse
from codegen.foreign import DEPENDENCIES, Described
from codegen.moved import Roots
from codegen.parsing import Compile, Family, HandThrough, Reason
from codegen.plan import Action, Argument, RequestError, Steps
from protocol import messages as m

MOST_BUILDS = 32
MOST_TOOLS = 64
MOST_FLAGS = 256
_MOST_ASKING = 1 << 10
"""Sets of flags of one tool whose steps are known."""
HANDED_THROUGH = "handed-through"
"""Code of a `Done` that sends the caller to the tool itself."""


@dataclass(frozen=True, slots=True)
class _Tool:
    described: Described
    stamps: Stamps
    steps: dict[tuple[Argument, ...], Steps | str] = field(default_factory=dict)
    """How compiles are carried out, by `foreign.steps_key`; the newest last."""


class Compiles:
    """Compiles of one store.

    Args:
        in_pool: runs a function in a worker thread.
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
    ) -> None:
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
        """Of headers, the words that they ask `__has_include` for. Threads may work one out twice."""

    async def receive(self, request: m.Request, log: RequestLog) -> Compiling | None:
        """A compile that has to be looked up; None where it is handed through."""
        figures = self._figures(request.build_id)
        try:
            return await self._plan(request, log, figures)
        except HandThrough as why:
            self._hand_through(log, figures, why)
        except (RequestError, BuilddError, OSError) as error:
            self._hand_through(log, figures, HandThrough(Reason.TOOL, str(error)))
        return None

    # ----------------------------------------------------------------

    async def _plan(self, request: m.Request, log: RequestLog, figures: Figures) -> Compiling:
        if not os.path.isabs(request.project) or not os.path.isdir(request.project) or not request.command:
            raise HandThrough(Reason.TOOL, f"nothing to do in {request.project}")
        compile = parse(request.command, request.project, tuple(request.environment.items()))
        described = await self._describe(compile, request)
        system = foreign.system_folders(compile, described)
        roots = foreign.moving_roots(compile, described, request)
        steps = await self._steps(compile, described, request, roots)
        if compile.family is Family.NVCC and isinstance(steps, str):
            roots = ()
        delivery = Delivery(compile, request.project, request.umask, system, roots)
        plan = foreign.plan(compile, described, request, steps, roots)

        def begin() -> Compiling:
            delivery.check()
            building = Compiling(
                request,
                log,
                self._store,
                self._files,
                self._notebook,
                self._surveys,
                delivery=delivery,
                figures=figures,
                keep=lambda done: self._keep(done, described),
            )
            identities = [(building.lookup.name_key(a), a.kind, a.resources) for a in plan.actions]
            building.adopt(plan, [e.resources for e in history.estimates(self._store, identities)])
            return building

        building: Compiling = await self._in_pool(begin)
        return building

    async def _describe(self, compile: Compile, request: m.Request) -> Described:
        key = foreign.tool_key(compile, request)
        # One after the other: a build begins with as many equal questions as it has jobs.
        async with self._describing:
            tool = self._tools.get(key)
            if tool is not None and await self._in_pool(tool.stamps.hold, self._sweep):
                return tool.described
            began_ns = self._files.now_ns()
            described, asked = await self._planner.learn(
                f"tool {request.command[0]}", lambda knowledge: foreign.describe(compile, request, knowledge)
            )
            self._tools.pop(key, None)
            stamps = await self._in_pool(self._tool_stamps, described, asked, request, began_ns)
            if stamps is not None:
                self._tools[key] = _Tool(described, stamps)
                while len(self._tools) > MOST_TOOLS:
                    self._tools.popitem(last=False)
            return described

    async def _steps(self, compile: Compile, described: Described, request: m.Request, roots: Roots) -> Steps | str:
        """How a compile is carried out; asked once for all with the same flags."""
        tool = self._tools.get(foreign.tool_key(compile, request))
        known = tool.steps if tool is not None and tool.described is described else {}
        key = foreign.steps_key(compile, roots)
        async with self._describing:
            if key not in known:
                known[key], _ = await self._planner.learn(
                    f"steps of {request.command[0]}",
                    lambda knowledge: foreign.steps(compile, described, roots, knowledge),
                )
                if len(known) > MOST_FLAGS:
                    del known[next(iter(known))]
            return known[key]

    def _tool_stamps(
        self, described: Described, asked: tuple[str, ...], request: m.Request, began_ns: int
    ) -> Stamps | None:
        """What a description stands on: the tool's files, and folders where another one would be found first."""
        snapshot = Snapshot(self._files, "/")
        folders = [folder for folder in request.environment.get("PATH", "").split(os.pathsep) if folder[:1] == "/"]
        files = []
        for path in dict.fromkeys((*asked, *(file.path for file in described.tool.files))):
            stamp = stamp_of(path)
            if stamp is None:
                folders.append(path if os.path.isdir(path) else os.path.dirname(path))
            else:
                files.append((path, stamp))
        return _stamps(files, [Folder(folder, snapshot.folder_stamp(folder)) for folder in folders], began_ns)

    def _answer(self, building: Compiling, action: Action, used: tuple[str, ...], tool: Stamps) -> Answer | None:
        """What a compile came to, for whoever asks the same again; None where that cannot be told by stamps."""
        result, delivery, store = building.result, building.delivery, self._store
        stamps = self._stamps_of(building, action, used)
        if result is None or stamps is None:
            return None
        made = {output.name: output.digest for output in result.outputs}
        listed, *content = (store.get(digest) for digest in (made.pop(DEPENDENCIES), *made.values()))
        said = delivery.said(store, result)
        if listed is None or len(content) != 1 or content[0] is None or said is None:
            return None
        depfile = delivery.compile.depfile
        return Answer(
            question=question_of(building.request),
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

    def _stamps_of(self, building: Compiling, action: Action, used: tuple[str, ...]) -> Stamps | None:
        snapshot = building.snapshot
        files, digests = [], []
        taken = (path for path, _ in building.lookup.precompiled_of(action).present)
        for path in dict.fromkeys((*action.inputs, *used, *taken, *building.delivery.compile.read)):
            fact = snapshot.fact(path)
            if fact is None:
                return None
            files.append((snapshot.absolute(path), fact.stamp))
            digests.append(bytes.fromhex(fact.digest))
        try:
            names = self._names(building, action, used)
            listings = self._listings(building, names)
        except OSError:
            return None
        folders = [
            Folder(path, stamp, listings.get(path))
            for path, stamp in ((_folder(snapshot, f), stamp) for f, stamp in building.lookup.folders.items())
        ]
        stamps = _stamps(files, folders, building.started_ns, names)
        return None if stamps is None else replace(stamps, digests=b"".join(digests))

    def _names(self, building: Compiling, action: Action, used: tuple[str, ...]) -> frozenset[str]:
        """What matters in the folders of the outputs: a name that some include could mean, which has a part of what was
        read or searched, or which `__has_include` asked for. Raises OSError."""
        snapshot = building.snapshot
        words: set[str] = set()
        for path in (
            *used,
            *action.search,
            *building.tool(action).search,
            *(os.path.dirname(p) for p in action.inputs),
        ):
            words.update(path.split("/"))
        words.update(building.lookup.precompiled_of(action).names())
        words.update(rival for path in used for rival in library_rivals(os.path.basename(path)))
        for path in (*used, *action.inputs):
            fact = snapshot.fact(path)
            if fact is not None and Traits.HAS_INCLUDE in fact.traits:
                words.update(self._asked_words(snapshot.absolute(path), fact.digest))
        return frozenset(words)

    def _asked_words(self, path: str, digest: m.Digest) -> frozenset[str]:
        """Parts of the names that a file asks `__has_include` for. Raises OSError."""
        known = self._asked.get(digest)
        if known is None:
            with open(path, "rb") as file:
                content = file.read()
            known = frozenset(part for name in asked_names(content) for part in name.split("/"))
            if len(self._asked) >= _MOST_ASKING:
                self._asked.clear()
            if blake3(content).hexdigest() == digest:  # or it was changed just now
                self._asked[digest] = known
        return known

    def _listings(self, building: Compiling, names: frozenset[str]) -> dict[str, frozenset[tuple[str, bool]]]:
        """What of that is in the folders of the outputs. Raises OSError."""
        snapshot, compile = building.snapshot, building.delivery.compile
        found = {}
        for output in (compile.output, compile.depfile.path if compile.depfile else ""):
            folder = os.path.realpath(os.path.join(snapshot.project, os.path.dirname(output)))
            listed = snapshot.listed("." if folder == snapshot.project else folder)
            now = listed_names(folder, names)
            # As it was when the answer was found: what came since is no part of it.
            if listed is not None and {name for name, _ in now} == names & listed:
                found[folder] = now
        return found

    def _keep(self, building: Compiling, described: Described) -> None:
        """Publish what a compile that was just built stood on. In a worker thread."""
        action = building.plan.actions[0]
        tool = self._tools.get(foreign.tool_key(building.delivery.compile, building.request))
        used = building.lookup.used_by(action)
        if used is None or tool is None or tool.described is not described or self._store.read_only:
            return
        if building.delivery.compile.native:
            return  # no stamp tells that the store has come to another machine
        answer = self._answer(building, action, used, tool.stamps)
        if answer is not None:
            self._answers.publish(answer)

    def _figures(self, build: m.BuildId) -> Figures:
        figures = self._builds.pop(build, None) or Figures()
        self._builds[build] = figures
        while len(self._builds) > MOST_BUILDS:
            self._builds.popitem(last=False)
        return figures

    def _hand_through(self, log: RequestLog, figures: Figures, why: HandThrough) -> None:
        reason = why.reason.value
        figures.handed_through[reason] = figures.handed_through.get(reason, 0) + 1
        self._store.tally.count_handed_through(reason)
        log.append(m.Done(outcome=m.Outcome.REFUSED, code=HANDED_THROUGH, message=str(why)))


def _folder(snapshot: Snapshot, folder: str) -> str:
    return snapshot.project if folder == "." else os.path.normpath(snapshot.absolute(folder))


def _stamps(
    files: list[tuple[str, Stamp]], folders: list[Folder], since_ns: int, names: frozenset[str] = frozenset()
) -> Stamps | None:
    """All of that, where stamps of now tell every later change."""
    if any(folder.stamp == -1 and folder.there is None for folder in folders):
        return None
    if not all(trustworthy(stamp, since_ns) for _, stamp in files):
        return None
    numbers = sweep.packed([number for _, stamp in files for number in stamp])
    return Stamps([os.fsencode(path) for path, _ in files], numbers, tuple(folders), names)
