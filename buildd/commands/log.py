"""`buildd log [BUILD]`: lists recent builds, or shows the output of one, also while it runs.

Knows the store's build log and the daemon's `follow`; the narrator words the events as in a pipe.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from buildd.client.request import with_files
from buildd.exits import DAEMON, OK, USAGE
from buildd.shims import run_log
from buildd.ui.build_table import build_lines, running_lines
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.screen import has_colour, screen_size, telling_from
from buildd.ui.view import JsonView, View, Writer
from codegen.errors import RequestError
from protocol.described import described
from protocol.errors import ProtocolError
from protocol.messages import CacheHit, Done, Event, Explained, Finished, Notice, Progress, Queued, RequestId

if TYPE_CHECKING:
    from buildd.store.build_log import Build
    from buildd.store.store import Store

SEARCHED = 200
_LISTED = 20
LAST = "last"
_POLL_S = 0.25
_LOGGED_S, _LOOK_S = 2.0, 0.005
"""For how long to wait for the daemon's log, and between looks."""
_JOBS_OF_RUNS = (Queued, Finished, CacheHit, Progress)


def run(arguments: list[str]) -> int:
    command = parser("log", "List recent builds, or show everything that one of them printed.")
    command.add_argument(
        "build",
        metavar="BUILD",
        nargs="?",
        default="",
        help='id of a build as listed; its first characters are enough; "last" is the last one',
    )
    command.add_argument("-f", "--follow", action="store_true", help="follow a build that is still running")
    command.add_argument(
        "-n",
        "--number",
        metavar="N",
        type=int,
        default=None,
        help="list at most N builds (default 20, and no more than the terminal has rows)",
    )
    command.add_argument("--json", action="store_true", help="print builds or events as JSON lines")
    options = command.parse_args(arguments)
    if options.follow:
        return follow(options.build, json=options.json)
    if options.build:
        return show(events_of(options.build), build=options.build, json=options.json)
    return list_builds(options.number, json=options.json)


def open_store() -> Store | None:
    """This user's store, opened for reading, with all builds that have ended; None if there is none yet.

    Raises: StoreError.
    """
    from pathlib import Path

    from buildd.client.request import store_of
    from buildd.store.store import Store

    _wait_for_log()
    folder = Path(store_of(os.environ))
    return Store.open(folder, read_only=True) if (folder / "index.db").exists() else None


def _wait_for_log() -> None:
    """Give a running daemon time to log the builds that it has just ended: it tells their clients first."""
    from buildd.client.connect import connect

    end_s = time.monotonic() + _LOGGED_S
    with contextlib.suppress(ProtocolError), connect(os.environ, start=False, timeout_s=_LOGGED_S) as client:
        while client.status().unlogged and time.monotonic() < end_s:
            time.sleep(_LOOK_S)


def list_builds(number: int | None, *, json: bool) -> int:
    columns, rows = (0, 0) if json else screen_size(sys.stdout)
    if number is None:
        number = min(_LISTED, max(1, rows - 2)) if rows else _LISTED  # the prompts before and after it stay
    store = open_store()
    builds: list[Build] = []
    if store is not None:
        with store:
            builds = store.builds(max(0, number))
    if json:
        for build in builds:
            print(msgspec.json.encode(build).decode())
        return OK
    running = run_log.running(store.folder) if store is not None else []
    past = build_lines(builds, columns) if builds or not running else []
    print_lines([*running_lines(running, columns), *past])
    return OK


def events_of(build: str) -> list[Event]:
    """The events of a past build, named by the first characters of its id, or "last".

    Raises: RequestError if no build or several match; StoreError.
    """
    store = open_store()
    if store is not None:
        with store:
            if build == LAST and (last := store.builds(1)):
                build = last[0].request_id
            data = store.build_events(RequestId(build))
            if data is None:
                data = store.build_events(_full_id(store, build))
        if data is not None:
            return msgspec.msgpack.decode(data, type=described(list[Event]))
    raise _unknown(build)


def _full_id(store: Store, prefix: str) -> RequestId:
    found: dict[str, RequestId] = {}
    for build in store.builds(SEARCHED):
        if build.build_id.startswith(prefix) or build.request_id.startswith(prefix):
            found.setdefault(build.build_id, build.request_id)
    if not found:
        raise _unknown(prefix)
    if len(found) > 1:
        raise RequestError(
            "unknown-build",
            f"several builds begin with {prefix!r}: {', '.join(sorted(found))}",
            next_step="give more characters",
        )
    return next(iter(found.values()))


def _unknown(build: str) -> RequestError:
    if build == LAST:
        return RequestError(
            "unknown-build", "the log has no build yet", next_step="run buildd build or buildd run first"
        )
    return RequestError("unknown-build", f"the log has no build {build!r}", next_step="buildd log lists the builds")


def show(events: Iterable[Event], *, build: str, json: bool) -> int:
    """Show recorded or live events; the exit status says only whether they could be shown."""
    telling = telling_from(with_files(os.environ), Telling(listing=True, reasons=True, complete=True, build=build))
    writer = Writer(sys.stdout, colour=not json and has_colour(sys.stdout, os.environ))
    view: View = JsonView(writer) if json else PlainView(writer, Narrator(telling))
    is_run = False
    try:
        for event in events:
            is_run = is_run or (event.sequence == 1 and run_log.is_run(event.body))
            if not json and (isinstance(event.body, Explained) or (is_run and isinstance(event.body, _JOBS_OF_RUNS))):
                continue  # `buildd explain` shows the calls of a run, `buildd ui` and `buildd trace` its jobs
            view.event(event)
            if isinstance(event.body, Done):
                break
    finally:
        view.close()
    return OK


def _runs() -> list[run_log.OngoingRun]:
    from pathlib import Path

    from buildd.client.request import store_of

    return run_log.running(Path(store_of(os.environ)))


def _events_of_run(run: run_log.OngoingRun) -> Iterator[Event]:
    """The events of a `buildd run` as they come: its failed compiles while it goes on, then how it ended."""
    from pathlib import Path

    from buildd.client.request import store_of

    store = Path(store_of(os.environ))
    name = RequestId(run.build_id)
    yield Event(request_id=name, sequence=1, time_ns=run.started_ns, body=Notice(text=f"command: {run.command}"))
    seen: set[tuple[str, int]] = set()
    while (failures := run_log.failures_so_far(store, run)) is not None:
        for event in (event for events in failures for event in events):
            if (event.request_id, event.sequence) not in seen:
                seen.add((event.request_id, event.sequence))
                yield event
        time.sleep(_POLL_S)
    try:
        ended = events_of(run.build_id)
    except RequestError:
        return  # it compiled nothing
    for event in ended[1:]:
        if isinstance(event.body, Notice | Done):
            yield event


def follow(build: str, *, json: bool) -> int:
    """Show a build that is still running, from its first event on; a build that has ended is read from the store."""
    from buildd.client.connect import connect
    from protocol.errors import NoDaemon, RemoteError

    runs = [run for run in _runs() if build == LAST or run.build_id.startswith(build)]
    try:
        with connect(os.environ, start=False) as client:
            if runs:
                return show(_events_of_run(runs[-1]), build=runs[-1].build_id, json=json)
            if not build:
                active: tuple[str, ...] = getattr(client.status(), "active", ())
                if not active:
                    print_problem(
                        "the daemon is running no build", next_step="buildd log lists the builds that have ended"
                    )
                    return USAGE
                build = active[-1]
            return show(client.follow(RequestId(build)), build=build, json=json)
    except (NoDaemon, RemoteError) as error:
        if build:
            return show(events_of(build), build=build, json=json)
        print_problem(error.message, next_step=error.next_step)
        return DAEMON
