"""Passes a command to a process that has everything imported already (`cli_server`).

Knows how a command is passed, and none of the commands. If anything is unusual, the command runs here, as if there were
no such process. Imports next to nothing: the point is to save the time of imports.

The wire, on a stream socket in the runtime folder: the length of the rest (4 bytes), then fields with a NUL between
them (see `pack`), with the descriptors of the current folder and of the three standard streams. The reply is one byte,
whether the command is taken; then its process id (4 bytes). The caller sends GO, and at the end gets the exit status
(1 byte).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs milliseconds
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping
    from types import FrameType

COMMANDS = frozenset(("build", "warm", "explain", "status", "log"))
"""Commands that only talk to the daemon."""
HERE = frozenset(("--no-daemon",))
SOCKET = "cli"
HOME = os.path.dirname(os.path.abspath(__file__))
TAKEN, GO = b"\1", b"\1"
STREAMS = ("stdin", "stdout", "stderr")
_ANSWER_S = 2.0
"""After so long without a reply the command runs here: the server may be stopped."""
_ANSWER_BYTES = 5
_OFF = ("", "0", "false", "no", "off")
_SWITCHES = (("BUILDD_CLI_SERVER", "1"), ("BUILDD_DISABLE", ""))
_LIMITS = ("AS", "CPU", "DATA", "FSIZE")
"""Resource limits that a command would notice. Not NOFILE: the daemon may open more files than other processes."""
_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
_passed_on: list[int] = []
"""Signals that this process got and passed to the process that runs the command."""


def identity() -> list[bytes]:
    """The facts that have to be equal on both sides."""
    import resource

    limits = str([resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS])
    return [os.fsencode(text) for text in (HOME, sys.executable, sys.version, sys.getfilesystemencoding(), limits)]


def pack(arguments: list[str], environment: Mapping[bytes, bytes], umask: int, ignored: list[int]) -> bytes:
    """Make the message for the server.

    Args:
        ignored: numbers of the ignored signals, as under nohup.
    """
    streams = (getattr(sys, name) for name in STREAMS)
    fields = [
        *identity(),
        b"%o" % umask,
        b",".join(b"%d" % number for number in ignored),
        *(f"{stream.encoding} {stream.errors}".encode() for stream in streams),
        b"%d" % len(arguments),
        *map(os.fsencode, arguments),
        *(name + b"=" + value for name, value in environment.items()),
    ]
    data = b"\0".join(fields)
    return len(data).to_bytes(4, "little") + data


def run(arguments: list[str]) -> int | None:
    """The exit status of a command that the server ran; None if it has to run here. Raises KeyboardInterrupt."""
    if arguments[0] not in COMMANDS or not HERE.isdisjoint(arguments):
        return None
    served, disabled = (os.environ.get(name, unset).lower() for name, unset in _SWITCHES)
    if served in _OFF or disabled not in _OFF:
        return None
    if sys.warnoptions or sys._xoptions or sys.flags.optimize or sys.flags.verbose or sys.flags.inspect:
        return None  # the user wants to observe this interpreter
    if any(getattr(sys, name) is None for name in STREAMS):
        return None
    try:
        connection = _hand_over(arguments)
    except Exception:  # the edge: the command itself reports the error better
        return None
    if connection is None:
        return None
    try:
        status = connection.recv(1)
    except OSError:
        status = b""
    if not status and _passed_on:
        import _signal  # type: ignore[import-not-found]  # the C part of `signal`, without its enums

        _signal.signal(_passed_on[-1], _signal.SIG_DFL)
        _kill(os.getpid(), _passed_on[-1])  # as if the command had run here
    if not status:
        print("buildd: the process that ran this command was killed\n  next: give the command again", file=sys.stderr)
        return 3
    return status[0]


def _hand_over(arguments: list[str]) -> socket | None:
    """The connection that will deliver the exit status; None if the server did not take the command."""
    import _signal
    import _socket

    from protocol.places import runtime_place

    stopping = [getattr(_signal, name) for name in _STOPPING]
    ignored = [number for number in stopping if _signal.getsignal(number) == _signal.SIG_IGN]
    umask = os.umask(0o077)
    os.umask(umask)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    pid = 0
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(f"{runtime_place(os.environ)}/{SOCKET}")
        data = pack(arguments, os.environb, umask, ignored)
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            passed = b"".join(number.to_bytes(4, sys.byteorder) for number in (folder, 0, 1, 2))
            sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
        finally:
            os.close(folder)
        connection.sendall(data[sent:])
        answer = b""
        while len(answer) < _ANSWER_BYTES and (piece := connection.recv(_ANSWER_BYTES - len(answer))):
            answer += piece
        if answer[:1] == TAKEN and len(answer) == _ANSWER_BYTES:
            connection.send(GO)
            pid = int.from_bytes(answer[1:], "little")
    finally:
        if not pid:
            connection.close()
    if not pid:
        return None
    connection.settimeout(None)
    _pass_signals_on(pid, [number for number in stopping if number not in ignored])
    return connection


def _pass_signals_on(pid: int, numbers: list[int]) -> None:
    """Pass signals to the process that runs the command: Ctrl-C reaches only processes of the terminal."""
    import _signal

    def pass_on(number: int, frame: FrameType | None) -> None:
        _passed_on.append(number)
        _kill(pid, number)

    def stop(number: int, frame: FrameType | None) -> None:
        _kill(pid, _signal.SIGSTOP)
        _signal.signal(number, _signal.SIG_DFL)
        _kill(os.getpid(), number)
        # After SIGCONT this process goes on here.
        _signal.signal(number, stop)
        _kill(pid, _signal.SIGCONT)

    for number in numbers:
        _signal.signal(number, pass_on)
    if _signal.getsignal(_signal.SIGTSTP) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGTSTP, stop)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
