"""One watch of targets and the builds that changes cause; `buildd watch` and the language server use it.

Sends two kinds of requests to the daemon: one that watches, and one build after another. A change replaces the build in
progress: the new build joins those of its jobs that are still right, the others are cancelled. Shows nothing itself.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from buildd.client.connect import connect
from buildd.client.perform import one_line
from protocol import messages as m
from protocol.client import Client
from protocol.errors import ConnectionLost, ProtocolError, StartFailed
from protocol.resubmission import submit_through
from protocol.session import Route

RETRY_S = 0.5
"""Pause before trying for another daemon, after one ended or could not start; doubled after each failure."""
RETRY_MOST_S = 15.0
CANCEL_S = 2.0
"""Longest wait for the daemon to accept a cancellation."""
_NOBODY = m.RequestId("")
_OWN = (OSError, ImportError, SyntaxError)
"""Faults of buildd's own installation, which may just be being replaced."""


class Listener(Protocol):
    """Receives what happens, on the thread that runs `Saves`."""

    def watching(self, body: m.Watching) -> None:
        """The daemon watches these inputs."""

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        """A build begins; the one before it is over, whether or not it ended."""

    def event(self, event: m.Event) -> None:
        """An event of the latest build."""

    def note(self, words: str) -> None:
        """A message for people."""


@dataclass(frozen=True, slots=True)
class News:
    """An event of a request, or why no more will come. With the empty id: a wish for a build, the end, a function to
    call, or merely a reason to wake up."""

    request_id: m.RequestId
    event: m.Event | None = None
    problem: ProtocolError | None = None
    ends: bool = False
    builds: bool = False
    call: Callable[[], None] | None = None


class Saves:
    """Builds now, and again on every change.

    Args:
        request: the build; its ids are replaced.
        environ: says where the daemon is.
        listener: receives what happens.
        every: gets the events of the watch, and of the builds until they are replaced.
    """

    def __init__(
        self,
        request: m.Request,
        environ: Mapping[str, str],
        listener: Listener,
        every: Callable[[m.Event], None] = lambda event: None,
    ) -> None:
        self._environ = environ
        # In a watch content decides; these settings are for a single build.
        environment = {**request.environment, "AIT_RECOMPILE": ""}
        self._build = msgspec.structs.replace(
            request, priority=m.Priority.EDITOR, recache=False, environment=environment
        )
        self._listener = listener
        self._every = every
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._watch = self._current = _NOBODY
        self._known = _NOBODY
        """The last good build, if the listener got all of its events."""
        self._has_all = True
        """No event of the current build was lost."""
        self._running: set[m.RequestId] = set()
        self._left: set[m.RequestId] = set()
        """Builds in a daemon that no longer watches: it finishes them, while another takes its place."""
        self._routes: dict[m.RequestId, Route] = {}
        """Running request -> the daemon that it was sent to."""
        self._is_due = False
        """A round begins as soon as the builds in `_left` have ended."""
        self._has_watched = False
        """A daemon has watched: if it goes away, there will be another one."""
        self._again_s: float | None = None
        """When to try for the next daemon, on the monotonic clock."""
        self._pause_s = RETRY_S
        self._said = ""
        self._spare: Conversation | None = None
        """A connection ready for the next build: after a save every millisecond counts."""

    def run(self) -> None:
        """Run until `stop` or an exception: KeyboardInterrupt, or ProtocolError if no daemon can be started at all."""
        try:
            with _woken_by_signals(lambda: self._news.put(News(_NOBODY))):
                self._begin_watch()
                while not (news := self._next()).ends:
                    self._take(news)
        finally:
            self._drop_spare()
            for thread in [self._cancel_aside(request_id) for request_id in (*self._running, self._watch)]:
                thread.join(CANCEL_S)

    def build_again(self) -> None:
        """Build though nothing changed. Callable from any thread."""
        self._news.put(News(_NOBODY, builds=True))

    def call(self, what: Callable[[], None]) -> None:
        """Call a function between two events. Callable from any thread."""
        self._news.put(News(_NOBODY, call=what))

    def stop(self) -> None:
        """Make `run` return. Callable from any thread."""
        self._news.put(News(_NOBODY, ends=True))

    # ---------------------------------------------------------------- events

    def _next(self) -> News:
        while True:
            try:
                return self._news.get(
                    timeout=None if self._again_s is None else max(0.0, self._again_s - time.monotonic())
                )
            except queue.Empty:
                self._begin_watch()

    def _take(self, news: News) -> None:
        event = news.event
        if news.request_id == _NOBODY:
            if news.builds:
                self._begin_round(None)
            if news.call is not None:
                news.call()
            return
        if event is not None and news.request_id in (self._watch, self._current):
            self._every(event)
        if news.request_id == self._watch:
            self._watched(news)
        elif event is None or isinstance(event.body, m.Done):
            self._running.discard(news.request_id)
            self._routes.pop(news.request_id, None)
            if self._spare is None and not self._running and self._again_s is None:
                self._spare = self._conversation()
        if news.request_id == self._current:
            if event is not None:
                self._heard(event)
            elif news.problem is not None:
                self._listener.note(f"{news.problem.message}; the next change builds again")
        if self._is_due and not self._left & self._running:
            self._begin_round(None)

    def _heard(self, event: m.Event) -> None:
        self._listener.event(event)
        if isinstance(event.body, m.Lagged):
            self._has_all = False
        elif isinstance(event.body, m.Done) and event.body.outcome is m.Outcome.BUILT:
            self._known = self._current if self._has_all else _NOBODY

    def _watched(self, news: News) -> None:
        match news.event.body if news.event is not None else None:
            case m.Watching() as body:
                self._has_watched, self._pause_s, self._said = True, RETRY_S, ""
                self._listener.watching(body)
                assert news.event is not None
                if news.event.sequence == 1:  # Also of a restarted daemon: it may have missed a change.
                    self._begin_round(None)
            case m.Changed() as body:
                self._begin_round(body)
            case m.Lagged():
                self._begin_round(None)  # a change may be among the lost events
            case m.Notice(text=text):
                self._listener.note(text)
            case m.Done(outcome=m.Outcome.CANCELLED):
                # The daemon accepts nothing new any more; it may still be busy with this watch's builds.
                self._left = set(self._running)
                self._try_again("")
            case m.Done(message=message):
                self._try_again(message)
            case None:
                problem = news.problem
                if problem is None or isinstance(problem, ConnectionLost) or problem.code == "draining":
                    self._try_again("")
                elif self._has_watched:
                    self._try_again(one_line(problem.message))
                else:
                    raise problem
            case _:
                pass

    def _try_again(self, words: str) -> None:
        """Watch again after a pause; say why not now."""
        self._routes.pop(self._watch, None)
        self._drop_spare()  # it leads to the daemon that ends
        if words and words != self._said:
            self._said = words
            self._listener.note(f"{words}; retrying until it works")
        self._again_s = time.monotonic() + self._pause_s
        self._pause_s = min(RETRY_MOST_S, 2 * self._pause_s)

    def _begin_watch(self) -> None:
        self._again_s = None
        self._watch = new_name()
        request = msgspec.structs.replace(
            self._watch_request(), request_id=self._watch, mode=m.Mode.WATCH, on_disconnect=m.OnDisconnect.CANCEL
        )
        self._follow(request)

    def _watch_request(self) -> m.Request:
        """The request to watch, apart from its id."""
        return self._build

    def _begin_round(self, changed: m.Changed | None) -> None:
        if elsewhere := self._left & self._running:
            # Two daemons would write the same outputs, and those of the older one would stay.
            if not self._is_due:
                self._is_due = True
                for request_id in elsewhere:
                    self._cancel_aside(request_id)
            return
        self._is_due, self._has_all = False, True
        name = new_name()
        before, self._current = self._current, name
        request = msgspec.structs.replace(
            self._build,
            request_id=name,
            build_id=m.BuildId(name),
            replaces=before if before in self._running else _NOBODY,
            known=self._known,
        )
        self._running.add(name)
        self._follow(request)
        self._listener.begin(request.build_id, changed)

    # ---------------------------------------------------------------- threads

    def _follow(self, request: m.Request) -> None:
        if self._spare is None or request.mode is m.Mode.WATCH:
            self._conversation(request)
        else:
            self._spare.ask(request)
            self._spare = None

    def _conversation(self, request: m.Request | None = None) -> Conversation:
        def routed(request_id: m.RequestId, client: Client) -> None:
            self._routes[request_id] = client.route

        replace = not self._has_watched
        made = Conversation(lambda: connect(self._environ, start=True, replace=replace), self._news.put, routed)
        if request is not None:
            made.ask(request)
        made.start()
        return made

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.drop()
            self._spare = None

    def _cancel_aside(self, request_id: m.RequestId) -> threading.Thread:
        # Not on the thread that a second Ctrl-C interrupts, in the middle of a message or of closing a socket.
        thread = threading.Thread(target=self._cancel, args=(request_id,), daemon=True, name=f"cancel {request_id}")
        thread.start()
        return thread

    def _cancel(self, request_id: m.RequestId) -> None:
        route = self._routes.get(request_id)
        if route is None:
            return
        try:
            # To the daemon that has it, not to the one that runs now.
            with Client(route, environ=self._environ, timeout_s=CANCEL_S) as client:
                client.cancel(request_id)
        except (ProtocolError, TimeoutError):
            pass  # the build has ended, or its daemon has


class Conversation:
    """A connection made on a thread of its own, and the one request sent through it.

    Args:
        connect: makes the connection, again if it is lost.
        put: gets the request's events, or why no more will come.
        routed: is called whenever the request goes to a daemon.
    """

    def __init__(
        self, connect: Callable[[], Client], put: Callable[[News], None], routed: Callable[[m.RequestId, Client], None]
    ) -> None:
        self._connect = connect
        self._put = put
        self._routed = routed
        self._asked: queue.SimpleQueue[m.Request | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the thread; if there is no request yet, it connects ahead of time."""
        threading.Thread(target=self._work, daemon=True, name="conversation").start()

    def ask(self, request: m.Request) -> None:
        """Send the request. Call once, before or after `start`."""
        self._asked.put(request)

    def drop(self) -> None:
        """Give up: there is no request."""
        self._asked.put(None)

    def _work(self) -> None:
        made: list[Client] = []
        if self._asked.empty():
            try:
                made.append(self._connect())
                assert made[0].instance  # shakes hands
            except (ProtocolError, *_OWN):
                pass  # reported when it matters: the request connects again
        request = self._asked.get()
        if request is None:
            for client in made:
                client.close()
            return

        def connected() -> Client:
            client = made.pop() if made else self._connect()
            self._routed(request.request_id, client)
            return client

        try:
            for event in submit_through(connected, request):
                self._put(News(request.request_id, event))
        except ProtocolError as problem:
            self._put(News(request.request_id, problem=problem))
        except _OWN as error:
            failed = StartFailed(f"cannot start a daemon: {error}", next_step="install buildd again")
            self._put(News(request.request_id, problem=failed))


@contextmanager
def _woken_by_signals(wake: Callable[[], None]) -> Iterator[None]:
    """Call `wake`, on another thread, after every signal.

    Python runs handlers between bytecodes of the main thread. If a signal comes just before that thread begins to wait,
    its handler runs only after the wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    written, read = socket.socketpair()

    def work() -> None:
        try:
            while read.recv(64):
                wake()
        except OSError:
            pass  # a second signal interrupted the end, which then closed the socket first

    with written, read:
        written.setblocking(False)
        thread = threading.Thread(target=work, daemon=True, name="signals")
        thread.start()
        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            written.shutdown(socket.SHUT_WR)
            thread.join()


def new_name() -> m.RequestId:
    """A new id for a request or a build."""
    return m.RequestId(os.urandom(6).hex())
