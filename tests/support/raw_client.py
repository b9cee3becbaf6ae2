"""A client of bare frames, for messages that no client library sends."""

from __future__ import annotations

import zmq

from protocol import wire
from protocol.messages import FromDaemon, Hello, Message, Welcome
from tests.support.serving import Serving

TIMEOUT_MS = 20_000


class Raw:
    """A client of bare frames."""

    def __init__(self, served: Serving, *, receive_queue: int = 0) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if receive_queue:
            self.socket.rcvhwm = receive_queue
        self.socket.connect(served.server.addresses.work)

    def say(self, message: Message) -> None:
        self.socket.send_multipart(wire.encode(message))

    def hear(self) -> FromDaemon:
        assert self.socket.poll(TIMEOUT_MS), "no answer"
        return wire.decode_from_daemon(self.socket.recv_multipart())

    def shake(self, **fields: int) -> Welcome:
        self.say(Hello(version=1, client="raw", **fields))  # type: ignore[arg-type]
        reply = self.hear()
        assert isinstance(reply, Welcome)
        return reply

    def close(self) -> None:
        self.context.destroy(linger=0)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
