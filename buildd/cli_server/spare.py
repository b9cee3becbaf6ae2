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
from buildd.cli_server import passed_command, written_pages

_PR_SET_PDEATHSIG = 1
_REFUSED = b"\0"
_PAGES_BYTES = 1 << 16
"""Of pages that a fork tells: some 300 runs of 16 bytes each."""


@dataclass(frozen=True, slots=True)
class Spare:
    """A fork that waits for its command."""

    pid: int
    _channel: socket.socket

    @property
    def descriptor(self) -> int:
        """What its process and those that are forked later must not hold."""
        return self._channel.fileno()

    def use(self, connection: socket.socket) -> bool:
        """Pass a connection to the fork, which then waits for `allow`; False if the fork has ended."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [GO], [connection.fileno()])
            return True
        return False

    def allow(self, *, allowed: bool) -> None:
        """Have the fork run the command, or refuse it."""
        with contextlib.suppress(OSError):  # the fork has ended
            self._channel.send(GO if allowed else _REFUSED)

    def end(self) -> bytes:
        """Wait for the fork, and return the pages that its command has written, if it told them (`written_pages`)."""
        pages = b""
        with self._channel, contextlib.suppress(OSError):
            pages = self._channel.recv(_PAGES_BYTES, socket.MSG_DONTWAIT)
        os.waitpid(self.pid, 0)
        return pages

    def dismiss(self) -> None:
        self._channel.close()
        os.waitpid(self.pid, 0)


def forked(main: Callable[[list[str]], int], foreign: Sequence[int], *, ahead: bytes, tells: bool) -> Spare:
    """Fork a process that runs one command.

    Args:
        main: runs one command and returns its exit status.
        foreign: descriptors to close in it.
        ahead: the pages that it copies until its command arrives (`written_pages`).
        tells: it tells at its end which pages its command has written.
    """
    channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        its.close()
        return Spare(pid, channel)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for descriptor in (*foreign, channel.detach()):
        os.close(descriptor)
    if ahead:
        arrival = select.poll()
        arrival.register(its, select.POLLIN)
        written_pages.copy(ahead, lambda: bool(arrival.poll(0)))
    _, passed, _, _ = socket.recv_fds(its, 1, 1)
    if not passed:
        os._exit(0)
    libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)

    def is_allowed() -> bool:
        return its.recv(1) == GO

    def tell() -> None:
        with contextlib.suppress(OSError):  # more than a message may hold
            its.send(written_pages.written()[:_PAGES_BYTES])

    passed_command.run(socket.socket(fileno=passed[0]), main, is_allowed, at_end=tell if tells else its.close)
