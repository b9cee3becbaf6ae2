"""Takes in compiles of foreign builds: known answers at once, the others as plans.

A compile that was asked before, with every file of its answer as it was, costs a stat a file: no plan, no key, no
queue. Knows stamps and descriptions of tools; what a command line means is `codegen.commandline`'s business.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3

from buildd import history, sweep
from buildd.compiling import Compiling, Delivery, Figures, count_hit, said
from buildd.errors import BuilddError
from buildd.eventlog import RequestLog
from buildd.files import Files, Snapshot, Stamp, Traits, stamp_of, trustworthy
from buildd.notebook import Notebook
from buildd.planner import Planner
from buildd.shadow import asked_names
from buildd.stamps import Listing, Stamps, listed_names
from buildd.store import Result, Store
from codegen import foreign
from codegen.commandline import parse
from codegen.foreign import DEPENDENCIES, Described
from codegen.parsing import Compile, HandThrough, Reason
from codegen.plan import Action, RequestError, Steps
from protocol import messages as m

MOST_STAMPS = 500_000
"""Of all known answers together; about 50 bytes each."""
RESTING_STAMPS = 50_000
"""The same while nothing is built."""
MOST_BUILDS = 32
MOST_TOOLS = 64
MOST_FLAGS = 256
"""Sets of flags of one tool whose steps are known."""
HANDED_THROUGH = "handed-through"
"""Code of a `Done` that sends the caller to the tool itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """A result and all that it stands on."""

    stamps: Stamps
    delivery: Delivery
    result: Result
    rules: bytes
    """Of the depfile."""


@dataclass(frozen=True, slots=True)
class _Tool:
    described: Described
    stamps: Stamps
    steps: dict[tuple[str, ...], Steps | str] = field(default_factory=dict)
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
        planner: Planner,
        in_pool: Callable[..., Awaitable[Any]],
        builds: OrderedDict[m.BuildId, Figures],
    ) -> None:
        self._store = store
        self._files = files
        self._notebook = notebook
        self._planner = planner
        self._in_pool = in_pool
        self._builds = builds
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._known_stamps = 0
        self._names: dict[bytes, bytes] = {}
        self._words: dict[frozenset[str], frozenset[str]] = {}
        self._lock = threading.Lock()
        self._tools: OrderedDict[tuple[object, ...], _Tool] = OrderedDict()
        self._describing = asyncio.Lock()
        self._sweep = sweep.sweep_of(store.folder)

    async def receive(self, request: m.Request, log: RequestLog) -> Compiling | None:
        """A compile that has to be looked up; None where it is answered or handed through already."""
        figures = self._figures(request.build_id)
        known = None if request.recache else self._recall(request)
        if known is not None:
            outputs: list[m.ToolOutput] | None = await self._in_pool(self._answer, known, request.umask)
            if outputs is not None:
                count_hit(self._store, figures, known.result)
                for output in outputs:
                    log.append(output)
                log.append(m.Done(outcome=m.Outcome.BUILT, hits=1, saved_s=known.result.timing.wall_s))
                return None
        try:
            return await self._plan(request, log, figures)
        except HandThrough as why:
            self._hand_through(log, figures, why)
        except (RequestError, BuilddError, OSError) as error:
            self._hand_through(log, figures, HandThrough(Reason.TOOL, str(error)))
        return None

    def rest(self) -> None:
        """Give memory back, but for the answers that an edited project of usual size asks for next."""
        with self._lock:
            self._evict(RESTING_STAMPS)
            names = {name for known in self._known.values() for name in known.stamps.paths}
            self._names = {name: name for name in names}
            self._words.clear()

    # ----------------------------------------------------------------

    def _answer(self, known: Known, umask: int) -> list[m.ToolOutput] | None:
        """Deliver a known result if everything is as it was; what its tool said. In a worker thread."""
        delivery, result = known.delivery, known.result
        try:
            if not known.stamps.hold(self._sweep):
                return None
            delivery = replace(delivery, umask=umask)
            delivery.check()
            outputs = said(self._store, result)
            if outputs is None:
                return None
            for output in result.outputs:
                write = partial(self._store.restore, output.digest)
                if output.name != DEPENDENCIES and not delivery.put_object(self._files, output.digest, write):
                    return None
            delivery.put_depfile(known.rules)
            return outputs
        except (OSError, BuilddError, HandThrough):
            return None  # the long way says why

    async def _plan(self, request: m.Request, log: RequestLog, figures: Figures) -> Compiling:
        if not os.path.isabs(request.project) or not os.path.isdir(request.project) or not request.command:
            raise HandThrough(Reason.TOOL, f"nothing to do in {request.project}")
        compile = parse(request.command, request.project, tuple(request.environment.items()))
        described = await self._describe(compile, request)
        delivery = Delivery(compile, request.project, request.umask, foreign.system_folders(compile, described))
        steps = await self._steps(compile, described, request)
        plan = foreign.plan(compile, described, request, steps)

        def begin() -> Compiling:
            delivery.check()
            building = Compiling(
                request,
                log,
                self._store,
                self._files,
                self._notebook,
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

    async def _steps(self, compile: Compile, described: Described, request: m.Request) -> Steps | str:
        """How a compile is carried out; asked once for all with the same flags."""
        tool = self._tools.get(foreign.tool_key(compile, request))
        known = tool.steps if tool is not None and tool.described is described else {}
        key = foreign.steps_key(compile)
        async with self._describing:
            if key not in known:
                known[key], _ = await self._planner.learn(
                    f"steps of {request.command[0]}", lambda knowledge: foreign.steps(compile, described, knowledge)
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
        return self._stamps(files, {folder: snapshot.folder_stamp(folder) for folder in folders}, {}, began_ns)

    def _stamps(
        self,
        files: list[tuple[str, Stamp]],
        folders: dict[str, int],
        listings: dict[str, Listing],
        since_ns: int,
    ) -> Stamps | None:
        if any(stamp == -1 and folder not in listings for folder, stamp in folders.items()):
            return None
        if not all(trustworthy(stamp, since_ns) for _, stamp in files):
            return None
        paths = [self._names.setdefault(name, name) for name in (os.fsencode(path) for path, _ in files)]
        numbers = sweep.packed([number for _, stamp in files for number in stamp])
        return Stamps(paths, numbers, tuple((f, stamp, listings.get(f)) for f, stamp in folders.items()))

    def _listings(self, building: Compiling, action: Action, used: Iterable[str]) -> dict[str, Listing]:
        """What matters in the folders of the outputs: a name that some include could mean, which has a part of what was
        read or searched, or which `__has_include` asked for."""
        snapshot, delivery = building.snapshot, building.delivery
        words: set[str] = set()
        for path in (
            *used,
            *action.search,
            *building.tool(action).search,
            *(os.path.dirname(p) for p in action.inputs),
        ):
            words.update(path.split("/"))
        for path in (*used, *action.inputs):
            fact = snapshot.fact(path)
            if fact is not None and Traits.HAS_INCLUDE in fact.traits:
                with open(snapshot.absolute(path), "rb") as file:
                    for name in asked_names(file.read()):
                        words.update(name.split("/"))
        names = frozenset(words)
        names = self._words.setdefault(names, names)
        found = {}
        for output in (delivery.compile.output, delivery.compile.depfile.path if delivery.compile.depfile else ""):
            folder = os.path.realpath(os.path.join(snapshot.project, os.path.dirname(output)))
            listed = snapshot.listed("." if folder == snapshot.project else folder)
            now = listed_names(folder, names)
            # As it was when the answer was found: what came since is no part of it.
            if listed is not None and {name for name, _ in now} == names & listed:
                found[folder] = Listing(names, now)
        return found

    def _keep(self, building: Compiling, described: Described) -> None:
        """Remember what a compile that was just built stood on. In a worker thread."""
        result, action = building.result, building.plan.actions[0]
        tool = self._tools.get(foreign.tool_key(building.delivery.compile, building.request))
        used = building.lookup.used_by(action)
        if result is None or used is None or tool is None or tool.described is not described:
            return
        snapshot = building.snapshot
        files = []
        for path in dict.fromkeys((*action.inputs, *used, *building.delivery.compile.read)):
            fact = snapshot.fact(path)
            if fact is None:
                return
            files.append((snapshot.absolute(path), fact.stamp))
        folders = {_folder(snapshot, folder): stamp for folder, stamp in building.lookup.folders.items()}
        try:
            listings = self._listings(building, action, used)
        except OSError:
            return
        stamps = self._stamps(files, folders, listings, building.started_ns)
        if stamps is None:
            return
        together = Stamps(
            [*stamps.paths, *tool.stamps.paths],
            stamps.stamps + tool.stamps.stamps,
            tuple(dict.fromkeys((*stamps.folders, *tool.stamps.folders))),
        )
        listed = next((self._store.get(o.digest) for o in result.outputs if o.name == DEPENDENCIES), None)
        if listed is None:
            return
        self._sweep.expect(sweep.WORTH_FILES)
        rules = building.delivery.rules(listed)
        self._remember(_name(building.request), Known(together, building.delivery, result, rules))

    def _remember(self, name: bytes, known: Known) -> None:
        with self._lock:
            before = self._known.pop(name, None)
            self._known[name] = known
            self._known_stamps += len(known.stamps.paths) - (len(before.stamps.paths) if before else 0)
            self._evict(MOST_STAMPS)

    def _evict(self, most_stamps: int) -> None:
        while self._known_stamps > most_stamps and len(self._known) > 1:
            _, old = self._known.popitem(last=False)
            self._known_stamps -= len(old.stamps.paths)

    def _recall(self, request: m.Request) -> Known | None:
        name = _name(request)
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
        return known

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


def _name(request: m.Request) -> bytes:
    """What an answer is known under: all of a request that can change it."""
    fields = (request.command, request.project, sorted(request.environment.items()))
    return blake3(msgspec.msgpack.encode(fields)).digest()
