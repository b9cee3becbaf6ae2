"""The builds that changes lead to, and what becomes of those where events of the daemon were lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buildd.builds.event_log import RequestLog
from buildd.client.watch_session import Saves
from buildd.daemon.clients import Limits
from protocol import messages as m
from tests.support.serving import Serving, a_request, serving, short_folder
from tests.support.waiting import until


class Screen:
    """Who is told."""

    def __init__(self) -> None:
        self.rounds: list[m.Changed | None] = []
        self.notes: list[str] = []

    def watching(self, body: m.Watching) -> None:
        pass

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        self.rounds.append(changed)

    def event(self, event: m.Event) -> None:
        pass

    def note(self, words: str) -> None:
        self.notes.append(words)


class Watched:
    """A watch of a daemon that remembers little of what it said."""

    def __init__(self, served: Serving, folder: Path) -> None:
        self.served, self.screen = served, Screen()
        served.handler.manual = True
        self.saves = Saves(a_request(), {"BUILDD_RUNTIME_DIR": str(folder)}, self.screen)
        self.thread = threading.Thread(target=self.saves.run)

    def requests(self, mode: m.Mode) -> list[m.Request]:
        return [request for request in list(self.served.handler.requests.values()) if request.mode is mode]

    def log(self, mode: m.Mode, number: int) -> RequestLog:
        """The log of a mode's request, by its number."""
        until(lambda: len(self.requests(mode)) > number, f"request {number} of mode {mode}")
        return self.served.handler.logs[self.requests(mode)[number].request_id]

    def say(self, log: RequestLog, *bodies: m.EventBody) -> None:
        """All at once: nobody reads in between."""
        self.served.on_loop(lambda: [log.append(body) for body in bodies])


@pytest.fixture
def watched() -> Iterator[Watched]:
    with short_folder() as folder, serving(folder, limits=Limits(log_bytes=4000)) as served:
        made = Watched(served, folder)
        with running(made):
            yield made


@contextmanager
def running(watched: Watched) -> Iterator[None]:
    watched.thread.start()
    try:
        yield
    finally:
        watched.saves.stop()
        watched.thread.join()


MANY = tuple(m.Notice(text=f"{number}" + "." * 500) for number in range(20))
BUILT = m.Done(outcome=m.Outcome.BUILT)


def test_a_watch_that_lost_events_builds_anyway(watched: Watched) -> None:
    """A change may have been among them."""
    log = watched.log(m.Mode.WATCH, 0)
    watched.say(log, m.Watching(files=1, folders=1))
    watched.say(watched.log(m.Mode.BUILD, 0), BUILT)
    watched.say(log, m.Changed(paths=("lost",)), *MANY)
    watched.log(m.Mode.BUILD, 1)
    assert watched.screen.rounds == [None, None]


def test_a_watch_that_lost_its_first_event_builds(watched: Watched) -> None:
    watched.say(watched.log(m.Mode.WATCH, 0), m.Watching(files=1, folders=1), *MANY)
    watched.log(m.Mode.BUILD, 0)


def test_of_a_build_that_lost_events_not_all_is_known(watched: Watched) -> None:
    watch = watched.log(m.Mode.WATCH, 0)
    watched.say(watch, m.Watching(files=1, folders=1))
    for number, bodies in enumerate(((BUILT,), (*MANY, BUILT), (BUILT,))):
        watched.say(watched.log(m.Mode.BUILD, number), *bodies)
        # Heard in its turn: the end of the build first.
        until(lambda: not watched.saves._running, "the end of the build")
        watched.say(watch, m.Changed(paths=("saved",)))
        watched.log(m.Mode.BUILD, number + 1)
    first, second, third, fourth = watched.requests(m.Mode.BUILD)
    assert (first.known, second.known, third.known) == ("", first.request_id, "")
    assert fourth.known == third.request_id
