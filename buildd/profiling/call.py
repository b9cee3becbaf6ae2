"""One call of profiling, from a request to its summary: for `buildd profile`, and for requests of mode "profile".

Knows the order only: the GPUs, the survey, the plan, the campaign. Shows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buildd.profiling.preparation import problem_from, survey_of
from codegen.errors import RequestError
from codegen.variables.settings import settings_of
from protocol.messages import ProfileOptions

if TYPE_CHECKING:
    from buildd.client.candidate_builds import Builder
    from buildd.profiling.agenda import Plan
    from buildd.profiling.devices import Gpu
    from buildd.profiling.far_gpus import FarGpus
    from buildd.profiling.reports import Summary, Told
    from protocol.messages import Request

    Seen = tuple[tuple[Gpu, ...], str]
    """The GPUs, and why there are none."""

NO_GPU = "--no-gpu"
"""The reason why there is no GPU, if the caller wants none."""


async def profile(
    request: Request,
    options: ProfileOptions,
    building: Awaitable[Builder],
    looking: Awaitable[Seen],
    reaching: Awaitable[FarGpus | None],
    tell: Callable[[Told], None],
    say: Callable[[str], None],
    *,
    most_builds: int = 0,
    is_logged: bool = False,
) -> tuple[Summary, bool]:
    """Find the fastest kernels of a request's targets.

    Args:
        building: makes the builder of candidates; it may connect while the survey runs.
        looking: finds the GPUs, likewise.
        reaching: finds those of a cluster; None where no cluster is named.
        tell: gets each report.
        say: gets lines for people.
        most_builds: how many candidates are built at once; 0: as many as suit this machine.
        is_logged: add the call to the build log; the daemon logs its own requests.

    Returns: the summary, and whether there was a GPU to measure on.

    Raises: RequestError, BuilddError, ProtocolError.
    """
    from buildd.errors import StoreError
    from buildd.profiling import log_row, shared_rows
    from buildd.profiling.agenda import Plan
    from buildd.profiling.campaign import Profiling
    from buildd.profiling.gpus import find_amd_gpus, shown_gpus
    from buildd.profiling.reports import Tried
    from buildd.store.profile_cache import flush_asked, open_profiles
    from buildd.store.store import Store

    problems = [problem_from(text) for text in options.problems]
    request = msgspec.structs.replace(request, profile=ProfileOptions())  # what it builds are plain requests
    with Store.open(Path(request.store)) as store:
        survey = await survey_of(request, problems, store)
        for line in (*survey.notices, *flush_asked(settings_of(request), store, request.project, request.build_id)):
            say(line)
        gpus, why = await looking
        if survey.hip and options.measure:
            gpus, why = find_amd_gpus()
        alike, why = shown_gpus(gpus, why, survey.devices, say, hip=survey.hip)
        far = None if survey.hip else await reaching
        if far is not None:
            alike = (*alike, *far.like(alike, say))
            if far.why:
                say(far.why)
        if not alike and not survey.continuous_integration and why != NO_GPU:
            say(f"{why}: compiling the likely candidates, nothing is measured")
        plan = Plan(request=request, survey=survey, gpus=alike, exhaustive=options.exhaustive)
        if most_builds:
            plan = replace(plan, most_builds=most_builds)
        plan = replace(plan, top=options.top) if options.top else plan.with_room()
        with open_profiles(survey.environment, store, request.project) as cache:
            for line in cache.notices:
                say(line)
            if plan.measures and any(not cache.of(plan.setting(case), case.problem) for case in survey.cases):
                await shared_rows.fetch(request, alike[0], store, cache, say)
            _check_known(plan)
            tried: list[Tried] = []

            def hear(told: Told) -> None:
                if isinstance(told, Tried):
                    tried.append(told)
                tell(told)

            began_ns = time.time_ns()
            summary = await Profiling(plan, await building, cache, hear, say, far=far).run()
            if summary.measured:
                shared_rows.tell(store)
            if is_logged:
                try:
                    log_row.keep(store, request, tried, summary, began_ns)
                except StoreError as error:
                    say(f"this call is missing from `buildd log`: {error}")
            return summary, bool(alike)


def _check_known(plan: Plan) -> None:
    """Enforce AIT_FORCE_PROFILER_CACHE: an unknown kernel is an error, and nothing is measured."""
    from codegen.gemm import best_kernels

    survey, request = plan.survey, plan.request
    if not survey.only_known:
        return
    known = {
        one.problem
        for one in best_kernels.published(best_kernels.folders(survey.environment, request.store, request.project))
    }
    for case in survey.cases:
        if case.problem not in known:
            raise RequestError(
                "not-profiled",
                f'target "{case.target}": no measurement of {case.problem} is known, and AIT_FORCE_PROFILER_CACHE=1'
                " forbids measuring",
                file=case.spec.where,
                next_step="unset it, and run `buildd profile` on a machine with such a GPU",
            )
