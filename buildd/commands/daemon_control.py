"""`buildd up | down | serve`: the daemon's life as its user sees it.

Knows the control messages only.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from buildd.client.connect import connect
from buildd.exits import DAEMON, OK
from buildd.ui.problems import parser, print_problem
from protocol.client import find
from protocol.endpoint import DaemonLock, Endpoint, is_alive, runtime_folder
from protocol.errors import ConnectionLost, NoDaemon, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from buildd.daemon.daemon import CommandServer

DOWN_NOW_WAIT_S = 30.0
_POLL_S = 0.02


def up(arguments: list[str]) -> int:
    parser("up", "Start the daemon. Other commands start it when they need it.").parse_args(arguments)
    with connect(os.environ, start=True) as client:
        status = client.status()
    print(f"{status.daemon} is {status.state}, pid {status.pid}")
    return OK


def down(arguments: list[str]) -> int:
    command = parser("down", "Stop the daemon: it accepts no new work, finishes the running jobs, and ends.")
    command.add_argument("--now", action="store_true", help="cancel running jobs instead of finishing them")
    options = command.parse_args(arguments)
    return stop_daemon(now=options.now)


def stop_daemon(*, now: bool) -> int:
    """Stop the daemon and wait until it has ended; fine if none runs. Waits for one that is just starting."""
    folder = runtime_folder(os.environ)
    deadline = time.monotonic() + DOWN_NOW_WAIT_S
    found = ""
    while True:
        try:
            with connect(os.environ, start=False) as client:
                endpoint = client.route.endpoint
                assert endpoint is not None
                found = endpoint.instance
                client.drain(now=now)
                if not _has_ended(endpoint, now=now):
                    return DAEMON
                break
        except ConnectionLost:
            pass  # It ended before it could answer.
        except TimedOut:
            # A daemon that restarted itself meanwhile has the same pid.
            living = find(folder)
            if living is not None and living.instance == found:
                raise
        except NoDaemon:
            if not DaemonLock.is_held(folder):
                break
            # A daemon holds the lock but does not listen yet: it is starting, or restarting to give memory back.
            if time.monotonic() > deadline:
                print_problem("a daemon is starting and does not answer", next_step=f"read its log: {folder.log_file}")
                return DAEMON
            time.sleep(_POLL_S)
    print("the daemon has ended" if found else "no daemon is running")
    return OK


def _has_ended(endpoint: Endpoint, *, now: bool) -> bool:
    """Wait for a daemon that was asked to end; False if it does not."""
    deadline = time.monotonic() + DOWN_NOW_WAIT_S
    said = False
    while is_alive(endpoint):
        if time.monotonic() > deadline:
            if now:
                print(f"the daemon (pid {endpoint.pid}) has not ended yet", file=sys.stderr)
                return False
            if not said:
                print("waiting for running jobs; buildd down --now ends them", file=sys.stderr)
                said = True
        time.sleep(_POLL_S)
    return True


def serve(arguments: list[str], begin_commands: Callable[[str], CommandServer]) -> int:
    from argparse import SUPPRESS

    command = parser("serve", "Run the daemon in the foreground.")
    command.add_argument("--lock", type=int, default=-1, help=SUPPRESS)  # of a daemon that restarts itself
    options = command.parse_args(arguments)
    from buildd.daemon.daemon import serve as serve_daemon

    return serve_daemon(begin_commands, options.lock)
