"""A request before anything runs: its store is opened, and its mode decides who takes it in.

Knows stores and watches; `target_intake` plans targets, `foreign_intake` the compiles of foreign builds, and
`examination` answers what needs no job. Starts no job. Runs on one event loop; the threads that it is given touch
files.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from buildd.builds.active_build import ActiveBuild
from buildd.builds.event_log import RequestLog
from buildd.cluster.ray_settings import RaySettings
from buildd.errors import BuilddError
from buildd.processes.runner import Runner
from buildd.scheduling import examination
from buildd.scheduling.open_stores import OpenStore, OpenStores
from buildd.scheduling.profile_requests import ProfileRequests
from buildd.scheduling.record_answers import RecordAnswers
from buildd.scheduling.refusal import refuse
from buildd.scheduling.target_intake import TargetIntake
from buildd.watch.watch import Watch
from buildd.watch.watches import Watches
from codegen.errors import RequestError
from codegen.plan import Plan, Unwanted
from protocol import messages as m

_log = logging.getLogger(__name__)


class Intake:
    """Takes requests in.

    Args:
        stores: opens their stores.
        in_pool: runs a function in a worker thread.
        runner: starts the processes of PROFILE requests.
        cluster: measures for PROFILE requests, if the user has named one.
    """

    def __init__(
        self,
        stores: OpenStores,
        in_pool: Callable[..., Awaitable[Any]],
        runner: Runner,
        cluster: RaySettings | None = None,
    ) -> None:
        self.watches = Watches(in_pool)
        self.profiles = ProfileRequests(runner, stores.default, cluster)
        self.records = RecordAnswers(in_pool)
        self.found: list[m.Digest] | None = None
        """If somebody wants them: gets the keys of the results that EXPLAIN and PROVE requests meet."""
        self._stores = stores
        self._targets = TargetIntake(self.watches, self.records, in_pool)
        self._in_pool = in_pool

    async def receive(
        self,
        request: m.Request,
        log: RequestLog,
        *,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> ActiveBuild | None:
        """A request that has something to be built; None where it was answered (or refused) already, or has become
        unwanted.

        Args:
            is_unwanted: whether it was cancelled; from any thread.
        """
        try:
            return await self._take_in(request, log, is_unwanted)
        except Unwanted:
            return None
        except Exception as error:  # the edge: a fault of buildd's must not leave the client waiting
            _log.exception("taking %s in failed", request.request_id)
            refuse(log, m.Outcome.DAEMON_ERROR, error)
            return None

    async def _take_in(
        self, request: m.Request, log: RequestLog, is_unwanted: Callable[[], bool]
    ) -> ActiveBuild | None:
        try:
            opened = await self._stores.open(request.store)
        except (BuilddError, OSError, sqlite3.Error) as error:
            refuse(log, m.Outcome.DAEMON_ERROR, error)
            return None
        if opened.failure is not None and request.mode in (m.Mode.WARM, m.Mode.PROVE):
            refuse(log, m.Outcome.DAEMON_ERROR, opened.failure)  # they are about the store alone
            return None
        if request.mode is not m.Mode.COMPILE:  # a shim shows nothing: the next command tells them
            opened.tell_notices(log)
        match request.mode:
            case m.Mode.COMPILE:
                return await opened.foreign.receive(request, log)
            case m.Mode.WATCH:
                await self._watch(opened, request, log)
                return None
            case m.Mode.PROFILE:
                self.profiles.begin(request, log)
                return None
            case m.Mode.EXPLAIN | m.Mode.PROVE:
                return await examination.answer(opened, request, log, self.found, self._in_pool, is_unwanted)
            case _:
                return await self._targets.receive(opened, request, log, is_unwanted)

    def end(self, request_id: m.RequestId) -> bool:
        """Cancel a request that goes on though nothing is being built for it; False when there is none of that name."""
        return self.watches.end(request_id) or self.profiles.end(request_id)

    async def plan(self, request: m.Request) -> Plan:
        """The plan of a request, and nothing more. Raises RequestError, BuilddError."""
        opened = await self._stores.open(request.store)
        return await opened.plan(request, keep=False)

    async def examine(self, request: m.Request) -> ActiveBuild:
        """A request with its plan; nothing of it runs. Raises RequestError, BuilddError, OSError."""
        opened = await self._stores.open(request.store)
        return await examination.examine(opened, request, RequestLog(request.request_id), self._in_pool)

    async def _watch(self, opened: OpenStore, request: m.Request, log: RequestLog) -> None:
        watch = Watch(request, log, opened.store, opened.files)
        try:
            await self.watches.add(watch, lambda: self._prepare(opened, watch))
        except Exception:
            self.watches.forget(request.request_id)
            raise

    async def _prepare(self, opened: OpenStore, watch: Watch) -> None:
        if watch.request.inputs:
            await self._in_pool(watch.begin_with_inputs, watch.request.inputs)
            return
        try:
            plan = await opened.plan(watch.request, keep=True)
        except (RequestError, BuilddError, OSError):
            plan = None  # the build says what is wrong; meanwhile the project file is watched
        await self._in_pool(watch.begin_with_plan, plan)
