"""`buildd up | down | status | serve`: the daemon's life as its user sees it.

Knows the control messages only. `status` must cost little more than importing zmq and msgspec: what other commands
need is imported where they need it.
"""

from __future__ import annotations

import os
import sys
import time

from buildd.cli import DAEMON, OK
from buildd.commands.common import parser
from buildd.commands.connect import connect
from protocol.errors import NoDaemon
from protocol.messages import Status

DOWN_NOW_WAIT_S = 30.0
_POLL_S = 0.02


def up(arguments: list[str]) -> int:
    parser("up", "Start the daemon. Commands that need one start it by themselves.").parse_args(arguments)
    with connect(os.environ, start=True) as client:
        status = client.status()
    print(f"{status.daemon} is {status.state}, pid {status.pid}")
    return OK


def down(arguments: list[str]) -> int:
    command = parser("down", "Stop the daemon: it finishes what runs, takes nothing new, and ends.")
    command.add_argument("--now", action="store_true", help="end running jobs too")
    options = command.parse_args(arguments)
    return stop_daemon(now=options.now)


def stop_daemon(*, now: bool) -> int:
    """Stop the daemon and wait until it has ended; fine where none runs."""
    from protocol.endpoint import is_alive
    from protocol.errors import ConnectionLost

    try:
        with connect(os.environ, start=False) as client:
            endpoint = client.route.endpoint
            client.drain(now=now)
            deadline = time.monotonic() + DOWN_NOW_WAIT_S
            said = False
            while endpoint is not None and is_alive(endpoint):
                if time.monotonic() > deadline:
                    if now:
                        print(f"the daemon (pid {endpoint.pid}) has not ended yet", file=sys.stderr)
                        return DAEMON
                    if not said:
                        print("waiting for running jobs; buildd down --now ends them", file=sys.stderr)
                        said = True
                time.sleep(_POLL_S)
    except NoDaemon:
        print("no daemon is running")
        return OK
    except ConnectionLost:
        pass  # It ended before it could answer.
    print("the daemon has ended")
    return OK


def status(arguments: list[str]) -> int:
    as_json = arguments == ["--json"]
    if arguments and not as_json:  # argparse costs as much as everything else here; it only words the errors.
        command = parser("status", "What the daemon does right now. Exit status 3 where none runs.")
        command.add_argument("--json", action="store_true", help="one JSON object: protocol.messages.Status")
        as_json = command.parse_args(arguments).json
    try:
        with connect(os.environ, start=False, timeout_s=5.0) as client:
            answer = client.status()
    except NoDaemon:
        print('{"type":"status","state":"stopped"}' if as_json else "no daemon is running; the next command starts one")
        return DAEMON
    if as_json:
        import msgspec

        print(msgspec.json.encode(answer).decode())
    else:
        print("\n".join(status_lines(answer)))
    return OK


def status_lines(answer: Status) -> list[str]:
    """A status for people."""
    from buildd.ui.text import clean, count, duration, shortened, size

    lines = [
        f"{answer.daemon} is {answer.state}, pid {answer.pid}, "
        f"up {duration(answer.uptime_s)}, {size(answer.rss_bytes)}",
        f"{count(answer.requests, 'request')}, {count(len(answer.running), 'running job')}, {answer.queued} queued, "
        f"{count(answer.clients, 'client')}",
    ]
    for job in answer.running:
        expected = f" / ~{duration(job.expected_s)}" if job.expected_s > 0 else ""
        memory = f"  {size(job.memory_bytes)}" if job.memory_bytes else ""
        lines.append(f"  {shortened(clean(job.action), 80)}  {duration(job.elapsed_s)}{expected}{memory}")
    if answer.waiting_for:
        lines.append(f"waiting for {clean(answer.waiting_for)}")
    lines += [f"store {clean(store)}" for store in answer.stores]
    counters = [f"{name} {value}" for name, value in sorted(answer.counters.items()) if value]
    if counters:
        lines.append(", ".join(counters))
    return lines


def serve(arguments: list[str]) -> int:
    parser("serve", "Run the daemon in the foreground.").parse_args(arguments)
    from buildd.daemon import serve as serve_daemon

    return serve_daemon()
