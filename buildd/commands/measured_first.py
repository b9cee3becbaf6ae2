"""`buildd build` of targets that are to be measured first (key `profile`): asked for, measured on a GPU, built.

Knows in which order that happens. Whether something is to be measured, the plan says; how that is done is `profile`'s.
Whatever goes wrong with it costs the build only the faster kernel, and a line that says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from buildd.commands.common import print_note
from buildd.commands.perform import carry_out, stopping_signals
from buildd.devices import recall, remember, visible
from buildd.errors import BuilddError
from buildd.ui.view import View
from codegen.capability import ANY, NOT_MEASURED
from codegen.plan import RequestError
from protocol.errors import ProtocolError
from protocol.messages import Done, Event, Request, RequestId

if TYPE_CHECKING:
    from argparse import Namespace


def carry_out_measured(
    request: Request, view: View, views: Callable[[], View], options: Namespace, environ: Mapping[str, str]
) -> Done:
    """Have `request` done and shown; what it wants measured on GPUs that are here is measured first.

    Args:
        view: gets every event, and is closed.
        views: makes another one, where the request is asked once more.
        options: those of `request.add_request_arguments`.
        environ: as of `perform.carry_out`. Raises as that.
    """
    capabilities = capabilities_here(request, environ)
    if not capabilities:
        return carry_out(request, view, no_daemon=options.no_daemon, environ=environ)
    asked = _Asked(view)
    done = carry_out(
        msgspec.structs.replace(request, measures=capabilities), asked, no_daemon=options.no_daemon, environ=environ
    )
    if done.code != NOT_MEASURED:
        return done
    import asyncio  # only now that there is something to do

    try:
        with stopping_signals():
            asyncio.run(_measure(request, options, environ))
    except (RequestError, BuilddError, ProtocolError, OSError) as error:
        print_note(f"buildd: nothing is measured: {getattr(error, 'message', '') or error}")
    # Asked for once more, it is another request of the same build.
    request = msgspec.structs.replace(request, request_id=RequestId(os.urandom(6).hex()))
    return carry_out(request, views(), no_daemon=options.no_daemon, environ=environ)


def capabilities_here(request: Request, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Of the GPU that would measure, as far as that is known without a look at it; nothing where none may be used."""
    devices = _devices(request)
    if devices is not None and not devices:
        return ()
    known = recall(request.store, environ)
    return (ANY,) if known is None else tuple(gpu.capability for gpu in visible(known, devices)[:1])


class _Asked:
    """A view that is not told of the refusal which stands for "measure first"."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.close = view.close

    def event(self, event: Event) -> None:
        if not (isinstance(event.body, Done) and event.body.code == NOT_MEASURED):
            self._view.event(event)


async def _measure(request: Request, options: Namespace, environ: Mapping[str, str]) -> None:
    import asyncio
    from pathlib import Path

    from buildd.commands.profile import builder_for, chosen_words, shown_gpus, survey_of
    from buildd.gpus import find_gpus, strangers
    from buildd.profile_cache import open_profiles
    from buildd.profile_told import Chosen, Told, Tried
    from buildd.profiling import Plan, Profiling
    from buildd.store import Store

    def say(words: str) -> None:
        print_note(f"buildd: {words}")

    def tell(told: Told) -> None:
        if isinstance(told, Chosen):
            say(f"{told.target}: {chosen_words(told)}")
        elif isinstance(told, Tried) and told.note and told.outcome != "skipped":
            say(f"{told.target}: {told.candidate}: {told.outcome}: {told.note}")

    gpus, why = find_gpus(environ)
    with Store.open(Path(request.store)) as store:
        if gpus:
            remember(request.store, environ, gpus)
        alike, why = shown_gpus(gpus, why, _devices(request), say)
        if not alike:
            say(f"{why}: nothing is measured")
            return
        asked = asyncio.create_task(asyncio.to_thread(strangers, alike, environ))  # beside the survey
        survey = await survey_of(request, [], store, first_on=alike[0].capability)
        # Also the project may say which.
        alike = tuple(gpu for gpu in visible(gpus, survey.devices) if gpu in alike)
        if not survey.cases or not alike:
            return
        names = ", ".join(dict.fromkeys(case.target for case in survey.cases))
        say(f"{names}: measured on {alike[0].name} first")
        plan = Plan(request=request, survey=survey, gpus=alike, asked=asked)
        if options.jobs:
            plan = replace(plan, most_builds=options.jobs)
        plan = plan.with_room()
        with open_profiles(survey.environment, store, request.project) as cache:
            for line in cache.notices:
                say(line)
            builder = await builder_for(options, request, environ)
            try:
                await Profiling(plan, builder, cache, tell, say).run()
            finally:
                await builder.close()


def _devices(request: Request) -> tuple[str, ...] | None:
    """The GPUs that a request may use, as it numbers them; None means all."""
    devices = request.environment.get("CUDA_VISIBLE_DEVICES")
    return None if devices is None else tuple(word for part in devices.split(",") if (word := part.strip()))
