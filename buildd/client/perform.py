"""Carries out a request: through the daemon, or in this process if that is impossible.

Knows the client's interface, not how a build is shown. A daemon that is absent, busy, of another version or dying
never costs the user a build, only one line that says why.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from buildd.exits import INTERRUPTED, Interrupted
from buildd.host import limits
from buildd.ui.problems import is_on, print_note
from buildd.ui.text import spelled
from buildd.ui.view import View
from protocol.errors import ProtocolError, RemoteError
from protocol.messages import Done, Event, Mode, Outcome, Request
from protocol.wire import is_text

CANCEL_WAIT_S = 5.0
"""How long the first Ctrl-C waits for the daemon to end the jobs."""


def carry_out(request: Request, view: View, *, no_daemon: bool, environ: Mapping[str, str]) -> Done:
    """Carry out `request` and show it.

    Args:
        request: the request.
        view: gets every event in order, and is closed at the end.
        no_daemon: carry it out in this process.
        environ: the client's environment; says where the daemon is.

    Raises: KeyboardInterrupt on a second Ctrl-C; BuilddError if the request cannot even be tried, TooLittle among them.
    """
    with stopping_signals():
        try:
            limits.check(limits.OF_A_COMMAND)
            if not (no_daemon or is_on(environ, "BUILDD_DISABLE")):
                reason = unsendable(request)
                if not reason:
                    try:
                        return _through_daemon(request, view, environ)
                    except ProtocolError as error:
                        reason = one_line(error.message)
                print_note(f"buildd: {reason}; building without the daemon")
            return _here(request, view)
        finally:
            view.close()


def one_line(message: str) -> str:
    """A message in one line: of a quoted log, only the line that says why."""
    first, _, quoted = message.partition("\n")
    lines = [line.strip() for line in quoted.splitlines() if line.strip()]
    why = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
    first = first.removesuffix("; its log ends:")
    return f"{first}: {why.removeprefix('error: ')}" if why else first


def unsendable(request: Request) -> str:
    """Why the protocol cannot carry this request; empty when it can.

    Its strings are UTF-8. A folder's name need not be, and a build in this process has no such limit.
    """
    texts = (request.project, request.file, request.store, request.interpreter, *request.targets)
    for text in (*texts, *request.environment, *request.environment.values()):
        if not is_text(text):
            return f"{spelled(text)} is not UTF-8, which the daemon's protocol cannot carry"
    return ""


def _through_daemon(request: Request, view: View, environ: Mapping[str, str]) -> Done:
    from buildd.client import start_settings
    from buildd.client.connect import connect
    from protocol.errors import ConnectionLost
    from protocol.resubmission import submit_through

    sequence = 0
    try:
        for event in submit_through(lambda: connect(environ, start=True), request):
            sequence = event.sequence
            view.event(event)
            if isinstance(event.body, Done):
                if request.mode in (Mode.BUILD, Mode.PROVE):
                    for line in start_settings.warning(environ):
                        print_note(f"buildd: {line}")
                if request.mode is Mode.BUILD and event.body.misses and start_settings.names_tier(environ):
                    _tell_tier(environ)
                return event.body
    except KeyboardInterrupt as stop:
        done = _cancelled(request, sequence, view, environ)
        if isinstance(stop, Interrupted):
            raise
        return done
    raise ConnectionLost("the daemon ended before the build was finished")


def _tell_tier(environ: Mapping[str, str]) -> None:
    """Say in one line why the shared cache that the user has named could not help, after a build that ran jobs."""
    from buildd.client.connect import connect
    from buildd.client.run_summary import tier_trouble

    try:
        with connect(environ, start=False, timeout_s=CANCEL_WAIT_S) as client:
            for line in tier_trouble(client.status().tier):
                print_note(f"buildd: {line}")
    except ProtocolError:
        pass


def _cancelled(request: Request, sequence: int, view: View, environ: Mapping[str, str]) -> Done:
    """Ask the daemon to end the request and show its last events; give up after `CANCEL_WAIT_S`.

    Uses a connection of its own: Ctrl-C may have hit the other one in the middle of a message.
    """
    from buildd.client.connect import connect

    with _deadline(CANCEL_WAIT_S):
        try:
            with connect(environ, start=False, timeout_s=CANCEL_WAIT_S) as client:
                try:
                    client.cancel(request.request_id)
                except RemoteError:
                    pass  # It ended with the first connection.
                for event in client.follow(request.request_id, sequence):
                    sequence = event.sequence
                    view.event(event)
                    if isinstance(event.body, Done):
                        return event.body
        except (ProtocolError, TimeoutError):
            pass
    done = Done(outcome=Outcome.CANCELLED, message="the daemon did not report the outcome")
    view.event(Event(request_id=request.request_id, sequence=sequence + 1, time_ns=time.time_ns(), body=done))
    return done


def _here(request: Request, view: View) -> Done:
    from buildd.client.in_process import build_here

    return build_here(request, view.event)


@contextmanager
def stopping_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a build as Ctrl-C does, so that no tool is left behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`, even if it blocks."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def status_of(done: Done) -> int:
    """The exit status of an outcome; if the request could not be carried out, says why on stderr."""
    from buildd.client.request import EXIT_STATUS
    from buildd.ui.layout import error_lines

    if done.outcome in (Outcome.REFUSED, Outcome.DAEMON_ERROR):
        from buildd.ui.problems import print_lines

        sys.stdout.flush()
        print_lines(error_lines(done), to_stderr=True)
    return EXIT_STATUS.get(done.outcome, INTERRUPTED)
