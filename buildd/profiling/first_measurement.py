"""`buildd build` of targets with the key `profile`: measures them on GPUs first, here or in a cluster, then builds.

Knows the order only: the plan says whether something needs measuring, the shared cache may have what another machine
measured, `profile` measures. If measuring fails, the build loses only the faster kernel, and says so in one line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from buildd.client.perform import carry_out, stopping_signals
from buildd.errors import BuilddError
from buildd.profiling.devices import Gpu, recall, remember, visible
from buildd.ui.problems import print_note
from buildd.ui.view import View
from codegen.errors import RequestError
from codegen.gemm.capability import ANY, NOT_MEASURED
from codegen.variables.aitemplate_flags import visible_devices
from codegen.variables.settings import settings_of
from protocol.errors import ProtocolError
from protocol.messages import Done, Event, Request, RequestId

if TYPE_CHECKING:
    from argparse import Namespace


def carry_out_measured(
    request: Request, view: View, views: Callable[[], View], options: Namespace, environ: Mapping[str, str]
) -> Done:
    """Carry out and show `request`, after measuring what it wants measured, on GPUs of this machine or of a cluster.

    Args:
        view: gets every event, and is closed at the end.
        views: makes another view, in case the request is sent a second time.
        options: those of `request.add_request_arguments`.
        environ: as for `perform.carry_out`.

    Raises: as `perform.carry_out`.
    """
    capabilities = capabilities_here(request, environ) or capabilities_far(request, environ)
    if not capabilities:
        return carry_out(request, view, no_daemon=options.no_daemon, environ=environ)

    def unless_unmeasured(request: Request, view: View) -> Done:
        request = msgspec.structs.replace(request, measures=capabilities)
        return carry_out(request, _Asked(view), no_daemon=options.no_daemon, environ=environ)

    done = unless_unmeasured(request, view)
    if done.code != NOT_MEASURED:
        return done
    import asyncio  # late: most builds measure nothing

    try:
        with stopping_signals():
            gpus = _gpus(request, environ)
            is_shared = asyncio.run(_fetch(request, gpus))
        if is_shared:
            done = unless_unmeasured(_again(request), views())
            if done.code != NOT_MEASURED:
                return done
        with stopping_signals():
            asyncio.run(_measure(request, options, environ, gpus))
    except (RequestError, BuilddError, ProtocolError, OSError) as error:
        print_note(f"buildd: nothing is measured: {getattr(error, 'message', '') or error}")
    return carry_out(_again(request), views(), no_daemon=options.no_daemon, environ=environ)


def _again(request: Request) -> Request:
    """A request that is sent once more: it is another one of the same build."""
    return msgspec.structs.replace(request, request_id=RequestId(os.urandom(6).hex()))


def capabilities_here(request: Request, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Compute capability of the GPU that would measure, if known without asking it; empty if none may be used."""
    devices = _devices(request)
    if devices is not None and not devices:
        return ()
    known = recall(request.store, environ)
    return (ANY,) if known is None else tuple(gpu.capability for gpu in visible(known, devices)[:1])


def capabilities_far(request: Request, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Compute capability of a cluster's GPUs, if known without asking it; empty if none is named, or it has none."""
    from buildd.profiling.far_gpus import cluster_of

    try:
        cluster = cluster_of(environ)
    except RequestError:  # `buildd status` tells it
        return ()
    if cluster is None:
        return ()
    known = recall(request.store, environ, cluster=cluster.address)
    return (ANY,) if known is None else tuple(gpu.capability for gpu in known[:1])


class _Asked:
    """A view that does not see the refusal that means "measure first"."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.close = view.close

    def event(self, event: Event) -> None:
        if not (isinstance(event.body, Done) and event.body.code == NOT_MEASURED):
            self._view.event(event)


def _say(words: str) -> None:
    print_note(f"buildd: {words}")


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The machine's GPUs, and those that may measure: they are of one model."""

    every: tuple[Gpu, ...]
    alike: tuple[Gpu, ...]
    first: Gpu | None
    """One of them, or of a cluster's where there is none here."""


def _gpus(request: Request, environ: Mapping[str, str]) -> _Gpus:
    from buildd.profiling.gpus import find_gpus, shown_gpus

    gpus, why = find_gpus(environ)
    if gpus:
        remember(request.store, environ, gpus)
    alike, why = shown_gpus(gpus, why, _devices(request), _say)
    far = () if alike else _cluster_gpus(request, environ)
    first = next(iter((*alike, *far)), None)
    if first is None:
        _say(f"{why}: nothing is measured")
    return _Gpus(gpus, alike, first)


def _cluster_gpus(request: Request, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs of the cluster that is named, which are remembered."""
    import asyncio

    from buildd.profiling.far_gpus import cluster_of, reached

    async def look() -> tuple[Gpu, ...]:
        async with reached(environ, _say) as far:
            return far.gpus if far is not None else ()

    cluster = cluster_of(environ)
    if cluster is None:
        return ()
    gpus = asyncio.run(look())
    remember(request.store, environ, gpus, cluster=cluster.address)
    return gpus


async def _fetch(request: Request, gpus: _Gpus) -> bool:
    """Whether measurements came from other machines."""
    from pathlib import Path

    from buildd.profiling import shared_rows
    from buildd.store.profile_cache import open_profiles
    from buildd.store.store import Store

    if gpus.first is None:
        return False
    environment = settings_of(request).merged()
    with Store.open(Path(request.store)) as store, open_profiles(environment, store, request.project) as cache:
        return await shared_rows.fetch(request, gpus.first, store, cache, _say)


async def _measure(request: Request, options: Namespace, environ: Mapping[str, str], gpus: _Gpus) -> None:
    from pathlib import Path

    from buildd.profiling import shared_rows
    from buildd.profiling.agenda import Plan
    from buildd.profiling.campaign import Profiling
    from buildd.profiling.far_gpus import reached
    from buildd.profiling.preparation import builder_for, survey_of
    from buildd.profiling.reports import Chosen, Told, Tried, chosen_words
    from buildd.store.profile_cache import open_profiles
    from buildd.store.store import Store

    def tell(told: Told) -> None:
        if isinstance(told, Chosen):
            _say(f"{told.target}: {chosen_words(told)}")
        elif isinstance(told, Tried) and told.note and told.outcome != "skipped":
            _say(f"{told.target}: {told.candidate}: {told.outcome}: {told.note}")

    if gpus.first is None:
        return
    with Store.open(Path(request.store)) as store:
        survey = await survey_of(request, [], store, first_on=gpus.first.capability)
        # The project may restrict the GPUs, too.
        alike = tuple(gpu for gpu in visible(gpus.every, survey.devices) if gpu in gpus.alike)
        if not survey.cases or not (alike or gpus.first.node):
            return
        async with reached(environ, _say) as far:
            alike = (*alike, *far.like(alike, _say)) if far is not None else alike
            if not alike:
                return
            names = ", ".join(dict.fromkeys(case.target for case in survey.cases))
            _say(f"{names}: measuring on {alike[0].name} first")
            plan = Plan(request=request, survey=survey, gpus=alike)
            if options.jobs:
                plan = replace(plan, most_builds=options.jobs)
            plan = plan.with_room()
            with open_profiles(survey.environment, store, request.project) as cache:
                for line in cache.notices:
                    _say(line)
                builder = await builder_for(options, request, environ)
                try:
                    summary = await Profiling(plan, builder, cache, tell, _say, far=far).run()
                finally:
                    await builder.close()
        if summary.measured:
            shared_rows.tell(store)


def _devices(request: Request) -> tuple[str, ...] | None:
    """The GPUs that a request may use, as it numbers them; None means all."""
    return visible_devices(settings_of(request), "cuda")
