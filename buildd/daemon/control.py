"""The control socket on a thread of its own, so that status, cancel and drain never queue behind work; and the
authentication of TCP clients (ZAP, RFC 27).

Knows no event loop: the callables of `ControlActions` do what has to happen there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from buildd.daemon.handler import quoted
from buildd.daemon.sockets import ZAP_DOMAIN, bind_router, key_of, send_to_peer
from protocol import wire
from protocol.curve import AllowList, KeyPair, Scope
from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    CancelRequest,
    DrainRequest,
    Error,
    FromControl,
    Hello,
    Message,
    Ping,
    Pong,
    RequestId,
    Status,
    StatusRequest,
    ToControl,
)

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_FRAMES = 7
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControlActions:
    """The functions that the control thread calls; each is safe from any thread and returns at once."""

    welcome: Callable[[Hello, frozenset[Scope]], Message]
    status: Callable[[bool], Status]
    """Its argument: whether to write counters down first."""
    cancel: Callable[[RequestId], bool]
    """False if the request is not open; the cancelling itself happens on the loop."""
    drain: Callable[[bool], None]
    audit: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """Two TCP addresses ("tcp://127.0.0.1:0"), the daemon's key pair, and the keys that are allowed in."""

    work: str
    control: str
    keys: KeyPair
    allowed: AllowList


class ControlThread:
    """Serves control messages from `start` to `stop`."""

    def __init__(
        self, context: zmq.Context[Any], address: str, actions: ControlActions, tcp: TcpOptions | None = None
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.tcp_address = ""
        self._actions = actions
        self._tcp = tcp
        self._routers = [bind_router(context, address, max_bytes=wire.MAX_CONTROL_BYTES)]
        self._gate: Any = None
        try:
            if tcp is not None:
                # ROUTER, not REP: after a malformed question the next one must still be answered.
                self._gate = context.socket(zmq.ROUTER)
                self._gate.linger = 0
                self._gate.bind(_ZAP_ADDRESS)
                self._routers.append(bind_router(context, tcp.control, max_bytes=wire.MAX_CONTROL_BYTES, keys=tcp.keys))
                self.tcp_address = self._routers[1].last_endpoint.decode("ascii")
        except zmq.ZMQError:
            self._close_sockets()
            raise
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="buildd-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its sockets, after the message that is being handled."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        for router in self._routers:
            poller.register(router, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake_read in ready:
                break
            if self._gate in ready:
                self._guard(self._admit)
            for router in self._routers:
                if router in ready:
                    self._guard(lambda router=router: self._serve(router))  # type: ignore[misc]
        self._close_sockets()

    def _guard(self, serve: Callable[[], None]) -> None:
        try:
            serve()
        except Exception:  # the loop's edge: the next message must be answered
            self.counters["control_errors"] += 1
            _log.exception("a control message could not be handled")

    def _close_sockets(self) -> None:
        for router in self._routers:
            # Answers on their way (a drain's) may still go out.
            router.close(linger=200)
        if self._gate is not None:
            self._gate.close()

    # ------------------------------------------------------------ messages

    def _serve(self, router: Any) -> None:
        identity, *rest = router.recv_multipart(copy=False)
        scopes, origin = frozenset(Scope), "local"
        if router is not self._routers[0]:
            assert self._tcp is not None
            client = self._tcp.allowed.find(key_of(identity))
            scopes = client.scopes if client else frozenset()
            origin = f"tcp:{client.name}" if client else "tcp:unknown"
        reply = self._answer([frame.bytes for frame in rest], scopes, origin)
        sent = send_to_peer(router, [identity.bytes, *wire.encode(reply)])
        self.counters[f"control_{sent.value}"] += 1

    def _answer(self, frames: Sequence[bytes], scopes: frozenset[Scope], origin: str) -> FromControl | Message:
        try:
            message: ToControl = wire.decode_to_control(frames)
        except WireError as error:
            self.counters["malformed_frames"] += 1
            return Error(code=error.code, message=error.message)
        if isinstance(message, Hello):
            return self._actions.welcome(message, scopes)
        if isinstance(message, Ping):
            return Pong()
        if Scope.CONTROL not in scopes:
            self._actions.audit(f"forbidden {type(message).__name__} from={origin}")
            return Error(code="forbidden", message="this key may not use the control socket")
        match message:
            case StatusRequest(settle=settle):
                return self._actions.status(settle)
            case CancelRequest(request_id=request_id):
                self._actions.audit(f"cancel request={quoted(request_id)} from={origin}")
                if self._actions.cancel(request_id):
                    return Accepted(text=f"cancelling {request_id}")
                return Error(
                    code="unknown-request", message=f"request {request_id!r} is not running", request_id=request_id
                )
            case DrainRequest(now=now):
                self._actions.audit(f"drain now={now} from={origin}")
                self._actions.drain(now)
                return Accepted(text="draining")

    # ------------------------------------------------------------ ZAP

    def _admit(self) -> None:
        """Answer libzmq's question whether a TCP peer may connect. The key becomes the peer's User-Id."""
        identity, delimiter, *frames = self._gate.recv_multipart()
        version, sequence, domain, address, _, mechanism = (frames + [b""] * 6)[:6]
        assert self._tcp is not None
        key = z85.encode(frames[6]).decode("ascii") if len(frames) == _ZAP_FRAMES else ""
        known = domain == ZAP_DOMAIN and mechanism == b"CURVE" and self._tcp.allowed.find(key) is not None
        if not known:
            self.counters["tcp_refused"] += 1
            self._actions.audit(f"refused key={key} from={address.decode('ascii', 'replace')}")
        verdict = (b"200", b"OK", key.encode("ascii")) if known else (b"400", b"key not allowed", b"")
        self._gate.send_multipart([identity, delimiter, version, sequence, *verdict, b""])
