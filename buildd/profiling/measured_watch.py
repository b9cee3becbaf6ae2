"""`buildd watch --profile`: one watch whose kernels are measured on a GPU after each good build.

Connects `watch_session`, which builds, and `trials`, which measures; shows nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from buildd.client.candidate_builds import ThroughDaemon
from buildd.client.watch_session import Listener, Saves, new_name
from buildd.profiling.preparation import problem_from, survey_of
from buildd.profiling.trials import Trials
from buildd.store.store import Store
from codegen.tuning.survey import Survey, check_watched
from protocol import messages as m
from protocol.client import find
from protocol.endpoint import runtime_folder
from protocol.session import Route


class Shown(Listener, Protocol):
    """A `Listener` that is also told the measurements."""

    def measured(self, body: m.Measured) -> None:
        """A kernel of the build that ended last ran on a GPU."""


class MeasuredWatch:
    """A watch whose good builds are measured, while this context manager is entered.

    Args:
        request: the build.
        environ: says where the daemon lives.
        listener: gets what `Saves` tells, and the measurements.
        every: gets every event, as from `Saves`, and those of measurements.
        targets: the ones to measure.
        problems: sizes for targets that leave some open, as in `--problem`.

    Raises: RequestError.
    """

    def __init__(
        self,
        request: m.Request,
        environ: Mapping[str, str],
        listener: Shown,
        every: Callable[[m.Event], None],
        targets: Sequence[str],
        problems: Sequence[str],
    ) -> None:
        self._request = msgspec.structs.replace(request, targets=tuple(targets))
        check_watched(self._request)
        self._listener = listener
        self._every = every
        self._problems = [problem_from(text) for text in problems]
        self._libraries: dict[str, str] = {}
        """Target -> its library, of the build in progress."""
        self._round = 0
        self._again = False
        """A build failed since the last trial, so the kernel's result is no longer on the screen."""
        self._sequence = 0
        self._name = new_name()
        self.saves = Saves(request, environ, self, every)
        self._trials = Trials(
            self._request, self._look, lambda: ThroughDaemon(environ), self._say, route=lambda: _route(environ)
        )

    def __enter__(self) -> MeasuredWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trials.close()

    # ---------------------------------------------------------------- called by `watch_session`

    def watching(self, body: m.Watching) -> None:
        self._listener.watching(body)

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        self._trials.drop()
        self._round += 1
        self._libraries = {}
        self._listener.begin(build_id, changed)

    def event(self, event: m.Event) -> None:
        self._listener.event(event)
        match event.body:
            case m.Artifact(target=target, path=path) if path.endswith(".so"):
                self._libraries.setdefault(target, f"{self._request.project}/{path}")
            case m.Done(outcome=m.Outcome.BUILT):
                self._trials.begin(self._libraries, partial(self._measured, self._round), again=self._again)
                self._again = False
            case m.Done():
                self._again = True
            case _:
                pass

    def note(self, words: str) -> None:
        self._listener.note(words)

    # ---------------------------------------------------------------- called by `trials`, on its thread

    async def _look(self) -> Survey:
        with Store.open(Path(self._request.store)) as store:
            return await survey_of(self._request, self._problems, store, ranks=False)

    def _say(self, words: str) -> None:
        self.saves.call(partial(self._listener.note, words))

    def _measured(self, number: int, body: m.Measured) -> None:
        self.saves.call(partial(self._show, number, body))

    def _show(self, number: int, body: m.Measured) -> None:
        if number != self._round:
            return  # measured while the next build began
        self._sequence += 1
        self._every(m.Event(request_id=self._name, sequence=self._sequence, time_ns=time.time_ns(), body=body))
        self._listener.measured(body)


def _route(environ: Mapping[str, str]) -> Route | None:
    living = find(runtime_folder(environ))
    return Route.local(living) if living is not None else None
