"""Takes in a request for targets before anything runs: answers it from a record, or gives it a plan.

Knows plans, records and watches; starts no job and decides no order.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from buildd.builds import last_published
from buildd.builds.active_build import ActiveBuild
from buildd.builds.event_log import RequestLog
from buildd.errors import BuilddError
from buildd.scheduling.adoption import adopt
from buildd.scheduling.open_stores import OpenStore
from buildd.scheduling.record_answers import RecordAnswers
from buildd.scheduling.refusal import refuse
from buildd.store.profile_cache import flush_asked
from buildd.watch.watched import WatchedRequest
from buildd.watch.watches import Watches
from codegen.errors import RequestError
from codegen.gemm.capability import NOT_MEASURED, to_measure
from codegen.plan import Plan, Recompile
from codegen.variables.settings import settings_of
from protocol import messages as m


class TargetIntake:
    """Takes requests for targets in.

    Args:
        in_pool: runs a function in a worker thread.
    """

    def __init__(self, watches: Watches, records: RecordAnswers, in_pool: Callable[..., Awaitable[Any]]) -> None:
        self._watches = watches
        self._records = records
        self._in_pool = in_pool

    async def receive(
        self, opened: OpenStore, request: m.Request, log: RequestLog, is_unwanted: Callable[[], bool]
    ) -> ActiveBuild | None:
        """A request that has something to be built; None where it was answered or refused. Raises Unwanted.

        Args:
            is_unwanted: whether it was cancelled; from any thread.
        """
        if request.mode in (m.Mode.BUILD, m.Mode.WARM):
            # Before anything is known to be up to date: which kernel is best is part of that.
            for line in await self._in_pool(_flush_profiles, request, opened):
                log.append(m.Notice(text=line))
        watched = await self._watches.of(request)
        build = opened.new_build(request, log)
        build.settled_s = watched.settled_s(build.begun_s)
        build.mark = watched.mark()
        if await self._records.answer(build, watched):
            return None
        try:
            carry = None if watched else await self._in_pool(opened.last_builds.recall, request, opened.files)
            plan = carry.base.plan if carry else await self._plan_or_last(opened, build, watched, is_unwanted)
            if plan.recompile is Recompile.NEVER and request.mode is m.Mode.BUILD:
                await self._in_pool(last_published.serve, build, plan)
                return None
            _check_measured(plan, request)
            await watched.expect(plan)
            carry = carry or await watched.carry(opened.store, opened.files, plan)
            await adopt(build, plan, carry, self._in_pool)
            build.urgent = build.nodes_of(watched.fresh)
        except (RequestError, BuilddError, OSError) as error:
            await watched.refused()
            refuse(log, m.Outcome.REFUSED if isinstance(error, RequestError) else m.Outcome.DAEMON_ERROR, error)
            return None
        return build

    async def _plan_or_last(
        self, opened: OpenStore, build: ActiveBuild, watched: WatchedRequest, is_unwanted: Callable[[], bool]
    ) -> Plan:
        """The plan. Under watch, while the project file has a mistake and there is something else to be built, the plan
        of the last good project file. Raises as `OpenStore.plan`."""
        request = build.request
        try:
            return await opened.plan(request, keep=bool(watched), is_unwanted=is_unwanted)
        except RequestError as error:
            plan = watched.last_plan if error.code == "bad-project" else None
            if plan is None or not os.path.isfile(os.path.join(request.project, request.file)):
                raise
            carry = await watched.carry(opened.store, opened.files, plan)
            if carry is not None and len(carry.actions) == len(plan.actions):
                raise  # nothing was saved but the mistake
            words = f"{error.file or request.file}: {error.message}; built as the last good one says"
            build.log.append(m.Notice(text=words, severity=m.Severity.WARNING))
            build.said_something = True  # no record: without a watch the mistake is one
            return plan


def _flush_profiles(request: m.Request, opened: OpenStore) -> tuple[str, ...]:
    return flush_asked(settings_of(request), opened.store, request.project, request.build_id)


def _check_measured(plan: Plan, request: m.Request) -> None:
    """Raises RequestError if kernels must be measured before the build and the client can measure them."""
    if request.mode is m.Mode.BUILD and (targets := to_measure(plan.unmeasured, request.measures)):
        raise RequestError(
            NOT_MEASURED,
            f"{', '.join(targets)}: must be measured before the build (key `profile`)",
            next_step="run buildd profile, then ask again without `measures`",
        )
