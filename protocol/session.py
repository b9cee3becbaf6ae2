"""A client's view of one conversation, sans-IO: what to send first, what the answers mean, which event comes next.

Knows no socket and no clock. The sync and the async client are thin shells around it.
"""

from __future__ import annotations

import os
import pwd
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from protocol.endpoint import Endpoint, own_namespaces, start_ticks
from protocol.errors import ConnectionLost, ProtocolError, RemoteError, VersionMismatch
from protocol.messages import (
    PROTOCOL_VERSION,
    BlobChunk,
    Digest,
    Done,
    Error,
    Event,
    FromDaemon,
    Hello,
    Lagged,
    Refused,
    RequestId,
    Welcome,
)

if TYPE_CHECKING:
    from protocol.curve import KeyPair

OLDEST_VERSION = 1
"""Oldest protocol version that this client speaks."""


class Route(msgspec.Struct, frozen=True):
    """How to reach a daemon: its addresses, the process behind them, keys where they are needed."""

    work: str
    control: str
    endpoint: Endpoint | None = None
    """None for a daemon on another host: its death shows only as silence."""
    server_key: str = ""
    keys: KeyPair | None = None

    @classmethod
    def local(cls, endpoint: Endpoint) -> Route:
        return cls(work=endpoint.work, control=endpoint.control, endpoint=endpoint)


def user_name(environ: Mapping[str, str]) -> str:
    """Login name for the audit line."""
    for name in ("LOGNAME", "USER"):
        if environ.get(name):
            return environ[name]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def hello(name: str, environ: Mapping[str, str], *, local: bool) -> Hello:
    """The first message of this process."""
    pid = os.getpid()
    return Hello(
        version=PROTOCOL_VERSION,
        client=name,
        pid=pid if local else 0,
        start_ticks=start_ticks(pid) if local else 0,
        user=user_name(environ),
        namespaces=own_namespaces(),
    )


def check_welcome(reply: object) -> Welcome:
    """The welcome, or the error that a refusal means."""
    if isinstance(reply, Refused):
        kind = VersionMismatch if reply.code == "version" else ProtocolError
        raise kind(reply.message, code=reply.code, next_step=reply.next_step)
    if isinstance(reply, Error):
        raise RemoteError(reply)
    if not isinstance(reply, Welcome):
        raise ProtocolError(f"the daemon answered the handshake with {type(reply).__name__}", code="handshake")
    if not OLDEST_VERSION <= reply.version <= PROTOCOL_VERSION:
        raise VersionMismatch(f"the daemon speaks version {reply.version} of the protocol, not {PROTOCOL_VERSION}")
    return reply


class Stream(msgspec.Struct):
    """Events of one request as they arrive, without repetitions."""

    request_id: RequestId
    last_sequence: int
    waiting: deque[Event | Error] = msgspec.field(default_factory=deque)

    def take(self) -> Event | None:
        """The next event; None where nothing new has arrived. Raises RemoteError."""
        while self.waiting:
            item = self.waiting.popleft()
            if isinstance(item, Error):
                raise RemoteError(item)
            # After a reconnect the daemon may repeat what was in flight.
            if item.sequence > self.last_sequence or isinstance(item.body, Lagged):
                self.last_sequence = max(self.last_sequence, item.sequence)
                return item
        return None


class Download(msgspec.Struct):
    """A blob on its way."""

    digest: Digest
    data: bytearray = msgspec.field(default_factory=bytearray)
    total_bytes: int = -1
    error: Error | None = None

    @property
    def complete(self) -> bool:
        return len(self.data) == self.total_bytes

    def add(self, chunk: BlobChunk) -> None:
        """Raises ProtocolError where chunks are not in order."""
        if chunk.offset != len(self.data) or chunk.offset + len(chunk.data) > chunk.total_bytes:
            raise ProtocolError(f"chunks of blob {self.digest} are out of order", code="bad-blob")
        self.total_bytes = chunk.total_bytes
        self.data += chunk.data


class Inbox:
    """Sorts what arrives on the work socket by who waits for it."""

    def __init__(self) -> None:
        self.streams: dict[RequestId, Stream] = {}
        self.downloads: dict[Digest, Download] = {}
        self.instance = ""

    def open_stream(self, request_id: RequestId, after_sequence: int) -> Stream:
        """Raises ProtocolError where this client follows the request already."""
        if request_id in self.streams:
            raise ProtocolError(f"request {request_id} is followed already by this client", code="followed-twice")
        stream = Stream(request_id, after_sequence)
        self.streams[request_id] = stream
        return stream

    def close_stream(self, stream: Stream) -> None:
        if self.streams.get(stream.request_id) is stream:
            del self.streams[stream.request_id]

    def put(self, message: FromDaemon) -> None:
        """Raises ConnectionLost where the daemon does not know us (any more), RemoteError where nobody waits for it."""
        match message:
            case Event():
                if message.request_id in self.streams:
                    self.streams[message.request_id].waiting.append(message)
            case BlobChunk():
                if message.digest in self.downloads:
                    self.downloads[message.digest].add(message)
            case Error(code="handshake"):
                raise ConnectionLost(
                    "the daemon does not know this client: it was started again", instance=self.instance
                )
            case Error():
                if message.request_id in self.streams:
                    self.streams[message.request_id].waiting.append(message)
                elif message.digest in self.downloads:
                    self.downloads[message.digest].error = message
                else:
                    raise RemoteError(message)
            case _:
                pass

    def lost(self, request_id: RequestId, why: str) -> ConnectionLost:
        """The error for whoever waits for `request_id`."""
        stream = self.streams.get(request_id)
        return ConnectionLost(
            why,
            request_id=request_id,
            last_sequence=stream.last_sequence if stream else 0,
            instance=self.instance,
        )


def is_last(event: Event) -> bool:
    return isinstance(event.body, Done)
