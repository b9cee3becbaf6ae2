"""The numbered events of one request, encoded once and bounded in memory.

Knows no socket and no follower: readers ask for the events after a number, listeners are called with each new event.
When the memory bound is reached, old log lines are dropped; a reader gets `Lagged` in their place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from protocol import wire
from protocol.described import described
from protocol.errors import WireError
from protocol.messages import Done, Event, EventBody, Lagged, LogLine, Progress, RequestId

DEFAULT_LIMIT_BYTES = 16 << 20
MAX_LINE_CHARACTERS = 16 << 10
"""Characters of one log line; a longer line is cut, and says so."""

_CUTS = ((64 << 10, 1000), (4 << 10, 100), (200, 20))
"""Limits for an event that is too large, tried until it fits: characters of a text, items of a list."""
_ENTRY_OVERHEAD_BYTES = 200
"""About what an event takes in CPython besides its bytes: their header, a number, a slot of a dict that grows."""

_log = logging.getLogger(__name__)

Listener = Callable[[Event], None]


class Encoded(NamedTuple):
    """An event as it goes over the wire."""

    sequence: int
    frames: wire.Frames


class RequestLog:
    """Events of one request, numbered from 1. Appending is safe from any thread.

    Args:
        request_id: the request that the events belong to.
        limit_bytes: memory bound; log lines go first, then progress, then the oldest; `Done` never goes.
        clock_ns: time of day in nanoseconds.
    """

    # Invariants: _entries holds sequences in rising order; every sequence from 1 to `last` is in _entries or was
    # dropped; after a Done nothing is appended; _size_bytes is the sum of the entries' sizes.

    def __init__(
        self,
        request_id: RequestId,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.request_id = request_id
        self.last = 0
        """Sequence of the newest event."""
        self.done: Done | None = None
        self.late = 0
        """Bodies that came after `Done` and were dropped."""
        self.dropped = 0
        self._limit_bytes = limit_bytes
        self._clock_ns = clock_ns
        # Only the bytes: the structs would take several times as much, and readers in this process are rare.
        self._entries: dict[int, bytes] = {}
        self._lines: deque[int] = deque()
        self._progress: deque[int] = deque()
        self._oldest = 1
        """No sequence below is in `_entries`."""
        self._size_bytes = 0
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def append(self, body: EventBody) -> Event | None:
        """Number a body and tell the listeners, on this thread. None after `Done`: nothing follows it."""
        with self._lock:
            if self.done is not None:
                self.late += 1
                return None
            event = Event(
                request_id=self.request_id, sequence=self.last + 1, time_ns=self._clock_ns(), body=_bounded(body)
            )
            event, frames = _encode(event)
            self._keep(event, frames[1])
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(event)
        return event

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns a function that ends that. It must not raise nor take
        long."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def after(self, sequence: int, limit: int = 1000) -> list[Event]:
        """At most `limit` events that follow `sequence`; a hole appears as one `Lagged` numbered as its end."""
        with self._lock:
            found = self._walk(sequence, limit)
        return [_decode(payload) for _, payload in found]

    def encoded_after(self, sequence: int, limit: int = 64) -> list[Encoded]:
        """The same events as `after`, in frames that all followers share."""
        with self._lock:
            return [Encoded(number, [wire.MAGIC, payload]) for number, payload in self._walk(sequence, limit)]

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def _walk(self, sequence: int, limit: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        hole = 0
        for number in range(max(0, sequence) + 1, self.last + 1):
            entry = self._entries.get(number)
            if entry is None:
                hole = hole or number
                continue
            if hole:
                found.append(self._lagged(hole, number - 1))
                hole = 0
            found.append((number, entry))
            if len(found) >= limit:
                break
        return found

    def _lagged(self, first: int, last: int) -> tuple[int, bytes]:
        event = Event(
            request_id=self.request_id,
            sequence=last,
            time_ns=self._clock_ns(),
            body=Lagged(first=first, last=last),
        )
        return last, wire.encode(event)[1]

    def _keep(self, event: Event, payload: bytes) -> None:
        self.last = event.sequence
        self._entries[event.sequence] = payload
        self._size_bytes += len(payload) + _ENTRY_OVERHEAD_BYTES
        match event.body:
            case LogLine():
                self._lines.append(event.sequence)
            case Progress():
                self._progress.append(event.sequence)
            case Done():
                self.done = event.body
        while self._size_bytes > self._limit_bytes and self._drop_one():
            pass

    def _drop_one(self) -> bool:
        if self._lines:
            victim = self._lines.popleft()
        elif self._progress:
            victim = self._progress.popleft()
        else:
            # Counted up, not `next(iter(...))`: that walks over all that were removed from the front before.
            while self._oldest not in self._entries:
                self._oldest += 1
            victim = self._oldest
            # The newest event stays, so that a reader learns of the hole.
            if victim == self.last:
                return False
        self._size_bytes -= len(self._entries.pop(victim)) + _ENTRY_OVERHEAD_BYTES
        self.dropped += 1
        return True


def _decode(payload: bytes) -> Event:
    event = wire.decode_from_daemon([wire.MAGIC, payload])
    assert isinstance(event, Event)
    return event


def _bounded(body: EventBody) -> EventBody:
    if isinstance(body, LogLine) and len(body.text) > MAX_LINE_CHARACTERS:
        return msgspec.structs.replace(body, text=_cut(body.text, MAX_LINE_CHARACTERS))
    return body


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... [{len(text) - limit} characters cut]"


def _encode(event: Event) -> tuple[Event, wire.Frames]:
    """The event as it is sent, and its frames. Parts that cannot be sent are cut or replaced: a job gets no error."""
    try:
        return event, wire.encode(event, limit_bytes=wire.MAX_EVENT_BYTES)
    except WireError as error:
        _log.warning("a %s of request %s is cut: %s", type(event.body).__name__, event.request_id, error)
    plain = msgspec.to_builtins(event.body)
    for characters, items in _CUTS:
        body: EventBody = msgspec.convert(_tame(plain, characters, items), type=described(EventBody))
        tame = msgspec.structs.replace(event, body=body)
        try:
            return tame, wire.encode(tame, limit_bytes=wire.MAX_EVENT_BYTES)
        except WireError:
            continue
    raise AssertionError(f"a {type(event.body).__name__} does not fit even when cut")


def _tame(value: Any, characters: int, items: int) -> Any:
    match value:
        case str():
            # Bytes of a path that are not UTF-8 are surrogates in a str; they have no encoding.
            return _cut(value.encode("utf-8", "replace").decode("utf-8"), characters)
        case list() | tuple():
            return [_tame(item, characters, items) for item in value[:items]]
        case dict():
            return {name: _tame(item, characters, items) for name, item in value.items()}
        case _:
            return value
