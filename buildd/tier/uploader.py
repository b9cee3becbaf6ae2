"""Writes a store's new results to the tier, in a thread of its own that no build waits for.

It writes the blobs first, then the result, then the record that leads to the result: so a reader that finds the record
finds everything. The record carries a copy of a small result. After all of them it writes the trail (`trail`).

The files that runs of an action read are one object for each writer. Machines that share a key can overwrite each
other's part of it, since most carriers have no conditional put. So each result is looked at again after every put that
was under way must have ended, and is added again where it is gone. Knows no build.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from buildd.errors import BuilddError
from buildd.store.bundled import bundled_files, bundled_inputs, bundled_result
from buildd.store.result_rows import InputSet, Result, raw_of
from buildd.store.signing import Signer
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.background import Background, persist
from buildd.tier.carrier import MAX_OBJECT_BYTES, CarrierError, Patience, for_up_to
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import packed
from buildd.tier.records import (
    FORMAT,
    MOST_CARRIED_BYTES,
    MOST_STEPS,
    Carried,
    InputsRecord,
    Kind,
    RefusedRecord,
    ResultRecord,
    SharedBlob,
    SharedInputs,
    name_of,
    opened,
    sealed,
    within_bounds,
)
from buildd.tier.tier import Tier
from buildd.tier.trail import Trail
from buildd.tier.upload_queue import UploadQueue, Waiting, is_due
from protocol.messages import Digest

THREADS = 4
PUT_S, SILENCE_S = 20.0, 5.0
_HELD_BYTES = 3 << 20
"""Objects that are put together are not larger, unless the last one is."""
SURE_AFTER_S = 2 * PUT_S
"""After so long every read and put that was under way has ended."""


class Uploader:
    """The uploads of one store. `offer` may be called from any thread."""

    def __init__(self, tier: Tier, store: Store, signer: Signer, *, sure_after_s: float = SURE_AFTER_S) -> None:
        self.queue = UploadQueue(store.folder, tier.settings.url)
        self._tier, self._store, self._signer, self._sure_after_s = tier, store, signer, sure_after_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-put")
        self._trail = Trail(tier, signer)
        self._background = Background("tier-uploads", tier, lambda: len(self.queue), self._round)
        self._one_at_a_time = threading.Lock()

    def start(self) -> None:
        """Go on with what an earlier process has left."""
        if len(self.queue):
            self._background.begin()

    def offer(self, first: Digest, key: Digest) -> None:
        """Have a result written that was just stored."""
        if not self.queue.add(key, first):
            self._count(TierAnswer.UNKEPT, "too many results wait")
        self._background.begin()

    def close(self) -> None:
        """End at once; what is left is written after the next start. The carrier is closed first."""
        self._background.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._background.join()

    def write_all(self) -> int:
        """Write everything that waits, now; how many results are left because the tier failed."""
        persist(self._tier, lambda: bool(self._ready()) or self._trail.is_unwritten, self._round)
        return sum(not one.is_written for one in self.queue.waiting())

    # ----------------------------------------------------------------

    def _ready(self) -> list[Waiting]:
        return [one for one in self.queue.waiting() if is_due(one, self._sure_after_s)]

    def _round(self) -> bool:
        """Write what is ready; False once the tier failed."""
        with self._one_at_a_time:
            ready = self._ready()
            return all(self._write_part(ready[at : at + MOST_STEPS]) for at in range(0, len(ready), MOST_STEPS)) and (
                self._write_trail()
            )

    def _write_part(self, ready: list[Waiting]) -> bool:
        """Write results of one trail, and then the trail; False once the tier failed."""
        new = [raw_of(one.first) for one in ready if not one.is_written]
        trail = self._trail.lead_past(new) if new else None
        by_action: dict[Digest, list[Waiting]] = {}
        for one in ready:
            by_action.setdefault(one.first, []).append(one)
        # Results of one action one after another: they share a record.
        written = list(self._pool.map(lambda several: self._write_several(several, trail), by_action.values()))
        return self._write_trail() and all(written)

    def _write_trail(self) -> bool:
        return self._background.is_ended or self._trail.catch_up(patience_for(0))

    def _write_several(self, several: list[Waiting], trail: bytes | None) -> bool:
        for one in several:
            if self._background.is_ended or self._tier.paused_s()[1] > 0:
                return False
            try:
                self._write(one, trail)
            except CarrierError:
                return False
            except BuilddError as error:
                self._count(TierAnswer.UNKEPT, error.message)
                self.queue.drop(one)
        return True

    def _write(self, one: Waiting, trail: bytes | None) -> None:
        with self._store.lease([one.key]):
            result = self._store.result(one.key)
            known = next((each for each in self._store.input_sets(one.first) if each.key == one.key), None)
            if result is None or known is None:  # evicted, or forgotten by the user
                self.queue.drop(one)
                return
            if one.is_written:
                if not self._add_inputs(one, known, lambda: self._gathered(result, lambda *_: None), trail):
                    self.queue.drop(one)
                return
            writing = _ContentWriter(self._tier)
            gathered = self._gathered(result, writing.add)
            if gathered is None:
                self._count(TierAnswer.UNKEPT, "a blob is gone, or too large")
                self.queue.drop(one)
                return
            writing.flush()
            self._write_result(gathered)
            self._add_inputs(one, known, lambda: gathered, trail)
        self.queue.written(one)
        self._count(TierAnswer.KEPT)

    def _gathered(self, result: Result, write: Callable[[SharedBlob, bytes], None]) -> Carried | None:
        """A result with its blobs, each given to `write`, and with their objects where these are small.

        None where a blob is gone, or too large.
        """
        blobs: list[SharedBlob] = []
        objects: list[bytes] = []
        bytes_left = MOST_CARRIED_BYTES
        for digest in result.digests():
            size = self._store.blobs.size_bytes(digest)
            content = self._store.get(digest) if size is not None and size <= MAX_OBJECT_BYTES else None
            if content is None:
                return None
            blob, stored = packed(content)
            write(blob, stored)
            blobs.append(blob)
            bytes_left -= len(stored)
            objects = [*objects, stored] if bytes_left >= 0 else []
        return Carried(bundled_result(result, []), blobs, objects)

    def _write_result(self, gathered: Carried) -> None:
        key, writer = gathered.result.key, self._signer.public
        name = name_of(Kind.RESULT, key, writer)
        record = ResultRecord(FORMAT, Kind.RESULT, name, writer, int(time.time()), gathered.result, gathered.blobs)
        self._tier.put(name.hex(), sealed(record, self._signer), patience_for(0))

    def _add_inputs(
        self, one: Waiting, known: InputSet, gathered: Callable[[], Carried | None], trail: bytes | None
    ) -> bool:
        """Add what led to a result to what is known of its action; False where it was there.

        Args:
            gathered: the result; it is carried along where it has objects.
            trail: the trail that it is on.
        """
        first, writer = raw_of(one.first), self._signer.public
        name = name_of(Kind.INPUTS, first, writer)
        sets: list[SharedInputs] = []
        entry = self._tier.get(name.hex(), patience_for(0))
        if entry is not None:
            try:
                there = opened(entry, InputsRecord, Kind.INPUTS, first, writer)
                sets, trail = there.sets, trail or there.trail
            except RefusedRecord as why:  # damaged, or somebody else's: it is replaced
                self._tier.figures.count(TierAnswer.REFUSED, f"replaced an entry: {why}")
        key = raw_of(one.key)
        mine = SharedInputs(key, list(bundled_files(known)), bundled_inputs(first, 0, known))
        if any(msgspec.structs.replace(each, carried=None) == mine for each in sets if each.key == key):
            return False
        carried = gathered()
        if carried is not None and carried.objects:
            mine = msgspec.structs.replace(mine, carried=carried)
        sets = within_bounds([mine, *(each for each in sets if each.key != key)])
        record = InputsRecord(FORMAT, Kind.INPUTS, name, first, writer, int(time.time()), sets, trail)
        self._tier.put(name.hex(), sealed(record, self._signer), patience_for(0))
        self._trail.named()
        return True

    def _count(self, answer: TierAnswer, problem: str = "") -> None:
        self._tier.figures.count(answer, problem)
        self._store.tally.count_reasoned(Reasoned.TIER, answer.value)


class _ContentWriter:
    """Puts objects of `cas/`: several in one round trip where the tier takes batches."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._held: list[tuple[str, bytes]] = []
        self._bytes = 0

    def add(self, blob: SharedBlob, stored: bytes) -> None:
        """Put an object now or with later ones. Raises `CarrierError`."""
        self._held.append((blob.sha256.hex(), stored))
        self._bytes += len(stored)
        if not self._tier.has_batches or self._bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put what is held. Raises `CarrierError`."""
        held, size_bytes, self._held, self._bytes = self._held, self._bytes, [], 0
        self._tier.put_contents(held, patience_for(size_bytes))


def patience_for(size_bytes: int) -> Patience:
    """Longer for large objects: a megabyte may take a second."""
    return for_up_to(PUT_S + size_bytes / 1e6, SILENCE_S)
