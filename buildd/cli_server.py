"""A process beside the daemon that has the command line imported, and runs the commands that `cli_client` passes.

It is a fork of the daemon, made before the daemon has a thread. It waits on a socket in the runtime folder and forks
once more for each command; each command runs with its caller's folder, streams, variables and umask, and leaves nothing
behind for the next. After a command, a fork for the next one waits for a while, with memory of its own. Knows no
command, and serves only callers with the same code and interpreter. The process ends with the daemon; the commands that
it has begun go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import logging
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from buildd import caller, cli_client
from buildd.cli_client import ENDED, GO, SOCKET, STREAMS, TAKEN
from buildd.exits import DAEMON, Interrupted
from buildd.identity import as_marked, code_marks, package_digest, package_stamp

_IMPORTED = (
    *("argparse", "difflib", "buildd.commands.build", "buildd.commands.daemon_control", "buildd.commands.explain"),
    *(
        "buildd.commands.log",
        "buildd.commands.run",
        "buildd.commands.status",
        "buildd.profiling.first_measurement",
        "buildd.client.budget_share",
        "buildd.client.perform",
        "buildd.client.run_logs",
        "buildd.client.run_settings",
        "buildd.commands.warm",
    ),
    *(
        "buildd.shims.environment",
        "buildd.shims.framework_environment",
        "buildd.shims.interposition",
        "buildd.shims.jobserver",
        "buildd.shims.run_log",
        "buildd.shims.shim_folders",
        "buildd.store.aitemplate_profiles",
        "buildd.store.profile_cache",
        "buildd.store.shared_kernels",
        "buildd.store.location",
        "buildd.ui.live",
        "locale",
        "protocol.autostart",
        "protocol.client",
        "protocol.curve",
        "protocol.resubmission",
    ),
)
"""Modules that commands import when they need them."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MADV_POPULATE_WRITE = 23
_READ_S = 2.0
_AHEAD_S = 0.05
"""The fork for the next command is made so long after a command: earlier it would take processor time from a command
that follows at once."""
_SPARE_S = 60.0
"""The fork for the next command waits at most so long after the last one: it holds 14 MB."""
_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket."""
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
    code = _Code(main)
    _warm_up()
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


class _Code:
    """The code that this process has imported."""

    def __init__(self, main: Callable[[list[str]], int]) -> None:
        self.main = main
        self._marks = code_marks()
        self._digest = package_digest()  # both are from the daemon's start, before anything was imported
        stamp = package_stamp()
        self._stamp = stamp if package_stamp.__wrapped__() == stamp else ""

    def stands(self) -> bool:
        """Whether a command would import the same code now."""
        self.settle()
        if as_marked(self._marks):
            return bool(self._stamp)
        # Python may only have made a folder for bytecode.
        return package_stamp.__wrapped__() == self._stamp != ""

    def settle(self) -> None:
        """Take the stamps again if the files were too young at the start for their stamps to mean anything: otherwise a
        daemon that starts right after an upgrade would never take a command."""
        if not self._stamp:
            marks, stamp = code_marks(), package_stamp.__wrapped__()
            if stamp and package_digest.__wrapped__() == self._digest:
                self._marks, self._stamp = marks, stamp


def _take_commands(listening: socket.socket, lifeline: int, code: _Code) -> None:
    running: dict[int, int] = {}
    spare: _Spare | None = None
    wanted = False
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    waiting.register(lifeline, select.POLLIN)
    while True:
        patience_ms = _SPARE_S * 1000 if spare else _AHEAD_S * 1000 if wanted else None
        ready = {descriptor for descriptor, _ in waiting.poll(patience_ms)}
        if lifeline in ready:
            if spare:
                spare.dismiss()
            return
        if not ready and spare:
            spare.dismiss()
            spare = None
        elif not ready:
            wanted = False
            with contextlib.suppress(OSError):  # no resources now: the fork is made when the next command comes
                spare = _spare(code, [listening.fileno(), lifeline, *running], ahead=True)
        for descriptor in ready.intersection(running):
            waiting.unregister(descriptor)
            os.close(descriptor)
            os.waitpid(running.pop(descriptor), 0)
            wanted = spare is None
        if listening.fileno() in ready:
            connection, _ = listening.accept()
            with connection:
                if not (spare and spare.use(connection)):
                    if spare:
                        spare.dismiss()
                    spare = _spare(code, [listening.fileno(), lifeline, connection.fileno(), *running], ahead=False)
                    spare.use(connection)
            descriptor = os.pidfd_open(spare.pid)
            running[descriptor] = spare.pid
            waiting.register(descriptor, select.POLLIN)
            spare, wanted = None, False
            with contextlib.suppress(OSError):  # files that are being replaced
                code.settle()


@dataclass(frozen=True, slots=True)
class _Spare:
    """A fork that waits for its command."""

    pid: int
    _channel: socket.socket

    def use(self, connection: socket.socket) -> bool:
        """Pass a connection to the fork; False if the fork has ended."""
        with self._channel, contextlib.suppress(OSError):
            socket.send_fds(self._channel, [GO], [connection.fileno()])
            return True
        return False

    def dismiss(self) -> None:
        self._channel.close()
        os.waitpid(self.pid, 0)


def _spare(code: _Code, foreign: Sequence[int], *, ahead: bool) -> _Spare:
    """Fork a process that runs one command.

    Args:
        foreign: descriptors to close in it.
        ahead: the fork is made before its command arrives, so it has time.
    """
    channel, its = socket.socketpair()
    pid = os.fork()
    if pid:
        its.close()
        return _Spare(pid, channel)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for descriptor in (*foreign, channel.detach()):
        os.close(descriptor)
    if ahead:
        _own_memory(libc)
    _, passed, _, _ = socket.recv_fds(its, 1, 1)
    if not passed:
        os._exit(0)
    libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    its.close()
    _run(socket.socket(fileno=passed[0]), code)


def _own_memory(libc: ctypes.CDLL) -> None:
    """Copy all memory that is shared with the parent now: copied page by page, at first writes, it takes 10 ms."""
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps.readlines():
            place, rights, *_ = line.split()
            if rights == "rw-p":
                first, end = (int(address, 16) for address in place.split("-"))
                libc.madvise(first, end - first, _MADV_POPULATE_WRITE)  # fails before Linux 5.14, and that is all right


def _warm_up() -> None:
    """Import the commands' modules, and keep the garbage collector from touching, and so copying, shared memory."""
    for name in _IMPORTED:
        importlib.import_module(name)
    _use_once()
    gc.collect()
    gc.freeze()


def _use_once() -> None:
    """Make everything that is made at first use: the table of variables, decoders, patterns, facts of this machine.

    Each takes about 1 ms, and a look at make's version 5."""
    from buildd.client import request
    from buildd.native import programs
    from buildd.shims import jobserver
    from buildd.ui import problems
    from codegen.compilers import processor
    from codegen.variables import environment
    from protocol import endpoint, places, wire
    from protocol.described import described
    from protocol.messages import Accepted, Pong

    environment.find("")
    described(endpoint.Endpoint)
    wire.decode_from_daemon(wire.encode(Pong()))
    wire.decode_from_control(wire.encode(Accepted()))
    places.place_name()
    jobserver.find_builders(os.environ)
    processor.features()
    programs.machine()
    parser = problems.parser("", "")
    request.add_request_arguments(parser)
    parser.parse_args([])


def _run(connection: socket.socket, code: _Code) -> NoReturn:
    """Be the process of one command."""
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
        arguments = _take(connection, code)
        if arguments is not None:
            caller.there = _Caller(connection).carry_out
            status = ENDED + bytes([code.main(arguments) & 0xFF])
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
        finally:
            os._exit(0)


def _take(connection: socket.socket, code: _Code) -> list[str] | None:
    """Take over the caller's state and return its arguments; None if the caller has to run the command itself."""
    connection.settimeout(_READ_S)
    data, descriptors = _receive(connection)
    fields = data.split(b"\0")
    mine = cli_client.identity()
    if len(descriptors) != 4 or fields[: len(mine)] != mine or not code.stands():
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
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    _follow(connection)
    count = int(fields[len(mine) + 2 + len(STREAMS)])
    first = len(mine) + 3 + len(STREAMS)
    return [os.fsdecode(field) for field in fields[first : first + count]]


def _follow(connection: socket.socket) -> None:
    """From here on a caller that is killed takes this process with it."""
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)


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
