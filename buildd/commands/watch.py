"""`buildd watch`: build targets now, and again whenever what they are built of changes.

Two kinds of requests through the daemon: one that watches and one build after another. A build that is under way when
something changes is replaced: the new one joins those of its jobs that are still right, the rest is cancelled.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from buildd.cli import OK, USAGE
from buildd.commands.common import parser, print_problem
from buildd.commands.connect import connect
from buildd.commands.request import add_request_arguments, request_from
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.rounds import Rounds
from buildd.ui.screen import has_colour, is_terminal, view_for
from buildd.ui.view import JsonView, View, Writer
from protocol import messages as m
from protocol.client import submit_through
from protocol.errors import ConnectionLost, ProtocolError, RemoteError

RETRY_S = 1.0
"""Before another daemon is tried for, after one could not be had."""

_NOBODY = m.RequestId("")


@dataclass(frozen=True, slots=True)
class News:
    """An event of a request, or why there are no more."""

    request_id: m.RequestId
    event: m.Event | None = None
    problem: ProtocolError | None = None


def run(arguments: list[str]) -> int:
    command = parser(
        "watch",
        "Build targets, and again whenever one of their inputs changes; all default targets when none is named.",
        details="Ctrl-C ends it. Content decides: a file that was only touched builds nothing.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument("-k", "--keep-going", action="store_true", help="after a failure build what does not need it")
    options = command.parse_args(arguments)
    if options.no_daemon:
        print_problem("only a daemon watches", next_step="leave --no-daemon out")
        return USAGE
    return _Session(options, dict(os.environ)).run()


class _Session:
    """One `buildd watch`, from its start to Ctrl-C."""

    def __init__(self, options: Namespace, environ: Mapping[str, str]) -> None:
        self._environ = environ
        request = request_from(options, tuple(options.targets), m.Mode.BUILD, environ)
        # Here content decides, whatever these say of a single build.
        environment = {name: value for name, value in request.environment.items() if name != "AIT_RECOMPILE"}
        self._build = msgspec.structs.replace(
            request, priority=m.Priority.EDITOR, recache=False, environment=environment
        )
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._watch = self._current = _NOBODY
        self._running: set[m.RequestId] = set()
        stream = sys.stderr if options.json else sys.stdout
        self._lines = JsonView(Writer(sys.stdout)) if options.json else None
        writer = Writer(stream, colour=has_colour(stream, environ))
        self._rounds = Rounds(writer, self._view, clear=is_terminal(stream, environ) and not options.json)

    def run(self) -> int:
        try:
            self._begin_watch()
            while True:
                self._take(self._news.get())
        except KeyboardInterrupt:
            self._rounds.drop()
            for request_id in (*self._running, self._watch):
                self._cancel(request_id)
            return OK  # there is no other way to end it

    # ---------------------------------------------------------------- what happens

    def _take(self, news: News) -> None:
        event = news.event
        if event is not None and self._lines is not None and news.request_id in (self._watch, self._current):
            self._lines.event(event)
        if news.request_id == self._watch:
            self._watched(news)
        elif event is None or isinstance(event.body, m.Done):
            self._running.discard(news.request_id)
        if news.request_id == self._current:
            if event is not None:
                self._rounds.event(event)
            elif news.problem is not None:
                self._rounds.note(f"{news.problem.message}; the next change builds again")

    def _watched(self, news: News) -> None:
        match news.event.body if news.event is not None else None:
            case m.Watching() as body:
                self._rounds.watching(body)
                assert news.event is not None
                if news.event.sequence == 1:  # Also of a daemon that was started anew: it may have missed something.
                    self._begin_round(None)
            case m.Changed() as body:
                self._begin_round(body)
            case m.Done() | None:
                if news.problem is not None and not isinstance(news.problem, ConnectionLost | RemoteError):
                    raise news.problem
                threading.Timer(RETRY_S, self._begin_watch).start()
            case _:
                pass

    def _begin_watch(self) -> None:
        self._watch = _new_name()
        request = msgspec.structs.replace(
            self._build, request_id=self._watch, mode=m.Mode.WATCH, on_disconnect=m.OnDisconnect.CANCEL
        )
        self._follow(request)

    def _begin_round(self, changed: m.Changed | None) -> None:
        name = _new_name()
        request = msgspec.structs.replace(self._build, request_id=name, build_id=m.BuildId(name))
        before, self._current = self._current, name
        self._rounds.begin(request.build_id, changed)
        self._running.add(name)
        self._follow(request, instead_of=before if before in self._running else _NOBODY)

    # ---------------------------------------------------------------- threads

    def _follow(self, request: m.Request, *, instead_of: m.RequestId = _NOBODY) -> None:
        def work() -> None:
            left = instead_of
            try:
                for event in submit_through(lambda: connect(self._environ, start=True), request):
                    self._news.put(News(request.request_id, event))
                    if left and isinstance(event.body, m.Queued | m.Progress | m.Done):
                        # Only now: jobs that both want live on through their second follower.
                        self._cancel(left)
                        left = _NOBODY
            except ProtocolError as problem:
                self._news.put(News(request.request_id, problem=problem))

        threading.Thread(target=work, daemon=True, name=f"request {request.request_id}").start()

    def _cancel(self, request_id: m.RequestId) -> None:
        try:
            with connect(self._environ, start=False, timeout_s=2.0) as client:
                client.cancel(request_id)
        except (ProtocolError, TimeoutError):
            pass  # it has ended, or its daemon has

    def _view(self, build_id: m.BuildId) -> View:
        telling = Telling(mode=m.Mode.BUILD, build=build_id)
        if self._lines is not None:
            writer = Writer(sys.stderr, colour=has_colour(sys.stderr, self._environ))
            return PlainView(writer, Narrator(telling))
        return view_for(sys.stdout, sys.stderr, json=False, telling=telling, environ=self._environ)


def _new_name() -> m.RequestId:
    return m.RequestId(os.urandom(6).hex())
