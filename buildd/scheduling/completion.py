"""The end of a request: its last events, then news for its watches, then the rows in the store.

Knows the order of these; does not decide when a request ends (`state`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Moment
from buildd.scheduling.afterwards import Afterwards
from buildd.scheduling.intake import Intake
from protocol import messages as m

_log = logging.getLogger(__name__)


class Completion:
    """Ends requests.

    Args:
        in_pool: runs a function in a worker thread.
        is_busy: whether a request is open, other than those that end.
    """

    def __init__(self, intake: Intake, in_pool: Callable[..., Awaitable[Any]], is_busy: Callable[[], bool]) -> None:
        self._watches = intake.watches
        self._records = intake.records
        self._in_pool = in_pool
        self._afterwards = Afterwards(in_pool, is_busy)

    async def complete(self, build: ActiveBuild, outcome: m.Outcome) -> None:
        """Tell the client how a request ended, then keep what was learned."""
        request = build.request
        build.report.tell_end(outcome)
        if outcome is m.Outcome.BUILT:
            for artifact in build.artifacts():
                build.log.append(artifact)
        counts = build.counts
        build.report.tell_progress(Moment(to_run=counts.done - counts.hits + counts.failures))
        failures = f"{build.counts.failures} of {len(build.plan.actions)} actions failed"
        watching, writing = self._watches.ending(request.request_id), self._records.writing(request)
        with watching, self._records.logging(), writing:
            build.report.tell_done(outcome, message=failures if outcome is m.Outcome.FAILED else "")
            await self._records.heard(request)
            try:  # first: what is looked at for the record was not seen by the build
                await self._watches.learn(build, outcome)
            except Exception:  # the edge: a watch that knows less still looks at its files, and the build is done
                _log.exception("what %s has seen was not learned", request.request_id)
            await self._in_pool(_keep_all, build, outcome)
        if build.has_caller:
            self._afterwards.add(partial(_keep_later, build, outcome))
        await self._afterwards.go_on()


def _keep_all(build: ActiveBuild, outcome: m.Outcome) -> None:
    """Write down what was learned, and then the build's log. In one worker thread: each change of threads costs as much
    as the look-up of a hit."""
    try:
        _keep(build, outcome)
    except Exception:  # the edge: what is written here only saves time, and the build is done
        _log.exception("what is known of %s was not kept", build.request.request_id)
    build.report.keep_log()


def _keep(build: ActiveBuild, outcome: m.Outcome) -> None:
    """Write down what was learned from a request that was built."""
    build.outputs.close()
    build.notebook.write()
    if build.has_caller:
        build.outputs.put_off()
    else:
        _keep_later(build, outcome)


def _keep_later(build: ActiveBuild, outcome: m.Outcome) -> None:
    """Write down what no other request of the same build asks for."""
    if outcome is m.Outcome.BUILT:
        build.outputs.remember()
    build.inputs.lookup.files.write_later()
    build.files.save()
