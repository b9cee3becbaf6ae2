"""Frames <-> messages: pure functions over bytes.

Knows no socket, no handshake and no state. A message is two frames: the magic with the framing version, then the
MessagePack of one tagged struct. For any input, the only exception is `WireError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from protocol.described import described
from protocol.errors import WireError
from protocol.messages import (
    Done,
    Event,
    EventBody,
    FromClient,
    FromControl,
    FromDaemon,
    Message,
    Outcome,
    RequestId,
    ToControl,
    Unknown,
)

MAGIC = b"buildd1"
"""First frame of every message; the digits are the framing version."""

MAX_MESSAGE_BYTES = 64 << 20
MAX_CONTROL_BYTES = 1 << 20
MAX_EVENT_BYTES = 1 << 20
BLOB_CHUNK_BYTES = 256 << 10

_ANY_MAGIC = re.compile(rb"buildd[0-9]{1,4}\Z")
_FRAMES = 2

Frames = list[bytes]
T = TypeVar("T")


class _Head(msgspec.Struct):
    type: str


class _BareRequest(msgspec.Struct):
    request_id: RequestId


class _BareSubmit(msgspec.Struct):
    request: _BareRequest


class _BareEvent(msgspec.Struct, tag_field="type", tag="event"):
    request_id: RequestId
    sequence: int
    time_ns: int
    body: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()


# Made at first use: a decoder of a large union takes a millisecond, and a short command uses only one.
@cache
def _head() -> msgspec.msgpack.Decoder[_Head]:
    return msgspec.msgpack.Decoder(described(_Head))


@cache
def _bare_event() -> msgspec.msgpack.Decoder[_BareEvent]:
    return msgspec.msgpack.Decoder(described(_BareEvent))


@cache
def _named() -> msgspec.msgpack.Decoder[_BareRequest]:
    return msgspec.msgpack.Decoder(described(_BareRequest))


@cache
def _bare_submit() -> msgspec.msgpack.Decoder[_BareSubmit]:
    return msgspec.msgpack.Decoder(described(_BareSubmit))


@cache
def _body() -> msgspec.msgpack.Decoder[EventBody]:
    return msgspec.msgpack.Decoder(described(EventBody))


def is_text(value: str) -> bool:
    """Whether a message can carry a string: MessagePack's strings are UTF-8, names of files need not be."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(message: Message, *, limit_bytes: int = MAX_MESSAGE_BYTES) -> Frames:
    """Frames of a message.

    Raises:
        WireError: "too-large"; "not-utf8" if a text holds bytes that are not UTF-8 (a path with surrogates).
    """
    try:
        payload = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise WireError(
            f"a text of the message is not valid UTF-8: {error.object[:80]!r}",
            code="not-utf8",
            next_step="rename the file or folder, or build without the daemon",
        ) from error
    except OverflowError as error:
        raise WireError(f"a number of the message does not fit in 64 bits: {error}") from error
    if len(payload) > limit_bytes:
        raise WireError(f"the message has {len(payload)} bytes, {limit_bytes} are allowed", code="too-large")
    return [MAGIC, payload]


class Decoder(Generic[T]):
    """Frames -> one of a union of messages.

    Args:
        union: the messages that may arrive on the socket.
        limit_bytes: most bytes of the payload.
        any_framing: accept the magic of other framing versions (the control socket: an older daemon must understand
            a newer client that asks it to drain).
    """

    def __init__(self, union: Any, *, limit_bytes: int = MAX_MESSAGE_BYTES, any_framing: bool = False) -> None:
        self._union = union
        self._decoder: msgspec.msgpack.Decoder[T] | None = None
        self._limit_bytes = limit_bytes
        self._any_framing = any_framing

    @property
    def tags(self) -> frozenset[str]:
        """Types of the messages that it accepts."""
        return frozenset(str(part.__struct_config__.tag) for part in get_args(self._union))

    def __call__(self, frames: Sequence[bytes]) -> T:
        """The message. Raises WireError: "bad-frames", "framing", "too-large", "unknown-type" or "bad-message"."""
        if len(frames) != _FRAMES:
            raise WireError(f"a message has {_FRAMES} frames, not {len(frames)}", code="bad-frames")
        magic, payload = frames
        if magic != MAGIC and not (self._any_framing and _ANY_MAGIC.match(magic)):
            if _ANY_MAGIC.match(magic):
                raise WireError(f"framing {magic.decode()} is not {MAGIC.decode()}", code="framing")
            raise WireError("the first frame is not the magic of this protocol", code="bad-frames")
        if len(payload) > self._limit_bytes:
            raise WireError(f"the message has {len(payload)} bytes, {self._limit_bytes} are allowed", code="too-large")
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = msgspec.msgpack.Decoder(described(self._union))
        try:
            return decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
            return self._salvage(payload, error)

    def _salvage(self, payload: bytes, error: Exception) -> T:
        """An event with an unknown body stays an event; anything else raises WireError with a code."""
        kind = _type_of(payload)
        if kind is None:
            raise WireError(f"the second frame is no message: {error}") from error
        if kind not in self.tags:
            raise WireError(f"unknown message type {kind[:80]!r}", code="unknown-type") from error
        if kind != "event":
            raise WireError(f"bad {kind!r} message: {error}", request_id=_request_of(payload, kind)) from error
        try:
            bare = _bare_event().decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as worse:
            raise WireError(f"bad 'event' message: {worse}") from worse
        event: Any = Event(
            request_id=bare.request_id, sequence=bare.sequence, time_ns=bare.time_ns, body=_shim(bare.body)
        )
        return event  # type: ignore[no-any-return]


def _shim(body: msgspec.Raw) -> EventBody:
    try:
        return _body().decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError):
        kind = _type_of(body) or ""
    if kind == "done":
        # Followers stop at Done: one with an outcome of a later version must not keep them waiting for ever.
        return Done(outcome=Outcome.DAEMON_ERROR, code="version", message="ended in a way that this client cannot read")
    return Unknown(name=kind[:80])


def _request_of(payload: bytes, kind: str) -> RequestId:
    """The request that a bad message wants something of; empty if that cannot be read either."""
    try:
        return (
            _bare_submit().decode(payload).request.request_id
            if kind == "submit"
            else _named().decode(payload).request_id
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError):
        return RequestId("")


def _type_of(payload: bytes | msgspec.Raw) -> str | None:
    try:
        return _head().decode(payload).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError):
        return None


decode_from_client: Decoder[FromClient] = Decoder(FromClient)
decode_from_daemon: Decoder[FromDaemon] = Decoder(FromDaemon)
decode_to_control: Decoder[ToControl] = Decoder(ToControl, limit_bytes=MAX_CONTROL_BYTES, any_framing=True)
decode_from_control: Decoder[FromControl] = Decoder(FromControl, any_framing=True)
