"""The sockets of a client: opened with the options that SPEC.md recommends, and closed in the right order.

Knows no conversation: `client` and `aio` talk. Imports no asyncio, because short commands pay for every import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from protocol import wire
from protocol.endpoint import is_alive, open_pidfd
from protocol.messages import Bye
from protocol.session import Route

_CLOSE_LINGER_MS = 200
Socket = zmq.Socket[bytes]

put_off: list[Callable[[], None]] | None = None
"""A list, in a process that reports its result before it ends: a client that closes adds its slow work, and the process
calls it after the report."""


def open_socket(context: zmq.Context[Any], kind: int, route: Route, address: str) -> Any:
    """A connected DEALER or SUB socket with the options that SPEC.md recommends."""
    made = context.socket(kind)
    made.linger = 0
    made.maxmsgsize = wire.MAX_MESSAGE_BYTES + (1 << 10)
    if kind == zmq.DEALER:
        # With a bound, libzmq stops reading while this process is slow, and drops the rest if the daemon ends then.
        made.rcvhwm = 0
    if route.keys is not None:
        made.curve_serverkey = route.server_key.encode("ascii")
        made.curve_publickey = route.keys.public.encode("ascii")
        made.curve_secretkey = route.keys.secret.encode("ascii")
    made.connect(address)
    return made


class OpenSockets:
    """The open sockets of a client, apart from it: so the garbage collector closes them in the right order, and not in
    the arbitrary order of a cycle."""

    def __init__(self, route: Route) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.work: Socket | None = None
        self.control: Socket | None = None
        self._endpoint = endpoint = route.endpoint
        self.death = open_pidfd(endpoint.pid, endpoint.start_ticks) if endpoint else None

    def close(self) -> None:
        """Say goodbye and close everything."""
        linger_ms = 0
        if self.work is not None and (self._endpoint is None or is_alive(self._endpoint)):
            try:
                self.work.send_multipart(wire.encode(Bye()), zmq.NOBLOCK)
                linger_ms = _CLOSE_LINGER_MS
            except zmq.Again:
                pass
        # By hand: `destroy` finds sockets by weak references, which are gone during a garbage collection, and would
        # then wait for ever.
        for socket in (self.work, self.control):
            if socket is not None:
                socket.close(linger=linger_ms)
        end = partial(self.context.destroy, linger=linger_ms)
        end() if put_off is None else put_off.append(end)
        self.work = self.control = None
        if self.death is not None:
            os.close(self.death)
            self.death = None
