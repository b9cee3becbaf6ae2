"""One client on the work socket: the requests that it follows, its queued messages, and how far it has read.

Knows no socket: a client is pumped through a function that sends, or reports that the client is full or gone. Nothing
here waits, so a client that does not read costs the others nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from buildd.builds.event_log import RequestLog
from buildd.daemon.handler import ClientInfo as ClientInfo
from buildd.daemon.sockets import Sent
from protocol import wire
from protocol.messages import BlobChunk, Digest, Message, RequestId

MAX_FOLLOWED = 1024
MAX_REPLIES = 1000
"""Replies that may wait for a client; a client that asks without reading loses further ones."""
MAX_TRANSFERS = 8

_PUMP_MESSAGES = 64
"""Messages sent to one client before the next has its turn."""

Send = Callable[[list[bytes]], Sent]


class Pumped(Enum):
    """The result of pumping a client."""

    IDLE = "idle"
    """Everything queued has been sent."""
    MORE = "more"
    FULL = "full"
    GONE = "gone"


@dataclass(slots=True)
class Cursor:
    """How far a client has read a request's log."""

    log: RequestLog
    sequence: int

    @property
    def at_end(self) -> bool:
        return self.log.done is not None and self.sequence >= self.log.last


@dataclass(slots=True)
class Transfer:
    """A blob on its way to a client."""

    digest: Digest
    data: bytes
    offset: int = 0

    def chunk(self) -> BlobChunk:
        return BlobChunk(
            digest=self.digest,
            offset=self.offset,
            total_bytes=len(self.data),
            data=self.data[self.offset : self.offset + wire.BLOB_CHUNK_BYTES],
        )


@dataclass(slots=True, eq=False)
class Peer:
    """A client after its handshake."""

    key: bytes
    """Unique among all clients: the number of its socket, then `identity`."""
    identity: bytes
    info: ClientInfo
    transmit: Send
    heard_s: float
    """When its last message arrived, on the monotonic clock."""
    watched: bool = False
    """Its process is watched, so it may be silent."""
    spoken: bool = False
    """A message was sent to it since the last beat."""
    full: bool = False
    cursors: dict[RequestId, Cursor] = field(default_factory=dict)
    replies: deque[list[bytes]] = field(default_factory=deque)
    transfers: deque[Transfer] = field(default_factory=deque)
    fetching: int = 0
    """Blobs that are being read for it."""

    def reply(self, message: Message) -> bool:
        """Queue a message; False if too many wait already."""
        if len(self.replies) >= MAX_REPLIES:
            return False
        self.replies.append(wire.encode(message))
        return True

    def follow(self, log: RequestLog, after_sequence: int) -> None:
        sequence = max(0, after_sequence)
        if log.done is not None:
            # A follower waits for a Done, even if it has read it before.
            sequence = min(sequence, log.last - 1)
        self.cursors[log.request_id] = Cursor(log, sequence)

    def pump(self) -> Pumped:
        """Send queued messages until none is left, the turn is over, or the client takes no more."""
        left = _PUMP_MESSAGES
        while self.replies:
            if left == 0:
                return Pumped.MORE
            if (stop := self._send(self.replies[0])) is not None:
                return stop
            self.replies.popleft()
            left -= 1
        for cursor in list(self.cursors.values()):
            for sequence, frames in cursor.log.encoded_after(cursor.sequence, max(left, 1)):
                if left == 0:
                    return Pumped.MORE
                if (stop := self._send(frames)) is not None:
                    return stop
                cursor.sequence = sequence
                left -= 1
            if cursor.at_end:
                del self.cursors[cursor.log.request_id]
            elif cursor.sequence < cursor.log.last and left == 0:
                return Pumped.MORE
        while self.transfers:
            if left == 0:
                return Pumped.MORE
            transfer = self.transfers[0]
            chunk = transfer.chunk()
            if (stop := self._send(wire.encode(chunk))) is not None:
                return stop
            transfer.offset += len(chunk.data)
            left -= 1
            if transfer.offset >= len(transfer.data):
                self.transfers.popleft()
        return Pumped.IDLE

    def _send(self, frames: list[bytes]) -> Pumped | None:
        match self.transmit([self.identity, *frames]):
            case Sent.SENT:
                self.full = False
                self.spoken = True
                return None
            case Sent.FULL:
                return Pumped.FULL
            case Sent.GONE:
                return Pumped.GONE


def has_read_all(peer: Peer) -> bool:
    return not peer.replies and not peer.transfers and all(c.sequence >= c.log.last for c in peer.cursors.values())
