"""Fetches programs' entries from the tier into one store: kernels of Triton, programs of JAX, graphs of Inductor.

The key of an entry covers all that it depends on, so one question suffices. What was fetched is checked, then signed
with the user's own key and put where programs look. Equal questions at one time are one question to the tier. A program
asks for one entry after another, so the records near one on its trail are read ahead. Knows no program: `door` listens
to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from buildd.errors import StoreError
from buildd.store import shared_kernels
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.carrier import MAX_OBJECT_BYTES, CarrierError, Content, Patience
from buildd.tier.fetcher import THREADS, patience_of
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import content_of
from buildd.tier.read_ahead import Read, ReadAhead
from buildd.tier.records import EntryRecord, Kind, RefusedRecord, entry_key, name_of, opened
from buildd.tier.tier import Tier

_TRIM_BYTES = 64 << 20
"""After so many new bytes the entries are trimmed to their bound."""
_LISTED_S = 5.0
"""So long a list of the store's entries is used again. An entry that is newer may be read ahead in vain."""
_MOST_BARE_BYTES = 2048
"""A longer record carries its entry."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class EntryFetcher:
    """Look-ups of entries for one store. Every method may be called from any thread."""

    def __init__(self, tier: Tier, store: Store) -> None:
        self._tier, self._store = tier, store
        self._asking = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-entry")
        self._carrying = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-get-entry")
        self._ahead = ReadAhead(tier, self._lacking, Kind.ENTRY, _object_behind)
        self._listed_s, self._here = 0.0, frozenset[bytes]()
        self._lock = threading.Lock()
        self._open: dict[str, Future[bool]] = {}
        self._untrimmed = 0

    def begin(self, place: str, expected_s: float) -> Future[bool] | None:
        """Begin a look-up, which says whether the entry is in the store now; None where asking is not worth it.

        Args:
            place: in the store, such as "triton/5f0c...".
            expected_s: how long the program would take to make it: it should not wait for longer.
        """
        if not self._tier.settings.believed or expected_s < self._tier.figures.usual_s:
            return None
        with self._lock:
            if (known := self._open.get(place)) is not None:
                return known
            if not self._tier.may_be_asked():
                return None
            try:
                future = self._asking.submit(self._answer, place, patience_of(expected_s))
            except RuntimeError:  # the store is being closed
                return None
            self._open[place] = future
        future.add_done_callback(lambda _: self._open.pop(place, None))
        return future

    def close(self) -> None:
        """Take no more questions. Those under way end when the carrier is closed."""
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._carrying.shutdown(wait=False, cancel_futures=True)
        self._ahead.close()

    def rest(self) -> None:
        """Give memory back."""
        self._ahead.forget()

    # ----------------------------------------------------------------

    def _answer(self, place: str, patience: Callable[[], Patience]) -> bool:
        answer, problem, is_told = TierAnswer.ABSENT, "", False
        try:
            if self._fetch(place, patience()):
                answer = TierAnswer.HIT
        except CarrierError:
            answer, is_told = TierAnswer.FAILED, True
        except (OSError, StoreError, ValueError) as error:  # the store is full, or the user's key is unusable
            answer, problem = TierAnswer.FAILED, f"an entry cannot be stored: {error}"
        except Exception:  # the edge: no fault of the tier may reach a program
            _log.exception("a look-up in the tier failed inside")
            answer, problem = TierAnswer.FAILED, "a look-up failed inside; the log has the story"
        if not is_told:
            self._tier.figures.count(answer, problem)
        self._store.tally.count_reasoned(Reasoned.TIER, answer.value)
        return answer is TierAnswer.HIT

    def _fetch(self, place: str, patience: Patience) -> bool:
        """Raises `CarrierError`, OSError, ValueError."""
        key = entry_key(place)
        named = [(writer, name_of(Kind.ENTRY, key, writer)) for writer, _ in self._tier.settings.believed]
        near = [one for one in named if self._ahead.is_near(one[1])]
        # What was read ahead costs no round trip. If it is sound, no other writer is asked.
        for several in (near, [one for one in named if one not in near]):
            answers = self._at_once(lambda one: self._ahead.get_whole(one[1], patience), several)
            for (writer, _), read in zip(several, answers, strict=True):
                if read.record is not None and self._taken(place, read.record, read.object, writer, patience):
                    return True
        return False

    def _taken(self, place: str, entry: bytes, stored: bytes | None, writer: bytes, patience: Patience) -> bool:
        """Whether the entry in or behind a record is in the store now. Raises as `_fetch`.

        Args:
            stored: what is behind it, where that was read ahead.
        """
        key = entry_key(place)
        try:
            record = opened(entry, EntryRecord, Kind.ENTRY, key, writer)
            if record.trail is not None:
                self._ahead.follow(record.trail, key, writer, patience.silence_s)
            content = self._content(record, stored, patience)
            if content is None:
                return False
            if not shared_kernels.take_in(self._store.folder, place, content):
                raise RefusedRecord("it holds no sound entry")
        except RefusedRecord as why:
            self._refuse(f"refused an entry: {why}")
            return False
        self._trim(len(content))
        return True

    def _lacking(self, keys: Collection[bytes]) -> Collection[bytes]:
        """Those entries, by their keys, that the store did not have a moment ago."""
        now_s = time.monotonic()
        if now_s - self._listed_s > _LISTED_S:
            self._here = frozenset(map(entry_key, shared_kernels.places(self._store.folder)))
            self._listed_s = now_s
        return {*keys} - self._here

    def _content(self, record: EntryRecord, stored: bytes | None, patience: Patience) -> bytes | None:
        """The entry; None where the tier no longer has it. Raises `RefusedRecord`, `CarrierError`."""
        blob = record.blob
        if not (0 <= blob.size <= MAX_OBJECT_BYTES and 0 <= blob.stored <= MAX_OBJECT_BYTES):
            raise RefusedRecord("it has an impossible size")
        stored = stored if record.object is None else record.object
        if stored is None:
            (stored,) = self._tier.get_contents([Content(blob.sha256.hex(), blob.stored)], patience)
            if stored is None:
                return None
        content = content_of(blob, stored)
        if content is None and record.object is None:
            self._tier.lied("a blob was not what its name says")
            self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)
        elif content is None:
            raise RefusedRecord("it carries other bytes than it names")
        return content

    def _at_once(self, get: Callable[[T], Read], wanted: list[T]) -> Iterable[Read]:
        return map(get, wanted) if len(wanted) < 2 else list(self._carrying.map(get, wanted))

    def _refuse(self, why: str) -> None:
        self._tier.figures.count(TierAnswer.REFUSED, why)
        self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)

    def _trim(self, new_bytes: int) -> None:
        with self._lock:
            self._untrimmed += new_bytes
            if self._untrimmed <= _TRIM_BYTES:
                return
            self._untrimmed = 0
        shared_kernels.trim(self._store.folder, self._store.limit_bytes // shared_kernels.SHARE)


def _object_behind(entry: bytes, key: bytes, writer: bytes) -> Content | None:
    """What a record of an entry leads to; None where the record carries it, or is refused."""
    if len(entry) > _MOST_BARE_BYTES:
        return None
    try:
        record = opened(entry, EntryRecord, Kind.ENTRY, key, writer)
    except RefusedRecord:  # that counts when somebody asks for it
        return None
    return Content(record.blob.sha256.hex(), record.blob.stored) if record.object is None else None
