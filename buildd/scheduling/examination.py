"""EXPLAIN and PROVE: a request gets its plan and an answer from the store; nothing runs but traces of models in code.

Knows plans and look-ups; starts no job and asks no watch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from buildd.builds import prove
from buildd.builds.active_build import ActiveBuild
from buildd.builds.event_log import RequestLog
from buildd.builds.proof_report import ProofReport, has_traces
from buildd.errors import BuilddError
from buildd.scheduling.adoption import adopt
from buildd.scheduling.open_stores import OpenStore
from buildd.scheduling.refusal import refuse
from codegen.errors import RequestError
from protocol import messages as m

InPool = Callable[..., Awaitable[Any]]
"""Runs a function in a worker thread."""


async def answer(
    opened: OpenStore,
    request: m.Request,
    log: RequestLog,
    found: list[m.Digest] | None,
    in_pool: InPool,
    is_unwanted: Callable[[], bool],
) -> ActiveBuild | None:
    """Say for each action of a request whether it would run, and why; then `Done`. Raises Unwanted.

    Returns: a proof that has traces to run first, unanswered; otherwise None.

    Args:
        found: gets the keys of the results that are there, also of a proof that is returned.
        is_unwanted: whether the request was cancelled; from any thread.
    """
    try:
        # A build that has told its end may still have to write what it is compared with.
        await in_pool(opened.notebook.write)
        build = await examine(opened, request, log, in_pool, is_unwanted)
        if isinstance(build.report, ProofReport) and has_traces(build):
            build.report.found = found
            return build
        await in_pool(prove.answer, build, [] if found is None else found, is_unwanted)
    except (RequestError, BuilddError, OSError) as error:
        refuse(log, m.Outcome.REFUSED if isinstance(error, RequestError) else m.Outcome.DAEMON_ERROR, error)
    return None


async def examine(
    opened: OpenStore,
    request: m.Request,
    log: RequestLog,
    in_pool: InPool,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> ActiveBuild:
    """A request with its plan. Raises RequestError, BuilddError, OSError, and Unwanted as `answer`."""
    build = opened.new_build(request, log)
    plan = await opened.plan(request, keep=False, is_unwanted=is_unwanted)
    await adopt(build, plan, None, in_pool)
    return build
