"""A fork of the command server that waits for one command. Knows no command."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buildd.cli_client import GO
from buildd.cli_server import passed_command

_PR_SET_PDEATHSIG = 1
_MADV_POPULATE_WRITE = 23
_PIECE_BYTES = 1 << 20
_REFUSED = b"\0"


@dataclass(frozen=True, slots=True)
class Spare:
    """A fork that waits for its command."""

    pid: int
    _channel: socket.socket

    def use(self, connection: socket.socket) -> bool:
        """Pass a connection to the fork, which then waits for `allow`; False if the fork has ended."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [GO], [connection.fileno()])
            return True
        return False

    def allow(self, *, allowed: bool) -> None:
        """Have the fork run the command, or refuse it."""
        with self._channel, contextlib.suppress(OSError):  # the fork has ended
            self._channel.send(GO if allowed else _REFUSED)

    def dismiss(self) -> None:
        self._channel.close()
        os.waitpid(self.pid, 0)


def forked(main: Callable[[list[str]], int], foreign: Sequence[int], *, ahead: bool) -> Spare:
    """Fork a process that runs one command.

    Args:
        main: runs one command and returns its exit status.
        foreign: descriptors to close in it.
        ahead: the fork is made before its command arrives, so it has time.
    """
    channel, its = socket.socketpair()
    pid = os.fork()
    if pid:
        its.close()
        return Spare(pid, channel)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for descriptor in (*foreign, channel.detach()):
        os.close(descriptor)
    if ahead:
        _own_memory(libc, its)
    _, passed, _, _ = socket.recv_fds(its, 1, 1)
    if not passed:
        os._exit(0)
    libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)

    def is_allowed() -> bool:
        with its:
            return its.recv(1) == GO

    passed_command.run(socket.socket(fileno=passed[0]), main, is_allowed)


def _own_memory(libc: ctypes.CDLL, channel: socket.socket) -> None:
    """Copy all memory that is shared with the parent now: copied page by page, at first writes, it takes 10 ms. Ends
    early where the command arrives meanwhile."""
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    arrival = select.poll()
    arrival.register(channel, select.POLLIN)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps.readlines():
            place, rights, *_ = line.split()
            if rights != "rw-p":
                continue
            first, end = (int(address, 16) for address in place.split("-"))
            for start in range(first, end, _PIECE_BYTES):
                if arrival.poll(0):
                    return
                libc.madvise(start, min(_PIECE_BYTES, end - start), _MADV_POPULATE_WRITE)  # fails before Linux 5.14
