"""The stores that a daemon has open, each with the caches that the daemon keeps in memory for it.

Knows when a store is opened, written and closed, and what stands in for one that cannot be opened; takes no request in
and starts no job.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from blake3 import blake3

from buildd.builds.active_build import ActiveBuild, StoredResults
from buildd.builds.build_figures import Figures, decoded, encoded
from buildd.builds.event_log import RequestLog
from buildd.builds.inputs import Inputs
from buildd.builds.last_builds import LastBuilds
from buildd.builds.plan_cache import Plans
from buildd.builds.planner import Make, Planner
from buildd.builds.project_outputs import ProjectOutputs, ScratchOutputs
from buildd.builds.proof_report import ProofReport
from buildd.builds.target_report import TargetReport
from buildd.errors import BuilddError, StoreError, StoreTooNew
from buildd.files import sweep
from buildd.files.digests import Files
from buildd.keys.file_names import names_below
from buildd.keys.survey_memory import Memory
from buildd.native.bare_text import bare_text_of
from buildd.processes.runner import Runner
from buildd.scheduling.foreign_intake import ForeignIntake
from buildd.store import hit_notes, ownership, scratch
from buildd.store.notebook import Notebook
from buildd.store.store import Store
from buildd.tier.store_tier import StoreTier
from buildd.tier.tier import Tier
from codegen.plan import Plan
from protocol import messages as m
from protocol.problem import in_one_line

_BUILDS = m.Digest(blake3(b"builds").hexdigest())
"""Name of the record with the figures of the last builds."""


class OpenStore:
    """A store, and all that the daemon keeps in memory for it."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        make: Make | None,
        in_pool: Callable[..., Awaitable[Any]],
        builds: OrderedDict[m.BuildId, Figures],
        failure: BuilddError | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.store = store
        self.failure = failure
        """Why the store that was asked for cannot be used: this is an empty one in its place, which nobody keeps."""
        self.files = Files(store, bare=bare_text_of(store.folder).digests)
        self.notebook = Notebook(store)
        self.surveys = Memory()
        self.planner = Planner(runner, store, self.files, make)
        self.plans = Plans(sweep.sweep_of(store.folder))
        self.last_builds = LastBuilds(sweep.sweep_of(store.folder), store.scratch_folder)
        self.tier = StoreTier(tier, store) if tier is not None and failure is None else None
        self.foreign = ForeignIntake(
            store, self.files, self.notebook, self.surveys, self.planner, in_pool, builds, self.tier
        )
        self._in_pool = in_pool

    def tell_notices(self, log: RequestLog) -> None:
        """Say what the store has to say, once, and each time that results are not kept."""
        notices = list(self.store.take_notices())
        if self.failure is not None:
            notices.append(f"building without the store, so results are not kept: {in_one_line(self.failure)}")
        for notice in notices:
            log.append(m.Notice(text=notice, severity=m.Severity.WARNING))

    def new_build(self, request: m.Request, log: RequestLog) -> ActiveBuild:
        """The state of a request that has no plan yet."""
        is_delivered = request.mode is m.Mode.BUILD
        return ActiveBuild(
            request,
            log,
            self.notebook,
            Inputs(self.store, self.files, request.project, self.surveys, recache=request.recache),
            results=StoredResults(),
            outputs=ProjectOutputs(self.last_builds) if is_delivered else ScratchOutputs(),
            report=ProofReport() if request.mode is m.Mode.PROVE else TargetReport(),
            tier=self.tier,
        )

    async def plan(self, request: m.Request, *, keep: bool, is_unwanted: Callable[[], bool] = lambda: False) -> Plan:
        """The plan of a request. Raises as `Planner.plan`.

        Args:
            keep: use the plan of the last such request while it holds, and keep this one for the next.
            is_unwanted: whether nobody waits for it any more; from any thread.
        """
        if not keep:
            return await self.planner.plan(request, is_unwanted)
        plan: Plan | None = await self._in_pool(self.plans.recall, request)
        if plan is None:
            since_ns = self.files.now_ns()
            plan = await self.planner.plan(request, is_unwanted)
            await self._in_pool(self.plans.keep, request, plan, since_ns)
        return plan

    def close(self) -> None:
        self.last_builds.close()
        if self.tier is not None:
            self.tier.close()
        self.notebook.write()
        self.files.save()
        sweep.sweep_of(self.store.folder).close()
        self.store.close()
        if self.failure is not None:
            shutil.rmtree(self.store.folder, ignore_errors=True)


class OpenStores:
    """All open stores, by their folders.

    Args:
        runner: runs probes.
        in_pool: runs a function in a worker thread.
        default: folder of the store of requests that name none.
        limit_bytes: size bound of every store; None means the store's own default.
        make: makes plans, see `Planner`.
        tier: where results of other machines are, if the user has named one.
    """

    def __init__(
        self,
        runner: Runner,
        in_pool: Callable[..., Awaitable[Any]],
        *,
        default: Path,
        limit_bytes: int | None = None,
        make: Make | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.tier = tier
        self.default = str(default)
        self.builds: OrderedDict[m.BuildId, Figures] = OrderedDict()
        """Figures of the last builds that shims compiled for."""
        self._stores: dict[str, OpenStore] = {}
        self._runner = runner
        self._in_pool = in_pool
        self._limit_bytes = limit_bytes
        self._make = make
        self._opening = asyncio.Lock()
        self.all_failed = False
        """No store is open, and the last ones could not be: the daemon that rests now keeps nothing for anybody."""

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(list(self._stores))

    @property
    def open_tiers(self) -> tuple[StoreTier, ...]:
        """The tier beside each open store."""
        return tuple(opened.tier for opened in list(self._stores.values()) if opened.tier is not None)

    def get(self, folder: str) -> OpenStore | None:
        """A store that is open; the default one where the name is empty."""
        return self._stores.get(folder or self.default)

    async def open(self, folder: str) -> OpenStore:
        """A store, opened on first use; the default one where the name is empty.

        An empty store in a temporary folder stands in for one that cannot be opened. Raises `BuilddError` where that is
        impossible too, and where the store must not be used: it is a newer buildd's, or others may write to it.
        """
        async with self._opening:
            path = folder or self.default
            ownership.check(Path(path))  # also of an open one: its folder may have been given away
            opened = self.get(folder)
            if opened is None:
                self.all_failed = False
                store, failure = await self._in_pool(self._open, Path(path))
                await self._in_pool(hit_notes.count, store)
                opened = self._stores[path] = OpenStore(
                    store, self._runner, self._make, self._in_pool, self.builds, failure, self.tier
                )
                for name, figures in decoded(await self._in_pool(store.record, _BUILDS)).items():
                    self.builds.setdefault(name, figures)
            return opened

    def _open(self, folder: Path) -> tuple[Store, BuilddError | None]:
        failure: BuilddError
        try:
            return Store.open(folder, limit_bytes=self._limit_bytes), None
        except StoreError as error:
            if isinstance(error, StoreTooNew) or error.code in ownership.CODES:
                raise
            failure = error
        except (OSError, sqlite3.Error) as error:
            failure = StoreError(str(error), file=str(folder), next_step="check the folder, or set BUILDD_DIR")
        for place in scratch.places():
            instead = ""
            try:
                instead = tempfile.mkdtemp(prefix="buildd-store-", dir=place)
                store = Store.open(Path(instead), limit_bytes=self._limit_bytes)
                store.unkept = failure
                return store, failure
            except (StoreError, OSError, sqlite3.Error):
                if instead:
                    shutil.rmtree(instead, ignore_errors=True)
        raise failure

    def settle(self) -> int:
        """Write counters down; how many hits shims have noted since the last call. From any thread, and fast."""
        hits = 0
        for opened in list(self._stores.values()):
            hits += hit_notes.count(opened.store)
            opened.store.tally.flush()
        return hits

    def rest(self, *, keep_plans: bool) -> None:
        """Write down what is known and give memory back."""
        names_below.cache_clear()
        if not keep_plans:
            for path in [path for path, opened in self._stores.items() if opened.failure is not None]:
                self._stores.pop(path).close()  # the next request looks whether the store is good again
                self.all_failed = not self._stores
        for opened in self._stores.values():
            if self.builds and not opened.store.read_only:
                # A daemon that starts anew while it rests goes on counting.
                opened.store.save_record(_BUILDS, encoded(self.builds))
            opened.files.drop()
            opened.surveys.clear()
            if opened.tier is not None:
                opened.tier.rest()
            if not keep_plans:
                opened.plans.clear()
            hit_notes.count(opened.store)
            opened.store.tally.flush()
            if not opened.store.read_only:
                sweep.sweep_of(opened.store.folder).rest()

    def close(self) -> None:
        if self.tier is not None:
            self.tier.close()  # ends what waits for it
        for opened in self._stores.values():
            opened.close()
        self._stores.clear()
