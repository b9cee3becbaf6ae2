"""What a proof (`buildd warm --prove -- COMMAND`) gets for a compiler call: the result, a refusal, or the tool itself.

A proof looks a compile up as a build does, in the store and in the shared tier. Calls that try the compiler out and
questions to the compiler run. Knows builds and the notes of proofs; takes in no call (`foreign_intake`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from buildd.builds import shared_results
from buildd.builds.active_build import ActiveBuild
from buildd.keys.lookup import Missing
from buildd.scheduling import call_notes
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.foreign.trial_compile import is_trial
from protocol import messages as m


async def missing(build: ActiveBuild, in_pool: Callable[..., Awaitable[Any]]) -> tuple[str, ...] | None:
    """Why a compile would run; None where its result is here now. Waits for the tier as long as a build would."""
    known = await in_pool(lambda: build.look(0, fresh=False))
    if not isinstance(known, Missing):
        return None
    asked = shared_results.begin(build, 0)
    if asked is None:
        return (*known.reasons, *_why_not_asked(build))
    _, late = await asyncio.wait({asyncio.wrap_future(asked)}, timeout=shared_results.deadline_s(build, 0))
    if shared_results.settle(build, 0, asked, is_over=bool(late)):
        known = await in_pool(lambda: build.look(0, fresh=False))
        if not isinstance(known, Missing):
            return None
        return known.reasons
    assert build.tier is not None
    shown = build.tier.tier.shown
    if late:
        return (*known.reasons, f"the shared cache {shown} did not answer in time")
    return (*known.reasons, f"not found in the shared cache {shown}")


def _why_not_asked(build: ActiveBuild) -> Iterable[str]:
    if build.tier is None:
        return ()
    tier = build.tier.tier
    if not tier.settings.believed:
        return (f"the shared cache {tier.shown} was not asked, because no key is trusted",)
    if tier.paused_s()[0] > 0:
        return (f"the shared cache {tier.shown} was not asked, because it failed just before",)
    return (f"the shared cache {tier.shown} was not asked",)


def refusal(request: m.Request, name: str, reasons: Iterable[str], why: PassThrough | None = None) -> m.Done | None:
    """The end of a call that would compile; None where the tool runs, because the call makes nothing of a build.

    Args:
        name: of the source, or of the call.
        why: why the call would be passed through, if it is one of those.
    """
    if why is not None and why.reason is Reason.QUERY:
        call_notes.note_ran(request, call_notes.QUERY)
        return None
    if why is not None and not call_notes.is_compile(request.command, why):
        return None
    if is_trial(request.command, request.project):
        call_notes.note_ran(request, call_notes.TRIAL)
        return None
    return call_notes.need(request, name, reasons)
