"""Fetches programs' entries from the tier into one store: kernels of Triton, programs of JAX, graphs of Inductor.

The key of an entry covers all that it depends on, so one question suffices. What was fetched is checked, then signed
with the user's own key and put where programs look. Equal questions at one time are one question to the tier. Knows no
program: `door` listens to them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from buildd.errors import StoreError
from buildd.store import shared_kernels
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.carrier import MAX_OBJECT_BYTES, CarrierError, ObjectKind, Patience
from buildd.tier.fetcher import THREADS, patience_of
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import content_of
from buildd.tier.records import EntryRecord, Kind, RefusedRecord, entry_key, name_of, opened
from buildd.tier.tier import Tier

_TRIM_BYTES = 64 << 20
"""After so many new bytes the entries are trimmed to their bound."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class EntryFetcher:
    """Look-ups of entries for one store. Every method may be called from any thread."""

    def __init__(self, tier: Tier, store: Store) -> None:
        self._tier, self._store = tier, store
        self._asking = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-entry")
        self._carrying = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-get-entry")
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
        writers = [writer for writer, _ in self._tier.settings.believed]

        def asked(writer: bytes) -> bytes | None:
            return self._tier.get(ObjectKind.RECORDS, name_of(Kind.ENTRY, key, writer).hex(), patience)

        for writer, entry in zip(writers, self._at_once(asked, writers), strict=True):
            if entry is None:
                continue
            try:
                content = self._content(opened(entry, EntryRecord, Kind.ENTRY, key, writer), patience)
                if content is None:
                    continue
                if not shared_kernels.take_in(self._store.folder, place, content):
                    raise RefusedRecord("it holds no sound entry")
            except RefusedRecord as why:
                self._refuse(f"refused an entry: {why}")
                continue
            self._trim(len(content))
            return True
        return False

    def _content(self, record: EntryRecord, patience: Patience) -> bytes | None:
        """The entry; None where the tier no longer has it. Raises `RefusedRecord`, `CarrierError`."""
        blob = record.blob
        if not (0 <= blob.size <= MAX_OBJECT_BYTES and 0 <= blob.stored <= MAX_OBJECT_BYTES):
            raise RefusedRecord("it has an impossible size")
        stored = record.object
        if stored is None:
            stored = self._tier.get(ObjectKind.CONTENT, blob.sha256.hex(), patience)
            if stored is None:
                return None
        content = content_of(blob, stored)
        if content is None and record.object is None:
            self._tier.lied("a blob was not what its name says")
            self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)
        elif content is None:
            raise RefusedRecord("it carries other bytes than it names")
        return content

    def _at_once(self, get: Callable[[T], bytes | None], wanted: list[T]) -> Iterable[bytes | None]:
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
