"""Builds a request inside the calling process: the same scheduler, store and results, no daemon and no socket.

Only runs an event loop around one request; the scheduler does everything else.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from buildd.builds import prove
from buildd.builds.event_log import RequestLog
from buildd.exits import Interrupted
from buildd.keys.lookup import NEVER_STORED, Found
from buildd.scheduling.scheduler import Scheduler
from buildd.tier.opening import open_users_tier
from buildd.tier.tier import Tier
from codegen.errors import RequestError
from codegen.plan import Plan
from protocol import messages as m

_MOST_NAMED = 5


def build_here(
    request: m.Request,
    on_event: Callable[[m.Event], None],
    *,
    store_limit_bytes: int | None = None,
    tier: Tier | None = None,
) -> m.Done:
    """Build a request inside this process, with the same store and the same results as through the daemon.

    Args:
        request: `request.store` must be set.
        on_event: called with each event, on this thread.
        store_limit_bytes: size bound of the store; None means the default.
        tier: where results of other machines are; None means the user's tier, if there is one.

    Returns:
        The last event's body. SIGINT cancels the request, and so do SIGTERM and SIGHUP where the caller handles them;
        a second one interrupts.

    Raises: Interrupted once a request that SIGTERM or SIGHUP has cancelled is over.
    """

    async def run() -> m.Done:
        used = open_users_tier(os.environ).tier if tier is None else tier
        scheduler = Scheduler(default_store=Path(request.store), store_limit_bytes=store_limit_bytes, tier=used)
        log = RequestLog(request.request_id)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(event: m.Event) -> None:
            loop.call_soon_threadsafe(heard, event)

        def heard(event: m.Event) -> None:
            on_event(event)
            if isinstance(event.body, m.Done):
                done.set()

        log.listen(tell)

        with _first_signal_cancels(loop, lambda: scheduler.cancel(request.request_id)) as stopped:
            try:
                scheduler.submit(request, log)
                await done.wait()
            finally:
                await scheduler.close()
        if stopped and stopped[0] != signal.SIGINT:
            raise Interrupted(128 + stopped[0])
        assert log.done is not None
        return log.done

    return asyncio.run(run())


@contextmanager
def _first_signal_cancels(loop: asyncio.AbstractEventLoop, cancel: Callable[[], bool]) -> Iterator[list[int]]:
    """The first signal that asks the process to stop cancels the request in good order; its number is listed then. The
    handlers from before take the next ones.

    Those raise in the middle of any of the loop's steps, and what the step was about to do is lost.
    """
    stopped: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = [number for number, handler in before.items() if number is signal.SIGINT or callable(handler)]

    def give_back() -> None:
        while ours:
            number = ours.pop()
            loop.remove_signal_handler(number)
            if number is not signal.SIGINT:  # which interrupts at once now, without the loop
                signal.signal(number, before[number])

    def stop(number: int) -> None:
        give_back()
        stopped.append(number)
        if not cancel():
            raise Interrupted(128 + number)

    for number in ours:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        give_back()


def plan_here(request: m.Request) -> Plan:
    """The plan of a request. Raises RequestError if it cannot be planned."""

    async def run() -> Plan:
        scheduler = Scheduler(default_store=Path(request.store))
        try:
            return await scheduler.intake.plan(request)
        finally:
            await scheduler.close()

    return asyncio.run(run())


def found_here(request: m.Request) -> tuple[Plan, dict[str, tuple[str, ...]]]:
    """The plan of a request, and action name -> files read, for actions whose result is in the store. Puts those
    results in place, as a build does; runs nothing.

    Raises: RequestError, BuilddError, OSError.
    """

    async def run() -> tuple[Plan, dict[str, tuple[str, ...]]]:
        scheduler = Scheduler(default_store=Path(request.store))
        found: dict[str, tuple[str, ...]] = {}
        try:
            building = await scheduler.intake.examine(request)
            made_by_others: set[str] = set()
            for index in prove.order(building.plan):
                action = building.plan.actions[index]
                is_ready = not made_by_others.intersection(action.inputs)
                if is_ready and isinstance(building.look(index, fresh=False), Found):
                    found[action.name] = building.inputs.lookup.used_by(action) or ()
                else:
                    made_by_others.update(output.path for output in action.outputs)
            return building.plan, found
        finally:
            await scheduler.close()

    return asyncio.run(run())


class Exportable(NamedTuple):
    """What an export of targets takes from the store."""

    keys: tuple[m.Digest, ...]
    left_out: tuple[str, ...]
    """The actions whose results are never stored, and those that read what these make."""


def needed_here(request: m.Request) -> Exportable:
    """The results that a request's targets need. Runs nothing but traces of models in code, as a proof does.

    Raises:
        RequestError: the request is wrong, a model cannot be traced, or a result is not in the store ("not-warm").
    """
    found: list[m.Digest] = []
    missed: dict[str, str] = {}

    async def run() -> m.Done:
        scheduler = Scheduler(default_store=Path(request.store))
        scheduler.intake.found = found
        log = RequestLog(request.request_id)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(event: m.Event) -> None:
            if isinstance(event.body, m.Explained) and event.body.would_run:
                missed[event.body.action] = event.body.reasons[0]
            elif isinstance(event.body, m.Done):
                done.set()

        def tell(event: m.Event) -> None:
            loop.call_soon_threadsafe(heard, event)

        log.listen(tell)
        try:
            scheduler.submit(request, log)
            await done.wait()
        finally:
            await scheduler.close()
        assert log.done is not None
        return log.done

    done = asyncio.run(run())
    if done.outcome is not m.Outcome.BUILT and not missed:
        raise RequestError(done.code or "bad-request", done.message, file=done.file, next_step=done.next_step)
    left_out: list[str] = []
    for name, why in missed.items():
        if why.startswith(NEVER_STORED) or any(why == prove.waits_for(above) for above in left_out):
            left_out.append(name)
    if lacking := [name for name in missed if name not in left_out]:
        named = ", ".join(lacking[:_MOST_NAMED]) + (" ..." if len(lacking) > _MOST_NAMED else "")
        raise RequestError(
            "not-warm",
            f"{len(lacking)} of {len(missed) + done.hits} results are not in the store: {named}",
            next_step="run `buildd warm` for these targets first",
        )
    return Exportable(tuple(dict.fromkeys(found)), tuple(left_out))
