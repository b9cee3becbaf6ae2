"""`buildd up | down | status | serve`: the daemon's life as its user sees it.

Knows the control messages only. `status` must cost little more than importing zmq and msgspec: what other commands
need is imported where they need it.
"""

from __future__ import annotations

import os
import sys
import time

from buildd.cli import DAEMON, OK
from buildd.commands.common import parser, print_problem
from buildd.commands.connect import connect
from protocol.client import find
from protocol.endpoint import DaemonLock, Endpoint, is_alive, runtime_folder
from protocol.errors import ConnectionLost, NoDaemon, TimedOut
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
    """Stop the daemon and wait until it has ended; fine where none runs. One that is just starting is waited for."""
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
            # Where it has started itself anew meanwhile, its pid is the same.
            living = find(folder)
            if living is not None and living.instance == found:
                raise
        except NoDaemon:
            if not DaemonLock.is_held(folder):
                break
            # One has the lock and cannot be talked to yet: it starts, perhaps anew, as it does to give memory back.
            if time.monotonic() > deadline:
                print_problem("a daemon is starting and does not answer", next_step=f"see {folder.log_file}")
                return DAEMON
            time.sleep(_POLL_S)
    print("the daemon has ended" if found else "no daemon is running")
    return OK


def _has_ended(endpoint: Endpoint, *, now: bool) -> bool:
    """Waits for the end of a daemon that was asked to end; False where it does not come."""
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
    from argparse import SUPPRESS

    command = parser("serve", "Run the daemon in the foreground.")
    command.add_argument("--lock", type=int, default=-1, help=SUPPRESS)  # a daemon that starts itself anew has it
    options = command.parse_args(arguments)
    from buildd.daemon import serve as serve_daemon

    return serve_daemon(options.lock)
