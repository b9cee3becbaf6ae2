"""Fetches results from the tier into one store, in threads of its own.

The local look-up stays the judge: a fetched result is filed in the store as an imported one is, under what the run
read, and the caller looks again. Equal questions at one time are one question to the tier. Knows no action and no file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from buildd.errors import StoreError
from buildd.store.batch import Batch
from buildd.store.bundled import input_set_of, result_of
from buildd.store.result_rows import InputSet, raw_of
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.carrier import CarrierError, ObjectKind, Patience
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import content_of
from buildd.tier.records import (
    InputsRecord,
    Kind,
    RefusedRecord,
    ResultRecord,
    SharedBlob,
    SharedInputs,
    name_of,
    opened,
    problem_of_result,
)
from buildd.tier.tier import Tier
from protocol.messages import Digest

THREADS = 32
"""Look-ups at once; each waits for the tier most of its time."""
_SHARE = 1 / 20
"""The tier may be silent for this part of the time that the job would take."""
_LEAST_SILENCE_S, _MOST_SILENCE_S = 0.3, 5.0
_LEAST_S, _MOST_S = 0.5, 60.0
_ROUND_TRIPS = 3
"""What a hit takes: what runs read, the result, the blobs."""

_log = logging.getLogger(__name__)
Fits = Callable[[InputSet], bool]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A result that is in the store now."""

    key: Digest
    words: str = ""
    """Where it came from, for people; empty where it was in the store by the time that the tier was to be asked."""


class Fetcher:
    """Look-ups in the tier for one store. Every method may be called from any thread."""

    def __init__(self, tier: Tier, store: Store) -> None:
        self._tier = tier
        self._store = store
        self._asking = ThreadPoolExecutor(THREADS, thread_name_prefix="tier")
        self._carrying = ThreadPoolExecutor(THREADS, thread_name_prefix="tier-get")
        self._lock = threading.Lock()
        self._open: dict[Digest, Future[Fetched | None]] = {}

    def begin(self, first: Digest, fits: Fits, expected_s: float) -> Future[Fetched | None] | None:
        """Begin a look-up; None where asking is not worth it.

        Args:
            first: the first-level key that missed in the store.
            fits: whether the files of now are those of an input set.
            expected_s: how long the job would take: nobody should wait for the tier for longer.
        """
        if self._store.read_only or not self._tier.settings.believed:
            return None
        if expected_s < _ROUND_TRIPS * self._tier.figures.usual_s:
            return None
        with self._lock:
            if (known := self._open.get(first)) is not None:
                return known
            if not self._tier.may_be_asked():
                return None
            silence_s = min(_MOST_SILENCE_S, max(_LEAST_SILENCE_S, expected_s * _SHARE))
            try:
                future = self._asking.submit(self._answer, first, fits, silence_s, waits_s(expected_s))
            except RuntimeError:  # the store is being closed
                return None
            self._open[first] = future
        future.add_done_callback(lambda _: self._open.pop(first, None))
        return future

    def close(self) -> None:
        """Take no more questions. Those under way end when the carrier is closed."""
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._carrying.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------------

    def _answer(self, first: Digest, fits: Fits, silence_s: float, total_s: float) -> Fetched | None:
        answer = TierAnswer.ABSENT
        try:
            if (meanwhile := self._found_meanwhile(first, fits)) is not None:
                return meanwhile
            found = self._fetch(raw_of(first), fits, Patience(silence_s, time.monotonic() + total_s))
            if found is not None:
                answer = TierAnswer.HIT
        except CarrierError:
            return self._counted(TierAnswer.FAILED, None, told=True)
        except StoreError as error:
            return self._counted(TierAnswer.FAILED, None, problem=error.message)
        except Exception:  # the edge: no fault of the tier may reach a build
            _log.exception("a look-up in the tier failed inside")
            return self._counted(TierAnswer.FAILED, None, problem="a look-up failed inside; the log has the story")
        return self._counted(answer, found)

    def _found_meanwhile(self, first: Digest, fits: Fits) -> Fetched | None:
        """What an equal question that has just been answered, or a run, has put into the store."""
        for known in self._store.input_sets(first):
            if self._store.result(known.key) is not None and fits(known):
                return Fetched(known.key)
        return None

    def _counted(
        self, answer: TierAnswer, found: Fetched | None, *, told: bool = False, problem: str = ""
    ) -> Fetched | None:
        if not told:
            self._tier.figures.count(answer, problem)
        self._store.tally.count_reasoned(Reasoned.TIER, answer.value)
        return found

    def _refuse(self, why: str) -> None:
        self._tier.figures.count(TierAnswer.REFUSED, f"refused an entry: {why}")
        self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)

    def _fetch(self, first: bytes, fits: Fits, patience: Patience) -> Fetched | None:
        writers = self._tier.settings.believed
        names = [(ObjectKind.RECORDS, name_of(Kind.INPUTS, first, writer)) for writer, _ in writers]
        for (writer, owner), entry in zip(writers, self._objects(names, patience), strict=True):
            if entry is None:
                continue
            try:
                record = opened(entry, InputsRecord, Kind.INPUTS, first, writer)
                for led in record.sets:
                    if self._leads(led, first, fits) and self._take(led, first, writer, patience):
                        words = f"the tier {self._tier.shown}, written by {owner or writer.hex()[:16]}"
                        return Fetched(Digest(led.key.hex()), words)
            except RefusedRecord as why:
                self._refuse(str(why))
        return None

    def _leads(self, led: SharedInputs, first: bytes, fits: Fits) -> bool:
        if led.inputs.first != first:
            raise RefusedRecord("its inputs are of another action")
        try:
            return fits(input_set_of(led.key, led.inputs, led.files))
        except ValueError:  # a path with a zero byte, for example
            raise RefusedRecord("it names impossible files") from None

    def _take(self, led: SharedInputs, first: bytes, writer: bytes, patience: Patience) -> bool:
        """Put the result that these inputs lead to into the store. Raises `RefusedRecord`, `CarrierError`."""
        name = name_of(Kind.RESULT, led.key, writer)
        (entry,) = self._objects([(ObjectKind.RECORDS, name)], patience)
        if entry is None:
            return False
        record = opened(entry, ResultRecord, Kind.RESULT, led.key, writer)
        if why := problem_of_result(record, led):
            raise RefusedRecord(why)
        if sum(blob.size for blob in record.blobs) > self._store.limit_bytes:
            raise RefusedRecord("it is larger than the store may be")
        lacking = [blob for blob in record.blobs if not self._store.has(Digest(blob.digest.hex()))]
        objects = self._objects([(ObjectKind.CONTENT, blob.sha256) for blob in lacking], patience)
        with Batch() as batch:
            for blob, stored in zip(lacking, objects, strict=True):
                if stored is None or not self._put(blob, stored, batch):
                    return False
            result = result_of(record.result, time.time_ns())
            self._store.publish(Digest(first.hex()), input_set_of(led.key, led.inputs, led.files), result, batch)
        return True

    def _put(self, blob: SharedBlob, stored: bytes, batch: Batch) -> bool:
        content = content_of(blob, stored)
        if content is None:
            self._tier.lied("a blob was not what its name says")
            self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)
            return False
        self._store.put_bytes(content, batch)
        return True

    def _objects(self, names: list[tuple[ObjectKind, bytes]], patience: Patience) -> Iterable[bytes | None]:
        """The objects, asked for at once. Raises `CarrierError` where one cannot be had."""
        if len(names) == 1:
            return [self._tier.get(names[0][0], names[0][1].hex(), patience)]
        return list(self._carrying.map(lambda one: self._tier.get(one[0], one[1].hex(), patience), names))


def waits_s(expected_s: float) -> float:
    """How long a job waits for the tier: what it would take itself, within bounds."""
    return min(_MOST_S, max(_LEAST_S, expected_s))
