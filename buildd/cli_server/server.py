"""A process beside the daemon that has the command line imported, and runs the commands that `cli_client` passes.

It is a fork of the daemon, made before the daemon has a thread. It waits on a socket in the runtime folder and forks
once more for each command (`passed_command`), so that no command leaves anything behind for the next. After a command,
a fork for the next one waits for a while (`spare`). The process ends with the daemon; the commands that it has begun go
on. Knows no command.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from buildd.cli_client import SOCKET
from buildd.cli_server import warm_up
from buildd.cli_server.imported_code import ImportedCode
from buildd.cli_server.spare import Spare, forked

_PR_SET_NAME = 15
_SOON_S, _AHEAD_S = 0.002, 0.05
"""The fork for the next command is made so long after a command: soon if a processor is free, else later, for it would
take processor time from a command that follows at once."""
_SPARE_S = 60.0
"""The fork for the next command waits at most so long after the last one: it holds some megabytes."""
_TELLING = 8
"""So many first commands tell which pages they have written: the pages that the fork for the next one copies ahead."""
_BACKLOG = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CliServer:
    """The process, from the daemon's side."""

    pid: int
    _lifeline: int
    """The process ends when this descriptor is closed."""

    def end(self) -> None:
        os.close(self._lifeline)
        os.waitpid(self.pid, 0)


def begin(place: str, main: Callable[[list[str]], int]) -> CliServer:
    """Start the process. No other thread may run; raises OSError.

    Args:
        place: the runtime folder.
        main: runs one command and returns its exit status.
    """
    lifeline, held = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _close_all_but(lifeline)
            _serve(place, lifeline, main)
            status = 0
        except Exception:  # the edge of a process
            _log.exception("the process for commands has failed; each command runs by itself")
        finally:
            os._exit(status)
    os.close(lifeline)
    return CliServer(pid, held)


def _close_all_but(kept: int) -> None:
    """Close inherited descriptors; the daemon's lock is among them."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):  # the one that listed the folder
                os.close(descriptor)


def _serve(place: str, lifeline: int, main: Callable[[list[str]], int]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"buildd-cli", 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the daemon, which ends this process
    os.close(os.pidfd_open(os.getpid()))  # a kernel without pidfds (before 5.3) fails here, not at the first command
    code = ImportedCode(main)
    warm_up.import_all()
    path = f"{place}/{SOCKET}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"{path}.new")
        listening.listen(_BACKLOG)
        os.rename(f"{path}.new", path)
        made = os.stat(path).st_ino
        _take_commands(listening, lifeline, code)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == made:  # else it is another daemon's socket by now
            os.unlink(path)


def _take_commands(listening: socket.socket, lifeline: int, code: ImportedCode) -> None:
    running: dict[int, Spare] = {}
    pages = b""
    number = 0
    spare: Spare | None = None
    wanted = False
    is_soon = False
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    waiting.register(lifeline, select.POLLIN)

    def fork(*foreign: int, ahead: bytes) -> Spare:
        ours = (listening.fileno(), lifeline, *running, *(other.descriptor for other in running.values()))
        return forked(code.main, (*ours, *foreign), ahead=ahead, tells=number < _TELLING)

    while True:
        ahead_s = _SOON_S if is_soon else _AHEAD_S
        patience_ms = _SPARE_S * 1000 if spare else ahead_s * 1000 if wanted else None
        ready = {descriptor for descriptor, _ in waiting.poll(patience_ms)}
        if lifeline in ready:
            if spare:
                spare.dismiss()
            return
        if not ready and spare:
            spare.dismiss()
            spare = None
        elif not ready and is_soon and not _has_free_processor():
            is_soon = False
        elif not ready:
            wanted = False
            with contextlib.suppress(OSError):  # no resources now: the fork is made when the next command comes
                spare = fork(ahead=pages)
        for descriptor in ready.intersection(running):
            waiting.unregister(descriptor)
            os.close(descriptor)
            pages = running.pop(descriptor).end() or pages
            wanted = is_soon = spare is None
        if listening.fileno() in ready:
            connection, _ = listening.accept()
            with connection:
                if not (spare and spare.use(connection)):
                    if spare:
                        spare.dismiss()
                    spare = fork(connection.fileno(), ahead=b"")
                    spare.use(connection)
            # This process looks while the fork reads the command.
            spare.allow(allowed=code.stands())
            descriptor = os.pidfd_open(spare.pid)
            running[descriptor] = spare
            waiting.register(descriptor, select.POLLIN)
            number += 1
            spare, wanted = None, False


def _has_free_processor() -> bool:
    """Whether fewer threads run now, beside this one, than there are processors. When in doubt: no."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return False
    return running <= len(os.sched_getaffinity(0))
