"""The synchronous client: finds or starts a daemon, submits, follows, cancels, fetches.

Knows nothing of builds, nor of how a daemon is started; imports no asyncio, because short commands pay for every
import. One client belongs to one thread.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import zmq

from protocol import wire
from protocol.endpoint import Endpoint, Folder, is_alive, own_code, read_endpoint, runtime_folder
from protocol.errors import ConnectionLost, NoDaemon, ProtocolError, RemoteError, TimedOut, VersionMismatch
from protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    CancelRequest,
    Digest,
    DrainRequest,
    Error,
    Event,
    Fetch,
    Follow,
    FromControl,
    Message,
    Ping,
    Pong,
    Refused,
    Request,
    RequestId,
    Status,
    StatusRequest,
    Submit,
    Unfollow,
    Welcome,
)
from protocol.session import Download, Inbox, Route, Stream, check_welcome, hello, is_last
from protocol.sockets import OpenSockets, Socket, open_socket

if TYPE_CHECKING:
    from protocol.curve import KeyPair

PING_EVERY_S = 10.0
SILENCE_S = 30.0
"""A daemon on another host counts as gone after this long without a message."""

POLL_S = 0.01
"""How often a process looks whether a daemon has started or ended."""


class Client:
    """A connection to one daemon. Use `connect`; close it, or use it as a context manager."""

    def __init__(
        self,
        route: Route,
        *,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 10.0,
        name: str = "python/0.1",
    ) -> None:
        self.route = route
        self._environ = environ
        self._timeout_s = timeout_s
        self._name = name
        self._sockets = OpenSockets(route)
        self._let_go = weakref.finalize(self, self._sockets.close)
        self._let_go.atexit = False
        self._inbox = Inbox()
        self._welcome: Welcome | None = None
        self._heard = self._pinged = time.monotonic()

    @classmethod
    def connect(
        cls,
        *,
        start: Callable[[], object] | None = None,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 10.0,
        name: str = "python/0.1",
        package_digest: str = "",
        folder: Folder | None = None,
    ) -> Client:
        """A client of this user's daemon here.

        Args:
            start: called if no daemon runs, or one of another version; returns when one is starting (see
                `autostart.find_or_start`). None: use only a running daemon.
            timeout_s: for the start and for each answer, in seconds.
            name: name and version of the program, for the daemon's audit line.
            package_digest: digest of the daemon's code as this client has it; "" if any will do.

        Raises:
            EndpointError, NoDaemon, VersionMismatch, and what `start` raises.
        """
        folder = folder or runtime_folder(environ)
        endpoint = find(folder)
        if start is not None and (endpoint is None or differs(endpoint, package_digest)):
            start()
            endpoint = _await_endpoint(folder, timeout_s)
        if endpoint is None:
            raise NoDaemon(f"no daemon is running in {folder.place}", next_step="buildd up")
        if differs(endpoint, package_digest):
            raise mismatch(endpoint)
        return cls(Route.local(endpoint), environ=environ, timeout_s=timeout_s, name=name)

    @classmethod
    def connect_tcp(
        cls,
        work: str,
        control: str,
        *,
        server_key: str,
        keys: KeyPair,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 10.0,
        name: str = "python/0.1",
    ) -> Client:
        """A client of a daemon on another host. `work` and `control` are "tcp://host:port"; keys are Z85 text."""
        route = Route(work=work, control=control, server_key=server_key, keys=keys)
        return cls(route, environ=environ, timeout_s=timeout_s, name=name)

    # ------------------------------------------------------------ work

    @property
    def instance(self) -> str:
        """Id of the daemon process behind this client. Shakes hands if that has not happened yet."""
        self._open()
        return self._inbox.instance

    def submit(self, request: Request) -> Iterator[Event]:
        """Start a build, or follow it if the daemon already knows its id; events end with `Done`.

        Raises (also while iterating): WireError, ConnectionLost, RemoteError, VersionMismatch, TimedOut.
        """
        work = self._open()
        stream = self._inbox.open_stream(request.request_id, 0)
        return self._start(work, stream, Submit(request=request))

    def follow(self, request_id: RequestId, after_sequence: int = 0) -> Iterator[Event]:
        """Events of a request after a sequence number, to its `Done`. Raises as `submit`."""
        work = self._open()
        stream = self._inbox.open_stream(request_id, after_sequence)
        return self._start(work, stream, Follow(request_id=request_id, after_sequence=after_sequence))

    def fetch(self, digest: Digest, store: str = "") -> bytes:
        """A blob's bytes. Raises RemoteError "not-found", ConnectionLost, ProtocolError "bad-blob"."""
        work = self._open()
        download = self._inbox.downloads[digest] = Download(digest)
        try:
            self._send(work, Fetch(digest=digest, store=store))
            while not download.complete:
                if download.error is not None:
                    raise RemoteError(download.error)
                self._receive(work, RequestId(""))
        finally:
            del self._inbox.downloads[digest]
        return bytes(download.data)

    def _start(self, work: Socket, stream: Stream, first: Message) -> Iterator[Event]:
        try:
            self._send(work, first)
        except ProtocolError:
            self._inbox.close_stream(stream)
            raise
        return self._events(work, stream)

    def _events(self, work: Socket, stream: Stream) -> Iterator[Event]:
        finished = False
        try:
            while True:
                event = stream.take()
                if event is None:
                    self._receive(work, stream.request_id)
                    continue
                finished = is_last(event)
                yield event
                if finished:
                    return
        except (ConnectionLost, RemoteError):
            finished = True
            raise
        finally:
            self._inbox.close_stream(stream)
            if not finished and self._sockets.work is work:
                self._send(work, Unfollow(request_id=stream.request_id))

    def _open(self) -> Socket:
        if self._sockets.work is not None:
            return self._sockets.work
        work: Socket = open_socket(self._sockets.context, zmq.DEALER, self.route, self.route.work)
        try:
            self._send(work, hello(self._name, self._environ, local=self.route.endpoint is not None))
            deadline = time.monotonic() + self._timeout_s
            while not self._wait(work, max(0.0, deadline - time.monotonic())):
                self._check_alive(RequestId(""))
                if time.monotonic() >= deadline:
                    raise TimedOut("the daemon did not answer the handshake", next_step="buildd doctor")
            self._welcome = check_welcome(wire.decode_from_daemon(work.recv_multipart()))
        except ProtocolError:
            work.close()
            raise
        self._inbox.instance = self._welcome.instance
        self._heard = time.monotonic()
        self._sockets.work = work
        return work

    def _receive(self, work: Socket, request_id: RequestId) -> None:
        """Wait for one message and file it in the inbox."""
        try:
            frames = work.recv_multipart(zmq.NOBLOCK)  # if many came at once, polling first would cost most
        except zmq.Again:
            while not self._wait(work, PING_EVERY_S):
                self._check_alive(request_id)
            frames = work.recv_multipart()
        self._heard = time.monotonic()
        self._inbox.put(wire.decode_from_daemon(frames))

    def _wait(self, socket: Socket, timeout_s: float) -> bool:
        """Whether a message waits, after `timeout_s` at most and at once when the daemon dies."""
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        if self._sockets.death is not None:
            poller.register(self._sockets.death, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout_s * 1000)))
        return socket in ready or bool(socket.poll(0))

    def _check_alive(self, request_id: RequestId) -> None:
        now = time.monotonic()
        endpoint = self.route.endpoint
        if endpoint is not None:
            if not is_alive(endpoint):
                raise self._inbox.lost(request_id, f"the daemon (pid {endpoint.pid}) ended")
            return
        if now - self._heard > SILENCE_S:
            raise self._inbox.lost(request_id, f"the daemon at {self.route.work} has been silent for {SILENCE_S:.0f} s")
        if self._sockets.work is not None and now - self._pinged >= PING_EVERY_S:
            self._pinged = now
            self._send(self._sockets.work, Ping())

    def _send(self, socket: Socket, message: Message) -> None:
        try:
            socket.send_multipart(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise TimedOut("the daemon accepts no more messages from this client") from error

    # ------------------------------------------------------------ control

    def status(self, *, settle: bool = False) -> Status:
        """The daemon's state; answered also while it is busy. Raises ConnectionLost, TimedOut.

        Args:
            settle: the daemon writes its counters to the store first.
        """
        reply = self._ask(StatusRequest(settle=settle))
        if not isinstance(reply, Status):
            raise ProtocolError(f"the daemon answered a status request with {type(reply).__name__}")
        return reply

    def cancel(self, request_id: RequestId) -> str:
        """End a request; its followers see `Done`. Raises RemoteError "unknown-request"."""
        return self._command(CancelRequest(request_id=request_id))

    def drain(self, now: bool = False) -> str:
        """Ask the daemon to finish its running jobs (`now`: to cancel them) and exit. Returns when it has confirmed."""
        return self._command(DrainRequest(now=now))

    def ping(self) -> None:
        """One round trip on the control socket."""
        if not isinstance(self._ask(Ping()), Pong):
            raise ProtocolError("the daemon answered a ping with something else")

    def _command(self, message: Message) -> str:
        reply = self._ask(message)
        if not isinstance(reply, Accepted):
            raise ProtocolError(f"the daemon answered with {type(reply).__name__}")
        return reply.text

    def _ask(self, message: Message) -> FromControl:
        if self._sockets.control is None:
            self._sockets.control = open_socket(self._sockets.context, zmq.DEALER, self.route, self.route.control)
        control = self._sockets.control
        deadline = time.monotonic() + self._timeout_s
        try:
            self._send(control, message)
            while not self._wait(control, max(0.0, deadline - time.monotonic())):
                if self.route.endpoint is not None and not is_alive(self.route.endpoint):
                    raise ConnectionLost(f"the daemon (pid {self.route.endpoint.pid}) ended")
                if time.monotonic() >= deadline:
                    raise TimedOut(
                        f"the daemon did not answer within {self._timeout_s:.0f} s", next_step="buildd doctor"
                    )
            reply = wire.decode_from_control(control.recv_multipart())
        except ProtocolError:
            # A late answer must not be mistaken for the answer to the next question.
            control.close()
            self._sockets.control = None
            raise
        if isinstance(reply, Error):
            raise RemoteError(reply)
        if isinstance(reply, Refused):
            check_welcome(reply)
        return reply

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Say goodbye and close the sockets. Safe to call twice."""
        self._let_go()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def find(folder: Folder) -> Endpoint | None:
    """The endpoint of the daemon that runs in `folder`; None if there is none."""
    endpoint = read_endpoint(folder)
    return endpoint if endpoint is not None and is_alive(endpoint) else None


def differs(endpoint: Endpoint, package_digest: str) -> bool:
    """Whether the daemon is of another version than this client."""
    return endpoint.protocol != PROTOCOL_VERSION or bool(
        package_digest and endpoint.package_digest and endpoint.package_digest != package_digest
    )


def difference(endpoint: Endpoint) -> str:
    """In words, that a daemon is of another version than this client; two may have the same number."""
    said = f"the daemon (pid {endpoint.pid}, {endpoint.daemon or 'unnamed'}) is of another version"
    if not endpoint.code:
        return said
    own = own_code()
    if endpoint.code == own:
        return f"{said}: the code in {own} has changed since it started"
    return f"{said}: its code is in {endpoint.code}, that of this command in {own}"


def mismatch(endpoint: Endpoint) -> VersionMismatch:
    return VersionMismatch(
        f"{difference(endpoint)}; it is busy",
        next_step="buildd down, or wait until it is idle",
    )


def _await_endpoint(folder: Folder, timeout_s: float) -> Endpoint | None:
    deadline = time.monotonic() + timeout_s
    while (endpoint := find(folder)) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return endpoint
