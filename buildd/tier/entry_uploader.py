"""Writes programs' entries to the tier in the background: kernels of Triton, programs of JAX, graphs of Inductor.

An entry is one record. A large one has its content in `cas/`, which is written before the record. After the entries it
writes the trail (`trail`). The signature that an entry has in the store is left away: the record's own one covers it.
Knows no program.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from buildd.store import shared_kernels
from buildd.store.signing import Signer
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.background import Background, persist
from buildd.tier.carrier import MAX_OBJECT_BYTES, CarrierError
from buildd.tier.entry_queue import EntryQueue
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import packed
from buildd.tier.records import FORMAT, MOST_CARRIED_BYTES, MOST_STEPS, EntryRecord, Kind, entry_key, name_of, sealed
from buildd.tier.tier import Tier
from buildd.tier.trail import Trail
from buildd.tier.uploader import THREADS, patience_for


class EntryUploader:
    """The uploads of one store's entries. Every method may be called from any thread.

    Args:
        queues: the folder of the store's queues for this tier.
    """

    def __init__(self, tier: Tier, store: Store, signer: Signer, queues: Path) -> None:
        self.queue = EntryQueue(queues)
        self.written = 0
        """How many were written."""
        self._tier, self._store, self._signer = tier, store, signer
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-put-entry")
        self._trail = Trail(tier, signer)
        self._background = Background("tier-entries", tier, self._waiting, self._round)
        self._one_at_a_time = threading.Lock()

    def start(self) -> None:
        """Go on with what an earlier process has left."""
        if len(self.queue):
            self._background.begin()

    def offer(self, place: str) -> None:
        """Have an entry written that a program has just made.

        Args:
            place: in the store, such as "triton/5f0c...".
        """
        if not self.queue.add(place):
            self._count(TierAnswer.UNKEPT, "too many entries wait")
        self._background.begin()

    def write_all(self) -> int:
        """Write everything that waits, now; how many entries are left because the tier failed."""
        persist(self._tier, lambda: self._waiting() > 0, self._round)
        return len(self.queue)

    def close(self) -> None:
        """End at once; what is left is written after the next start. The carrier is closed first."""
        self._background.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._background.join()

    def _waiting(self) -> int:
        return len(self.queue) + self._trail.is_unwritten

    def _round(self) -> bool:
        """Write what waits; False once the tier failed."""
        with self._one_at_a_time:
            places = self.queue.waiting()
            parts = (places[at : at + MOST_STEPS] for at in range(0, len(places), MOST_STEPS))
            return all(map(self._write_part, parts)) and self._write_trail()

    def _write_part(self, places: list[str]) -> bool:
        """Write entries of one trail, and then the trail; False once the tier failed."""
        trail = self._trail.lead_past(map(entry_key, places))
        written = list(self._pool.map(lambda place: self._write(place, trail), places))
        return self._write_trail() and all(written)

    def _write_trail(self) -> bool:
        return self._background.is_ended or self._trail.catch_up(patience_for(0))

    def _write(self, place: str, trail: bytes) -> bool:
        if self._background.is_ended or self._tier.paused_s()[1] > 0:
            return False
        try:
            content = shared_kernels.signed(self._store.folder, place)
        except (OSError, ValueError):  # removed meanwhile, damaged, or of somebody who is no longer trusted
            self.queue.drop(place)
            return True
        blob, stored = packed(content)
        if len(content) > MAX_OBJECT_BYTES:
            self._count(TierAnswer.UNKEPT, "an entry is too large")
            self.queue.drop(place)
            return True
        try:
            is_carried = len(stored) <= MOST_CARRIED_BYTES
            if not is_carried:
                self._tier.put_contents([(blob.sha256.hex(), stored)], patience_for(len(stored)))
            key, writer = entry_key(place), self._signer.public
            name = name_of(Kind.ENTRY, key, writer)
            carried = stored if is_carried else None
            record = EntryRecord(FORMAT, Kind.ENTRY, name, key, writer, int(time.time()), blob, carried, trail)
            entry = sealed(record, self._signer)
            self._tier.put(name.hex(), entry, patience_for(len(entry)))
        except CarrierError:
            return False
        self._trail.named()
        self.queue.drop(place)
        self.written += 1
        self._count(TierAnswer.KEPT)
        return True

    def _count(self, answer: TierAnswer, problem: str = "") -> None:
        self._tier.figures.count(answer, problem)
        self._store.tally.count_reasoned(Reasoned.TIER, answer.value)
