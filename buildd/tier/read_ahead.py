"""Reads records from the tier before look-ups ask for them, along the trails that writers leave.

Actions whose results were written one after another are asked for one after another, and so are programs' entries: the
record of one leads to those near it. Nothing waits for a record that is read ahead, and nothing is believed of it: it
is the tier's answer, a little early, and the look-up that asks for it checks it. Knows no store and no files.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from buildd.tier.carrier import CarrierError, Content, ObjectKind, Patience, for_up_to
from buildd.tier.figures import TierAnswer
from buildd.tier.records import Kind, RefusedRecord, TrailRecord, name_of, opened
from buildd.tier.tier import Tier

UNDER_WAY = 16
MOST_AHEAD = 64
"""Records that are under way or in memory, and that nobody has asked for."""
AFTER, BEFORE = 48, 16
"""How far from an action or an entry its trail is read. Builds with several jobs leave no exact order."""
MOST_RECORD_BYTES = 4 << 20
MOST_BYTES = 32 << 20
"""The most bytes of all records in memory."""
HELD_S = 60.0
"""So long an answer may be old, and so long nothing is read ahead after a failure."""
READ_S = 10.0
LEAST_SILENCE_S = 2.0
"""So long the tier may be silent at least: nobody waits, and many records that are asked for at once come later."""
_NEAR_S = 0.003
"""A tier that answers faster is not worth the threads."""
_MOST_TRAILS = 8
_MOST_KNOWN = 10_000
Lacking = Callable[[Collection[bytes]], Collection[bytes]]
Behind = Callable[[bytes, bytes, bytes], Content | None]
"""Gives the object of `cas/` that a record leads to; None if none is to be read. Gets the record, which it checks, its
key and its writer."""


class Read(NamedTuple):
    """What was read, unchecked."""

    record: bytes | None = None
    object: bytes | None = None
    """What the record leads to, where that was read too."""


@dataclass(slots=True)
class _Ahead:
    """A record that was read ahead, or asked for."""

    since_s: float
    reading: Future[Read] | None = None
    """None once a look-up has asked for it, and where it did not fit into the memory."""
    is_unasked: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Trail:
    """A trail as it was read."""

    firsts: Sequence[bytes]
    names: Sequence[bytes]
    places: dict[bytes, int]
    """Key -> where it is on the trail."""


class ReadAhead:
    """Records of one kind, read ahead for one store. Every method may be called from any thread.

    Args:
        lacking: those of some actions, by their first-level keys, of which the store knows no run; or those of some
            entries, by their keys, that the store lacks.
        kind: of the records: inputs or entries.
        behind: names what is to be read after a record.
    """

    def __init__(
        self,
        tier: Tier,
        lacking: Lacking,
        kind: Kind = Kind.INPUTS,
        behind: Behind = lambda record, key, writer: None,
    ) -> None:
        self._tier, self._lacking, self._kind, self._behind = tier, lacking, kind, behind
        self._pool = ThreadPoolExecutor(UNDER_WAY, thread_name_prefix="tier-ahead")
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Ahead] = OrderedDict()
        """By the record's name, the oldest first."""
        self._trails: OrderedDict[tuple[bytes, bytes], tuple[float, Future[_Trail]]] = OrderedDict()
        """By writer and trail: when it was asked for, and what it says."""
        self._ahead, self._bytes = 0, 0
        """How many records nobody has asked for, and how much of them is in memory."""
        self._silent_until_s = 0.0

    def is_near(self, name: bytes) -> bool:
        """Whether a record is here, or on its way."""
        with self._lock:
            known = self._known.get(name)
            return known is not None and known.reading is not None and (known.size_bytes > 0 or known.reading.running())

    def get(self, name: bytes, patience: Patience) -> bytes | None:
        """A record, unchecked; None where there is none. Raises `CarrierError`."""
        return self.get_whole(name, patience).record

    def get_whole(self, name: bytes, patience: Patience) -> Read:
        """The same, with what it leads to if that was read ahead. Raises `CarrierError`."""
        now_s = time.monotonic()
        with self._lock:
            self._forget_before(now_s - HELD_S)
            reading = self._taken(self._known.setdefault(name, _Ahead(now_s)))
        if reading is not None and not reading.cancel():
            try:
                found = reading.result(timeout=patience.left_s())
            except TimeoutError:
                raise self._tier.too_slow() from None
            if found.record is not None:
                return found
        return Read(self._tier.get(name.hex(), patience))

    def follow(self, trail: bytes, first: bytes, writer: bytes, silence_s: float) -> None:
        """Read the records near that of an action or an entry on its trail, in the background."""
        now_s = time.monotonic()
        if self._tier.figures.usual_s < _NEAR_S or now_s < self._silent_until_s:
            return
        with self._lock:
            asked_s, reading = self._trails.get((writer, trail), (0.0, None))
            try:
                if reading is None or now_s - asked_s > HELD_S:
                    reading = self._pool.submit(self._read_trail, trail, writer, silence_s)
                    self._trails[writer, trail] = (now_s, reading)
                    if len(self._trails) > _MOST_TRAILS:
                        self._trails.popitem(last=False)
            except RuntimeError:  # the store is being closed
                return
        reading.add_done_callback(lambda done: self._go_on(done, first, writer, silence_s))

    def forget(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._forget_before(time.monotonic())
            self._trails.clear()

    def close(self) -> None:
        """Read no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------------

    def _go_on(self, done: Future[_Trail], first: bytes, writer: bytes, silence_s: float) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        trail = done.result()
        place = trail.places.get(first)
        if place is None:
            return
        near = [*range(place + 1, place + 1 + AFTER), *range(place - 1, place - 1 - BEFORE, -1)]
        with self._lock:
            fresh = [at for at in near if 0 <= at < len(trail.names) and trail.names[at] not in self._known]
        wanted = set(self._lacking([trail.firsts[at] for at in fresh])) if fresh else set()
        now_s = time.monotonic()
        with self._lock:
            for at in fresh:
                name = trail.names[at]
                if self._ahead >= MOST_AHEAD or self._bytes >= MOST_BYTES or now_s < self._silent_until_s:
                    break
                if trail.firsts[at] in wanted and name not in self._known:
                    try:
                        reading = self._pool.submit(self._read, name, trail.firsts[at], writer, silence_s)
                    except RuntimeError:  # the store is being closed
                        break
                    self._known[name] = _Ahead(now_s, reading, is_unasked=True)
                    self._ahead += 1

    def _read(self, name: bytes, key: bytes, writer: bytes, silence_s: float) -> Read:
        try:
            record = self._asked(ObjectKind.RECORDS, name.hex(), silence_s)
            behind = self._behind(record, key, writer) if record is not None else None
            found = Read(record)
            if behind is not None:
                found = Read(record, self._asked(ObjectKind.CONTENT, behind.name, silence_s, behind.size_bytes))
        except CarrierError:
            self._drop(name)
            raise
        if found.record is not None:
            size_bytes = len(found.record) + len(found.object or b"")
            with self._lock:
                known = self._known.get(name)
                if known is not None and known.reading is not None and self._bytes + size_bytes <= MOST_BYTES:
                    self._bytes += size_bytes - known.size_bytes
                    known.size_bytes = size_bytes
                    return found
            self._drop(name)
        return found

    def _drop(self, name: bytes) -> None:
        """Hold a record no longer. It still counts as read ahead: what was read in vain must not make room for more."""
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                known.reading = None

    def _read_trail(self, trail: bytes, writer: bytes, silence_s: float) -> _Trail:
        """A trail; an empty one where there is none that can be believed."""
        firsts: Sequence[bytes] = ()
        entry = self._asked(ObjectKind.RECORDS, name_of(Kind.TRAIL, trail, writer).hex(), silence_s)
        if entry is not None:
            try:
                firsts = opened(entry, TrailRecord, Kind.TRAIL, trail, writer).firsts
            except RefusedRecord as why:
                self._tier.figures.count(TierAnswer.REFUSED, f"refused a trail: {why}")
        names = [name_of(self._kind, first, writer) for first in firsts]
        return _Trail(firsts, names, {first: place for place, first in enumerate(firsts)})

    def _asked(self, kind: ObjectKind, name: str, silence_s: float, size_bytes: int | None = None) -> bytes | None:
        if self._tier.paused_s()[0] > 0:
            return None
        try:
            return self._tier.get_ahead(
                kind, name, for_up_to(READ_S, max(silence_s, LEAST_SILENCE_S)), MOST_RECORD_BYTES, size_bytes
            )
        except CarrierError:
            with self._lock:
                self._silent_until_s = time.monotonic() + HELD_S
                for known in self._known.values():
                    if known.reading is not None and known.reading.cancel():
                        known.reading = None
            raise

    def _forget_before(self, since_s: float) -> None:
        """The lock is held."""
        while self._known:
            name, known = next(iter(self._known.items()))
            if known.since_s > since_s and len(self._known) <= _MOST_KNOWN:
                break
            del self._known[name]
            reading = self._taken(known)
            if reading is not None:
                reading.cancel()

    def _taken(self, known: _Ahead) -> Future[Read] | None:
        """What a look-up gets of a record, which then is no longer held here. The lock is held."""
        reading, known.reading = known.reading, None
        self._ahead -= known.is_unasked
        self._bytes -= known.size_bytes
        known.is_unasked, known.size_bytes = False, 0
        return reading
