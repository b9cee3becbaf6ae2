"""What happens to a request before anything runs: its store is opened, its plan made, or its answer already known.

Knows stores, plans and records; starts no job and decides no order. All on one event loop; what touches files runs in
the threads that it is given.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from buildd import history, notes, prove, published, restored, sweep, uptodate
from buildd.building import Building
from buildd.carried import Carry, take_over
from buildd.compiles import Compiles
from buildd.compiling import Figures, decoded, encoded
from buildd.errors import BuilddError, in_words
from buildd.eventlog import RequestLog
from buildd.files import Files
from buildd.kept import Plans
from buildd.names import names_below
from buildd.notebook import Notebook
from buildd.planner import Make, Planner
from buildd.profile_cache import flush_asked
from buildd.runner import Runner
from buildd.shadow import Memory
from buildd.store import Store
from buildd.watches import Watches
from buildd.watching import Watch
from codegen.capability import NOT_MEASURED, to_measure
from codegen.plan import Plan, Recompile, RequestError, Resources
from protocol import messages as m

_BUILDS = m.Digest(blake3(b"builds").hexdigest())
"""Name of the record with what builds came to."""
_HEARD_S = 0.002
"""So long after the last event of a build nothing is written down: a thread would keep the loop from sending it."""
_NOTHING = Resources(cpus=0, memory_bytes=0, wall_s=0.0)
"""What an action needs that nobody runs."""
_log = logging.getLogger(__name__)


class OpenStore:
    """A store with what is kept beside it while the daemon lives."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        make: Make | None,
        in_pool: Callable[..., Awaitable[Any]],
        builds: OrderedDict[m.BuildId, Figures],
    ) -> None:
        self.store = store
        self.files = Files(store)
        self.notebook = Notebook(store)
        self.surveys = Memory()
        self.planner = Planner(runner, store, self.files, make)
        self.plans = Plans(sweep.sweep_of(store.folder))
        self.compiles = Compiles(store, self.files, self.notebook, self.surveys, self.planner, in_pool, builds)


class Intake:
    """Takes requests in.

    Args:
        runner: runs probes.
        in_pool: runs a function in a worker thread.
        default_store: store of requests that name none.
        store_limit_bytes: size bound of every store; None means the store's own default.
        make: makes plans, see `Planner`.
    """

    def __init__(
        self,
        runner: Runner,
        in_pool: Callable[..., Awaitable[Any]],
        *,
        default_store: Path,
        store_limit_bytes: int | None = None,
        make: Make | None = None,
    ) -> None:
        self.stores: dict[str, OpenStore] = {}
        self.builds: OrderedDict[m.BuildId, Figures] = OrderedDict()
        """What the last builds that stand-ins compiled for came to."""
        self.default_store = str(default_store)
        self._runner = runner
        self._in_pool = in_pool
        self._store_limit_bytes = store_limit_bytes
        self._make = make
        self._opening = asyncio.Lock()
        self._recording: dict[m.Digest, asyncio.Event] = {}
        """Builds that were answered, and whose records are not written yet."""
        self.watches = Watches(in_pool)

    async def receive(
        self, request: m.Request, log: RequestLog, *, found: list[m.Digest] | None = None
    ) -> Building | None:
        """A request that has something to be built; None where it was answered (or refused) already.

        Args:
            found: gets the keys of the results that an EXPLAIN or PROVE request met.
        """
        try:
            opened = await self.opened(request.store)
        except (BuilddError, OSError, sqlite3.Error) as error:
            _refuse(log, m.Outcome.DAEMON_ERROR, error)
            return None
        for notice in opened.store.take_notices():
            log.append(m.Notice(text=notice, severity=m.Severity.WARNING))
        if request.mode is m.Mode.COMPILE:
            return await self._receive_compile(opened, request, log)
        if request.mode is m.Mode.WATCH:
            await self._watch(opened, request, log)
            return None
        if request.environment.get("FLUSH_PROFILE_CACHE") and request.mode in (m.Mode.BUILD, m.Mode.WARM):
            # Before anything is known to be up to date: which kernel is best is part of that.
            asked = (request.environment, opened.store, request.project, request.build_id)
            for line in await self._in_pool(flush_asked, *asked):
                log.append(m.Notice(text=line))
        await self.watches.learned(request)
        building = Building(request, log, opened.store, opened.files, opened.notebook, opened.surveys)
        building.settled_s = self.watches.settled_s(request, building.begun_s)
        building.mark = self.watches.mark(request)
        if uptodate.may_use(request) and self.watches.may_be_brief(request) and await self._stands(opened, building):
            return None
        try:
            plan = await self._plan_or_last(opened, building)
            if plan.recompile is Recompile.NEVER and request.mode is m.Mode.BUILD:
                await self._in_pool(published.serve, building, plan)
                return None
            _check_measured(plan, request)
            if plan.recompile is Recompile.AGAIN and request.mode is not m.Mode.PROVE:
                building.run_again()
            await self._adopt(building, plan, await self.watches.carry(opened.store, opened.files, request, plan))
            building.urgent = building.nodes_of(self.watches.fresh(request))
        except (RequestError, BuilddError, OSError) as error:
            await self.watches.refused(request)
            _refuse(log, m.Outcome.REFUSED if isinstance(error, RequestError) else m.Outcome.DAEMON_ERROR, error)
            return None
        except Exception as error:  # the edge: a fault of ours must not leave the client waiting
            _log.exception("planning %s failed", request.request_id)
            _refuse(log, m.Outcome.DAEMON_ERROR, error)
            return None
        if request.mode in (m.Mode.PROVE, m.Mode.EXPLAIN):
            await self._in_pool(prove.answer, building, [] if found is None else found)
            return None
        return building

    async def _stands(self, opened: OpenStore, building: Building) -> bool:
        """Whether a request was answered from the record of the last one."""
        request = building.request
        await self._wait_for_record(request)
        if self.watches.has(request):
            record = await self.watches.still_true(opened.store, opened.files, request)
            found = None if record is None else uptodate.Standing(record, complete=True)
        else:
            found = await self._in_pool(uptodate.standing, opened.store, opened.files, request)
        if found is None or to_measure(found.record.unmeasured, request.measures):
            return False
        if found.complete:
            uptodate.tell(found.record, building)
            self.watches.stood(request)
        else:
            results = await restored.put_back(building, found.record, self._in_pool)
            if results is None:
                return False
            with self.recording(request):
                restored.tell(found.record, results, building)
                await self.heard(request)
                await self._in_pool(restored.keep_again, building, found.record)
        await self._in_pool(building.keep_log)
        return True

    @contextmanager
    def recording(self, request: m.Request) -> Iterator[None]:
        """The last event of a build is told, and then its record is written: whoever asks the same meanwhile waits."""
        if not uptodate.may_use(request):
            yield
            return
        name = uptodate.name_of(request)
        over = self._recording[name] = asyncio.Event()
        try:
            yield
        finally:
            if self._recording.get(name) is over:
                del self._recording[name]
            over.set()

    async def heard(self, request: m.Request) -> None:
        """Wait until the last event of a build is on its way."""
        if uptodate.may_use(request):
            await asyncio.sleep(_HEARD_S)

    async def _wait_for_record(self, request: m.Request) -> None:
        over = self._recording.get(uptodate.name_of(request)) if self._recording else None
        if over is not None:
            await over.wait()

    async def plan(self, request: m.Request) -> Plan:
        """The plan of a request, and nothing more. Raises RequestError, BuilddError."""
        opened = await self.opened(request.store)
        return await opened.planner.plan(request)

    async def examine(self, request: m.Request) -> Building:
        """A request with its plan, of which nothing runs. Raises RequestError, BuilddError, OSError."""
        opened = await self.opened(request.store)
        building = Building(
            request, RequestLog(request.request_id), opened.store, opened.files, opened.notebook, opened.surveys
        )
        await self._adopt(building, await opened.planner.plan(request))
        return building

    async def _watch(self, opened: OpenStore, request: m.Request, log: RequestLog) -> None:
        watch = Watch(request, log, opened.store, opened.files)
        try:
            await self.watches.begin(watch, lambda: self._prepare(opened, watch))
        except Exception as error:  # the edge, as above
            _log.exception("watching for %s failed", request.request_id)
            self.watches.forget(request.request_id)
            _refuse(log, m.Outcome.DAEMON_ERROR, error)

    async def _prepare(self, opened: OpenStore, watch: Watch) -> None:
        if watch.request.inputs:
            await self._in_pool(watch.begin_with, watch.request.inputs)
            return
        try:
            plan = await self._plan(opened, watch.request)
        except (RequestError, BuilddError, OSError):
            plan = None  # the build says what is wrong; meanwhile the project file is watched
        await self._in_pool(watch.begin, plan)

    async def _plan_or_last(self, opened: OpenStore, building: Building) -> Plan:
        """The plan; under watch that of the last good project file, while the one that stands there has a mistake and
        there is something else to be built. Raises as `plan`."""
        request = building.request
        try:
            return await self._plan(opened, request)
        except RequestError as error:
            plan = self.watches.last_plan(request) if error.code == "bad-project" else None
            if plan is None or not os.path.isfile(os.path.join(request.project, request.file)):
                raise
            carry = await self.watches.carry(opened.store, opened.files, request, plan)
            if carry is not None and len(carry.actions) == len(plan.actions):
                raise  # nothing was saved but the mistake
            words = f"{error.file or request.file}: {error.message}; built as the last good one says"
            building.log.append(m.Notice(text=words, severity=m.Severity.WARNING))
            building.said_something = True  # no record: without a watch the mistake is one
            return plan

    async def _plan(self, opened: OpenStore, request: m.Request) -> Plan:
        if request.mode is not m.Mode.WATCH and not self.watches.has(request):
            return await opened.planner.plan(request)
        plan: Plan | None = await self._in_pool(opened.plans.recall, request)
        if plan is None:
            since_ns = opened.files.now_ns()
            plan = await opened.planner.plan(request)
            await self._in_pool(opened.plans.keep, request, plan, since_ns)
        return plan

    async def _receive_compile(self, opened: OpenStore, request: m.Request, log: RequestLog) -> Building | None:
        try:
            return await opened.compiles.receive(request, log)
        except Exception as error:  # the edge, as above
            _log.exception("taking %s in failed", request.request_id)
            _refuse(log, m.Outcome.DAEMON_ERROR, error)
            return None

    async def _adopt(self, building: Building, plan: Plan, carry: Carry | None = None) -> None:
        def work() -> None:
            building.files.read_ahead(file.path for tool in plan.tools for file in tool.files)
            if carry is not None:
                take_over(building, carry)
            asked = [a for i, a in enumerate(plan.actions) if i not in building.carried]
            identities = [(building.lookup.name_key(a), a.kind, a.resources) for a in asked]
            found = iter(history.estimates(building.store, identities))
            resources = [_NOTHING if i in building.carried else next(found).resources for i in range(len(plan.actions))]
            building.adopt(plan, resources)
            building.write_generated()

        await self._in_pool(work)
        for notice in plan.notices:
            building.log.append(m.Notice(text=notice))
        expected_s = sum(r.wall_s for r in building.resources)
        building.log.append(m.Planned(targets=plan.targets, actions=len(plan.actions), expected_s=expected_s))

    async def opened(self, folder: str) -> OpenStore:
        """A store, opened when it is first wanted; the default one where none is named. Raises BuilddError."""
        path = folder or self.default_store
        async with self._opening:
            opened = self.stores.get(path)
            if opened is None:
                store = await self._in_pool(lambda: Store.open(Path(path), limit_bytes=self._store_limit_bytes))
                await self._in_pool(notes.count, store)
                opened = self.stores[path] = OpenStore(store, self._runner, self._make, self._in_pool, self.builds)
                for name, figures in decoded(await self._in_pool(store.record, _BUILDS)).items():
                    self.builds.setdefault(name, figures)
            return opened

    def close(self) -> None:
        for opened in self.stores.values():
            opened.notebook.write()
            opened.files.save()
            sweep.sweep_of(opened.store.folder).close()
            opened.store.close()
        self.stores.clear()

    def settle(self) -> int:
        """Write counters down; how many hits stand-ins have noted since the last time. From any thread, and soon."""
        hits = 0
        for opened in list(self.stores.values()):
            hits += notes.count(opened.store)
            opened.store.tally.flush()
        return hits

    def rest(self) -> None:
        """Write down what is known and give memory back."""
        names_below.cache_clear()
        for opened in self.stores.values():
            if self.builds and not opened.store.read_only:
                # A daemon that starts anew while it rests goes on counting.
                opened.store.save_record(_BUILDS, encoded(self.builds))
            opened.files.drop()
            opened.surveys.clear()
            if not len(self.watches):
                opened.plans.clear()
            notes.count(opened.store)
            opened.store.tally.flush()
            if not opened.store.read_only:
                sweep.sweep_of(opened.store.folder).rest()


def _check_measured(plan: Plan, request: m.Request) -> None:
    """Raises RequestError where the client can measure what is to be measured before it is built."""
    if request.mode is m.Mode.BUILD and (targets := to_measure(plan.unmeasured, request.measures)):
        raise RequestError(
            NOT_MEASURED,
            f"{', '.join(targets)}: to be measured before it is built (key `profile`)",
            next_step="run buildd profile, then ask again without `measures`",
        )


def _refuse(log: RequestLog, outcome: m.Outcome, error: BaseException) -> None:
    log.append(
        m.Done(
            outcome=outcome,
            message=in_words(error) if not isinstance(error, RequestError) else error.message,
            code=getattr(error, "code", "internal"),
            file=str(getattr(error, "file", "") or ""),
            next_step=str(getattr(error, "next_step", "") or ""),
        )
    )
