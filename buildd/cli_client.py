"""Passes a command to a process that has everything imported already (`cli_server`).

Knows how a command is passed, and none of the commands. If anything is unusual, the command runs here, as if there were
no such process. Imports next to nothing: the point is to save the time of imports.

The wire, on a stream socket in the runtime folder: the length of the rest (4 bytes), then fields with a NUL between
them (see `pack`), with the descriptors of the current folder and of the three standard streams. The reply is one byte,
whether the command is taken; then its process id (4 bytes). The caller sends GO, and at the end gets ENDED and the exit
status (1 byte). Before that `buildd run` may ask it to carry out its command here: CARRY_OUT, the length of the rest
(4 bytes), and fields (see `call`); the answer is the command's status, or an errno below zero (4 bytes).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs milliseconds
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import Any

COMMANDS = frozenset(("build", "warm", "explain", "status", "log", "run"))
"""Commands that only talk to the daemon, and the one whose command this process carries out."""
HERE = frozenset(("--no-daemon",))
SOCKET = "cli"
HOME = os.path.dirname(os.path.abspath(__file__))
TAKEN, GO = b"\1", b"\1"
ENDED, CARRY_OUT = b"\1", b"\2"
STREAMS = ("stdin", "stdout", "stderr")
_ANSWER_S = 2.0
"""After so long without a reply the command runs here: the server may be stopped."""
_ANSWER_BYTES = 5
_OFF = ("", "0", "false", "no", "off")
_SWITCHES = (("BUILDD_CLI_SERVER", "1"), ("BUILDD_DISABLE", ""))
_LIMITS = ("AS", "CPU", "DATA", "FSIZE")
"""Resource limits that a command would notice. Not NOFILE: the daemon may open more files than other processes."""
_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
_NAMESPACES = ("mnt", "net", "pid", "user")
_passed_on: list[int] = []
"""Signals that this process got and passed to the process that runs the command."""
_before: list[tuple[int, Any]] = []
"""Signals that are passed on, with what they did before."""


def identity() -> list[bytes]:
    """The facts that have to be equal on both sides: what files are there and who may read them is among them."""
    import resource

    limits = str([resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS])
    places = [os.stat(path) for path in ("/", *(f"/proc/self/ns/{name}" for name in _NAMESPACES))]
    world = str([(place.st_dev, place.st_ino) for place in places])
    user = str((os.geteuid(), os.getegid(), sorted(os.getgroups())))
    return [
        os.fsencode(text)
        for text in (HOME, sys.executable, sys.version, sys.getfilesystemencoding(), limits, world, user)
    ]


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
    if arguments[0] == "warm" and "--json" in arguments and "--" in arguments:
        return None  # the command gets another standard output than buildd
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
    ran: int | None = None
    """The status of a command that this process has carried out."""
    while (kind := received(connection, 1)) == CARRY_OUT:
        ran = _carry_out(connection)
    status = received(connection, 1) if kind == ENDED else b""
    if not status and ran is not None:
        print("buildd: the process that sums this run up was killed; its summary is missing", file=sys.stderr)
        return ran
    if not status and _passed_on:
        import _signal  # type: ignore[import-not-found]  # the C part of `signal`, without its enums

        _signal.signal(_passed_on[-1], _signal.SIG_DFL)
        _kill(os.getpid(), _passed_on[-1])  # as if the command had run here
    if not status and arguments[0] == "run":
        _pass_no_signals_on()
        return None  # nothing of the user's has begun
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


def received(connection: socket, count: int) -> bytes:
    """So many bytes; none if the other side is gone."""
    data = b""
    try:
        while len(data) < count and (piece := connection.recv(count - len(data))):
            data += piece
    except OSError:
        return b""
    return data if len(data) == count else b""


def call(words: Sequence[str], environment: Mapping[str, str], program: str | None, line: str | None) -> bytes:
    """Make the message that has the caller carry out a command.

    Args:
        program: the file to run, if it is not the one that the first word names.
        line: style of the status line below it; None for no line.
    """
    fields = [
        *(b"" if field is None else b"=" + os.fsencode(field) for field in (program, line)),
        b"%d" % len(words),
        *map(os.fsencode, words),
        *(os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environment.items()),
    ]
    data = b"\0".join(fields)
    return CARRY_OUT + len(data).to_bytes(4, "little") + data


def _carry_out(connection: socket) -> int | None:
    """Carry out one command and tell its status, which a shell would show if nothing else came.

    None if the message is not whole: then nothing has begun.
    """
    from buildd import caller

    data = received(connection, int.from_bytes(received(connection, 4), "little"))
    if not data:
        return None
    program, line, count, *rest = data.split(b"\0")
    words, variables = rest[: int(count)], dict(entry.split(b"=", 1) for entry in rest[int(count) :])
    handlers = _pass_no_signals_on()
    try:
        if line:
            from buildd.client import run_relay

            named = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
            with run_relay.shown(named, os.fsdecode(line[1:])) as relay:
                told = caller.carry_out(words, variables, program[1:] or None, relay, _passed_on)
        else:
            told = caller.carry_out(words, variables, program[1:] or None, None, _passed_on)
    except caller.NotStarted as error:
        told = -error.number
    _passed_on.clear()
    for number, handler in handlers:
        _take_over(number, handler)
    try:
        connection.sendall(told.to_bytes(4, "little", signed=True))
    except OSError:
        pass  # the end is told by what is received next
    return told if told >= 0 else 127


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
        _take_over(number, pass_on)
    if _signal.getsignal(_signal.SIGTSTP) != _signal.SIG_IGN:
        _take_over(_signal.SIGTSTP, stop)


def _take_over(number: int, handler: Any) -> None:
    import _signal

    _before.append((number, _signal.signal(number, handler)))


def _pass_no_signals_on() -> list[tuple[int, Any]]:
    """Have signals do what they did before; returns the handlers that passed them on."""
    import _signal

    handlers = [(number, _signal.signal(number, former)) for number, former in _before]
    _before.clear()
    return handlers


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
