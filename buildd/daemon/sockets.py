"""The daemon's zmq sockets: options that keep one bad peer from hurting others, and a socket on the event loop.

Knows no message. The socket on the loop is a plain one behind `add_reader`, not zmq.asyncio: a round trip takes half
the time, and a send that would block fails at once instead of parking a task for each slow client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import zmq

from protocol.curve import KeyPair

ZAP_DOMAIN = b"buildd"
BACKLOG = 4096
"""Lets a thousand clients connect at once; with zmq's default of 100 the rest wait for their reconnect timers."""
SEND_QUEUE_MESSAGES = 256
RECEIVE_QUEUE_MESSAGES = 1000

_BATCH = 64
_log = logging.getLogger(__name__)

Receive = Callable[[Sequence[zmq.Frame]], None]


class Sent(Enum):
    """The result of sending a message to one peer."""

    SENT = "sent"
    FULL = "full"
    """The peer's queue is full: it reads slowly or not at all."""
    GONE = "gone"


def bind_router(context: zmq.Context[Any], address: str, *, max_bytes: int, keys: KeyPair | None = None) -> Any:
    """Bind a ROUTER that refuses oversized messages, and whose sends report full queues and peers that left."""
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.maxmsgsize = max_bytes
    router.sndhwm = SEND_QUEUE_MESSAGES
    router.rcvhwm = RECEIVE_QUEUE_MESSAGES
    router.backlog = BACKLOG
    # Otherwise a ROUTER silently drops messages that it cannot send.
    router.router_mandatory = True
    if keys is not None:
        router.curve_server = True
        router.curve_secretkey = keys.secret.encode("ascii")
        router.zap_domain = ZAP_DOMAIN
    try:
        router.bind(address)
    except zmq.ZMQError:
        router.close()
        raise
    return router


def send_to_peer(socket: Any, frames: Sequence[bytes]) -> Sent:
    """Send without waiting; the first frame names the peer."""
    try:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            # libzmq learns what the peer has read at most once a millisecond, unless it is asked for events.
            socket.getsockopt(zmq.EVENTS)
            socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return Sent.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return Sent.GONE
        raise
    return Sent.SENT


def key_of(frame: zmq.Frame) -> str:
    """The Z85 public key of the peer that sent a frame over CURVE; "" for local peers."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


class LoopSocket:
    """A ROUTER or XPUB on the running event loop."""

    def __init__(self, socket: Any, receive: Receive) -> None:
        self._socket = socket
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._checking = False
        self._descriptor: int = socket.getsockopt(zmq.FD)
        self._loop.add_reader(self._descriptor, self._drain)
        self._check_soon()

    def send(self, frames: Sequence[bytes]) -> Sent:
        if self._socket.closed:
            return Sent.GONE
        sent = send_to_peer(self._socket, frames)
        # The descriptor is edge-triggered, and a send may consume an edge: a message could then wait unnoticed.
        self._check_soon()
        return sent

    def _check_soon(self) -> None:
        if not self._checking and not self._socket.closed:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        if not self._socket.closed and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._drain()

    def _drain(self) -> None:
        for _ in range(_BATCH):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._receive(frames)
            except Exception:  # the loop's edge: one message must not end the daemon
                _log.exception("a message of %d frames could not be handled", len(frames))
        self._check_soon()

    def close(self, linger_ms: int = 0) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=linger_ms)
