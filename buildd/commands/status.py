"""`buildd status`: what the daemon does right now; with --watch, as it goes on.

Must cost little more than importing zmq and msgspec: the rest is imported late. A terminal shows a watched status in
place; a pipe gets it again and again. Knows the control messages, no build.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from buildd.client.connect import connect
from buildd.exits import DAEMON, OK
from buildd.ui.problems import SILENCE_S, parser
from protocol.errors import NoDaemon, ProtocolError
from protocol.messages import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from buildd.shims.run_log import OngoingRun

NO_DAEMON = "no daemon is running; the next command starts one"
_PAUSE_S = 0.5


def status(arguments: list[str]) -> int:
    as_json = arguments == ["--json"]
    verbose = False
    if arguments and not as_json:  # argparse costs as much as everything else here; it only words the errors.
        command = parser("status", "Show what the daemon is doing. Exit status 3 if no daemon is running.")
        command.add_argument("--watch", action="store_true", help="keep showing it until Ctrl-C")
        command.add_argument("-v", "--verbose", action="store_true", help="also show the daemon's counters")
        command.add_argument("--json", action="store_true", help="print one JSON object: protocol.messages.Status")
        options = command.parse_args(arguments)
        as_json, verbose = options.json, options.verbose
        if options.watch:
            return watch(verbose=verbose)
    words = threading.Timer(SILENCE_S, print, ["buildd: the daemon has not answered yet"], {"file": sys.stderr})
    words.daemon = True
    words.start()
    try:
        with connect(os.environ, start=False, timeout_s=5.0) as client:
            answer = client.status()
    except NoDaemon:
        print('{"type":"status","state":"stopped"}' if as_json else NO_DAEMON)
        return DAEMON
    finally:
        words.cancel()
    if as_json:
        import msgspec

        print(msgspec.json.encode(answer).decode())
    else:
        from buildd.client.start_settings import warning
        from buildd.ui.daemon_status import status_lines

        print("\n".join([*status_lines(answer, runs_of(answer), verbose=verbose), *warning(os.environ)]))
    return OK


def runs_of(answer: Status) -> Sequence[OngoingRun]:
    """The `buildd run`s that go on in the daemon's stores. Most often there is none, and nothing is imported."""
    found: list[OngoingRun] = []
    for store in answer.stores:
        try:
            names = os.listdir(os.path.join(store, "answers", "failed"))
        except OSError:
            continue
        if names:
            from pathlib import Path

            from buildd.shims.run_log import running

            found += running(Path(store))
    return found


def watch(*, verbose: bool) -> int:
    """Show the status until Ctrl-C, also of daemons that start meanwhile."""
    from buildd.ui.screen import is_terminal

    in_place = is_terminal(sys.stdout, os.environ)
    drawn = 0
    try:
        while True:
            lines = _lines(verbose=verbose)
            if in_place:
                columns, rows = os.get_terminal_size(sys.stdout.fileno())
                shown = [line[: max(1, columns - 1)] for line in lines[: max(1, rows - 1)]]
                back = f"\x1b[{drawn}A" if drawn else ""
                print(f"{back}\r\x1b[J" + "\n".join(shown), flush=True)
                drawn = len(shown)
            else:
                print("\n".join([*lines, ""]), flush=True)
            time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        return OK


def _lines(*, verbose: bool) -> list[str]:
    from buildd.ui.daemon_status import status_lines

    try:
        with connect(os.environ, start=False, timeout_s=5.0) as client:
            answer = client.status()
    except ProtocolError:
        return [NO_DAEMON]
    return status_lines(answer, runs_of(answer), verbose=verbose)
