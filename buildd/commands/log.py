"""`buildd log [BUILD]`: recent builds, everything one of them said, or what one that still runs says.

Knows the store's build log and the daemon's `follow`; what is read is told by the narrator as in a pipe.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from buildd.cli import DAEMON, OK, USAGE
from buildd.commands.common import parser, print_lines, print_problem
from buildd.ui import text
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.screen import has_colour, telling_from
from buildd.ui.text import Line, Style
from buildd.ui.view import JsonView, View, Writer
from codegen.plan import RequestError
from protocol.described import described
from protocol.messages import Done, Event, Outcome, RequestId

if TYPE_CHECKING:
    from buildd.buildlog import Build
    from buildd.store import Store

SEARCHED = 200


def run(arguments: list[str]) -> int:
    command = parser("log", "Recent builds, or everything that one of them said.")
    command.add_argument("build", metavar="BUILD", nargs="?", default="", help="as listed; its first characters do")
    command.add_argument("-f", "--follow", action="store_true", help="go on with a build that still runs")
    command.add_argument("-n", "--number", metavar="N", type=int, default=20, help="how many builds are listed")
    command.add_argument("--json", action="store_true", help="builds or events as JSON lines")
    options = command.parse_args(arguments)
    if options.follow:
        return follow(options.build, json=options.json)
    if options.build:
        return show(events_of(options.build), build=options.build, json=options.json)
    return list_builds(options.number, json=options.json)


def open_store() -> Store | None:
    """This user's store for reading; None where there is none yet. Raises StoreError."""
    from pathlib import Path

    from buildd.commands.request import store_of
    from buildd.store import Store

    folder = Path(store_of(os.environ))
    return Store.open(folder, read_only=True) if (folder / "index.db").exists() else None


def list_builds(number: int, *, json: bool) -> int:
    store = open_store()
    builds: list[Build] = []
    if store is not None:
        with store:
            builds = store.builds(max(0, number))
    if json:
        for build in builds:
            print(msgspec.json.encode(build).decode())
        return OK
    print_lines(build_lines(builds))
    return OK


def build_lines(builds: Iterable[Build]) -> list[Line]:
    """One line a build, the latest first."""
    lines = []
    styles = {Outcome.BUILT: Style.PLAIN, Outcome.CANCELLED: Style.FAINT}
    for build in builds:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(build.started_ns / 1e9))
        figures = build.summary
        what = f"{text.count(figures.hits, 'hit')}, {max(0, figures.misses - figures.failures)} compiled"
        if figures.failures:
            what += f", {figures.failures} failed"
        targets = f"run -- {figures.command}" if figures.command else " ".join(build.targets) or "-"
        lines.append(
            Line(
                f"{text.clean(build.build_id)}  {when}  {build.outcome.value:<9}  {text.duration(figures.wall_s):>9}  "
                f"{what}  {text.shortened(text.clean(targets), 40)}  {text.clean(build.project)}",
                styles.get(build.outcome, Style.ERROR),
            )
        )
    return lines or [Line("no builds yet")]


def events_of(build: str) -> list[Event]:
    """The events of a past build, named by the first characters of its id.

    Raises: RequestError where there is none or more than one; StoreError.
    """
    store = open_store()
    if store is not None:
        with store:
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
            "unknown-build", f"{prefix!r} could be {', '.join(sorted(found))}", next_step="give more characters"
        )
    return next(iter(found.values()))


def _unknown(build: str) -> RequestError:
    return RequestError("unknown-build", f"no build {build!r} is kept", next_step="buildd log lists them")


def show(events: Iterable[Event], *, build: str, json: bool) -> int:
    """Tell recorded or live events; the exit status says only whether they could be told."""
    telling = telling_from(os.environ, Telling(listing=True, reasons=True, complete=True, build=build))
    writer = Writer(sys.stdout, colour=not json and has_colour(sys.stdout, os.environ))
    view: View = JsonView(writer) if json else PlainView(writer, Narrator(telling))
    try:
        for event in events:
            view.event(event)
            if isinstance(event.body, Done):
                break
    finally:
        view.close()
    return OK


def follow(build: str, *, json: bool) -> int:
    """A build that the daemon still runs, from its first event on; one that has ended is read from the store."""
    from buildd.commands.connect import connect
    from protocol.errors import NoDaemon, RemoteError

    try:
        with connect(os.environ, start=False) as client:
            if not build:
                active: tuple[str, ...] = getattr(client.status(), "active", ())
                if not active:
                    print_problem("the daemon runs no build", next_step="buildd log lists those that have ended")
                    return USAGE
                build = active[-1]
            return show(client.follow(RequestId(build)), build=build, json=json)
    except (NoDaemon, RemoteError) as error:
        if build:
            return show(events_of(build), build=build, json=json)
        print_problem(error.message, next_step=error.next_step)
        return DAEMON
