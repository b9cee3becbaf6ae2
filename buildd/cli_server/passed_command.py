"""One command that a caller has passed: runs with the caller's folder, streams, variables, umask and ignored signals.

Runs in a process of its own (`spare`), which ends with it. Serves only a caller with the same code and interpreter.
Knows no command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from buildd import caller, cli_client
from buildd.cli_client import ENDED, GO, STREAMS, TAKEN
from buildd.exits import DAEMON, Interrupted

_READ_S = 2.0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket."""


def run(
    connection: socket.socket,
    main: Callable[[list[str]], int],
    is_allowed: Callable[[], bool],
    at_end: Callable[[], None],
) -> NoReturn:
    """Be the process of one command.

    Args:
        is_allowed: waits for the server; False if the caller has to run the command itself.
        at_end: is called once the caller has its answer.
    """
    from protocol import sockets

    status = b""
    sockets.put_off = []
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (
            signal.SIGHUP,
            signal.SIGTERM,
            signal.SIGQUIT,
        ):  # the daemon may have been started with some ignored
            signal.signal(number, signal.SIG_DFL)
        arguments = _take(connection, is_allowed)
        if arguments is not None:
            caller.there = _Caller(connection).carry_out
            status = ENDED + bytes([main(arguments) & 0xFF])
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
    except (OSError, ValueError):
        pass  # the reader is gone, as at the end of `cli.main`
    finally:
        try:
            _outlive(connection)
            connection.sendall(status)
            for end in sockets.put_off:
                end()
            at_end()
        finally:
            os._exit(0)


def _take(connection: socket.socket, is_allowed: Callable[[], bool]) -> list[str] | None:
    """Take over the caller's state and return its arguments; None if the caller has to run the command itself."""
    connection.settimeout(_READ_S)
    data, descriptors = _receive(connection)
    fields = data.split(b"\0")
    mine = cli_client.identity()
    if len(descriptors) != 4 or fields[: len(mine)] != mine or not is_allowed():
        connection.sendall(b"\0" * 5)
        return None
    connection.sendall(TAKEN + os.getpid().to_bytes(4, "little"))
    if connection.recv(1) != GO:
        return None
    connection.settimeout(None)
    _become(fields[len(mine) :], descriptors)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    caller.pid, *_ = _CREDENTIALS.unpack(peer)
    with contextlib.suppress(OSError):  # it has ended, or its processors are not ours to take
        os.sched_setaffinity(0, os.sched_getaffinity(caller.pid))
    tie(connection)
    count = int(fields[len(mine) + 2 + len(STREAMS)])
    first = len(mine) + 3 + len(STREAMS)
    return [os.fsdecode(field) for field in fields[first : first + count]]


def tie(connection: socket.socket) -> None:
    """Tie this process to its caller."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    signal.signal(signal.SIGIO, lambda number, frame: _end_with_caller(connection))
    _follow(connection)


def _follow(connection: socket.socket) -> None:
    """From here on a caller that is killed takes this process with it: SIGIO tells of its end."""
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)


def _end_with_caller(connection: socket.socket) -> None:
    """End as by SIGTERM, if the caller is gone.

    The kernel tells of a byte only after it can be read, so the signal may be that of a byte read long ago.
    """
    try:
        gone = not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    except OSError:
        gone = True
    if gone:
        os.kill(os.getpid(), signal.SIGTERM)


def _outlive(connection: socket.socket) -> None:
    """From here on the end of the caller does not end this process."""
    fcntl.fcntl(connection, fcntl.F_SETFL, 0)


class _Caller:
    """The process that the user called, for the command of `buildd run`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def carry_out(self, words: Sequence[str], environ: Mapping[str, str], program: str | None, line: str | None) -> int:
        """See `caller.there`. Raises Interrupted where the process is gone: its command goes on, without a summary."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _outlive(self._connection)
        try:
            self._connection.sendall(cli_client.call(words, environ, program, line))
            answer = cli_client.received(self._connection, 4)
        except OSError:
            answer = b""
        if not answer:
            raise Interrupted(DAEMON)
        _follow(self._connection)
        status = int.from_bytes(answer, "little", signed=True)
        if status < 0:
            raise caller.NotStarted(-status)
        return status


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Read one request and its descriptors. Raises OSError and ValueError."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 4)
    wanted = 4 + int.from_bytes(data[:4], "little")
    pieces = [data]
    length = len(data)
    while length < wanted:
        piece = connection.recv(1 << 20)
        if not piece:
            raise ValueError("the caller hung up")
        pieces.append(piece)
        length += len(piece)
    return b"".join(pieces)[4:], descriptors


def _become(fields: Sequence[bytes], descriptors: Sequence[int]) -> None:
    """Take over the caller's folder, streams, umask, ignored signals and variables."""
    umask, ignored, *encodings = fields[: 2 + len(STREAMS)]
    count = int(fields[2 + len(STREAMS)])
    arguments = fields[3 + len(STREAMS) :][:count]
    variables = fields[3 + len(STREAMS) + count :]
    folder, *streams = descriptors
    os.fchdir(folder)
    os.umask(int(umask, 8))
    for target, source in enumerate(streams):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environb.clear()
    os.environb.update(dict(variable.split(b"=", 1) for variable in variables))
    time.tzset()
    for number in ignored.split(b","):
        if number:
            signal.signal(int(number), signal.SIG_IGN)
    sys.argv = ["buildd", *map(os.fsdecode, arguments)]
    for target, (name, words) in enumerate(zip(STREAMS, encodings, strict=True)):
        encoding, errors = words.decode().split()
        buffering = 1 if target == 2 or os.isatty(target) else -1
        mode = "w" if target else "r"
        stream = open(target, mode, buffering, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
