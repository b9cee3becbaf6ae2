"""A client's side of one conversation, without I/O: the first message, the meaning of answers, the next event.

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
    GpuProcess,
    Hello,
    Lagged,
    Leased,
    LeaseEnd,
    LeaseEnded,
    LeaseId,
    LeaseWaits,
    Refused,
    RequestId,
    Welcome,
)

if TYPE_CHECKING:
    from protocol.curve import KeyPair

OLDEST_VERSION = 1
"""Oldest protocol version that this client speaks."""


class Route(msgspec.Struct, frozen=True):
    """How to reach a daemon: its addresses, the process behind them, keys if they are needed."""

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
    """The welcome; raises the error that a refusal means."""
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
        """The next event; None if nothing new has arrived. Raises RemoteError."""
        while self.waiting:
            item = self.waiting.popleft()
            if isinstance(item, Error):
                raise RemoteError(item)
            # After a reconnect the daemon may repeat events that were in flight.
            if item.sequence > self.last_sequence or isinstance(item.body, Lagged):
                self.last_sequence = max(self.last_sequence, item.sequence)
                return item
        return None


class Download(msgspec.Struct):
    """A blob that is arriving in chunks."""

    digest: Digest
    data: bytearray = msgspec.field(default_factory=bytearray)
    total_bytes: int = -1
    error: Error | None = None

    @property
    def complete(self) -> bool:
        return len(self.data) == self.total_bytes

    def add(self, chunk: BlobChunk) -> None:
        """Add a chunk. Raises ProtocolError if chunks are out of order."""
        if chunk.offset != len(self.data) or chunk.offset + len(chunk.data) > chunk.total_bytes:
            raise ProtocolError(f"chunks of blob {self.digest} are out of order", code="bad-blob")
        self.total_bytes = chunk.total_bytes
        self.data += chunk.data


class HeldLease(msgspec.Struct):
    """A lease of a GPU, from its request to its end."""

    lease_id: LeaseId
    granted: Leased | None = None
    waits: LeaseWaits | None = None
    ended: LeaseEnded | None = None
    error: Error | None = None
    lost: str = ""
    """Why what was timed under it does not count; empty while it does."""

    @property
    def beside(self) -> tuple[GpuProcess, ...]:
        """Processes that computed on the GPU without a lease, as far as the daemon has said so."""
        said = self.ended or self.granted
        return said.beside if said is not None else ()

    def take(self, message: Leased | LeaseWaits | LeaseEnded) -> None:
        """Take a message about it."""
        match message:
            case Leased():
                self.granted = message
            case LeaseWaits():
                self.waits = message
            case LeaseEnded(reason=reason):
                self.ended = message
                if reason is not LeaseEnd.GIVEN_BACK:
                    self.lost = "the GPU is lost" if reason is LeaseEnd.GPU_LOST else "the lease has expired"


class Inbox:
    """Sorts arriving messages of the work socket by the request or blob that waits for them."""

    def __init__(self) -> None:
        self.streams: dict[RequestId, Stream] = {}
        self.downloads: dict[Digest, Download] = {}
        self.leases: dict[LeaseId, HeldLease] = {}
        self.instance = ""

    def open_stream(self, request_id: RequestId, after_sequence: int) -> Stream:
        """Open the stream of a request. Raises ProtocolError if this client follows it already."""
        if request_id in self.streams:
            raise ProtocolError(f"request {request_id} is already followed by this client", code="followed-twice")
        stream = Stream(request_id, after_sequence)
        self.streams[request_id] = stream
        return stream

    def close_stream(self, stream: Stream) -> None:
        if self.streams.get(stream.request_id) is stream:
            del self.streams[stream.request_id]

    def put(self, message: FromDaemon) -> None:
        """File a message. Raises ConnectionLost if the daemon no longer knows this client, RemoteError for an error
        that belongs to no request."""
        match message:
            case Event():
                if message.request_id in self.streams:
                    self.streams[message.request_id].waiting.append(message)
            case BlobChunk():
                if message.digest in self.downloads:
                    self.downloads[message.digest].add(message)
            case Leased() | LeaseWaits() | LeaseEnded():
                if message.lease_id in self.leases:
                    self.leases[message.lease_id].take(message)
            case Error(code="handshake"):
                raise ConnectionLost("the daemon does not know this client: it was restarted", instance=self.instance)
            case Error():
                if message.request_id in self.streams:
                    self.streams[message.request_id].waiting.append(message)
                elif message.digest in self.downloads:
                    self.downloads[message.digest].error = message
                elif message.lease_id in self.leases:
                    self.leases[message.lease_id].error = message
                elif message.code == "unknown-lease":
                    pass  # it ended while it was being given back
                else:
                    raise RemoteError(message)
            case _:
                pass

    def lost(self, request_id: RequestId, why: str) -> ConnectionLost:
        """The error for the caller that waits for `request_id`."""
        stream = self.streams.get(request_id)
        return ConnectionLost(
            why,
            request_id=request_id,
            last_sequence=stream.last_sequence if stream else 0,
            instance=self.instance,
        )


def is_last(event: Event) -> bool:
    return isinstance(event.body, Done)
