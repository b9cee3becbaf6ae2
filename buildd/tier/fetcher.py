"""Fetches results from the tier into one store, in threads of its own.

The local look-up stays the judge: a fetched result is filed in the store as an imported one is, under what the run
read, and the caller looks again. Equal questions at one time are one question to the tier. Knows no action and no file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from buildd.errors import StoreError
from buildd.store.batch import Batch
from buildd.store.bundled import input_set_of, result_of
from buildd.store.result_rows import InputSet, raw_of
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.carrier import CarrierError, Content, Patience
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import content_of
from buildd.tier.read_ahead import ReadAhead
from buildd.tier.records import (
    Carried,
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
"""What a hit takes where the result is large: what runs read, the result, the blobs."""

_log = logging.getLogger(__name__)
Fitting = Callable[[InputSet], InputSet | None]
T = TypeVar("T")


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
        self._ahead = ReadAhead(tier, self._unknown)
        self._lock = threading.Lock()
        self._open: dict[Digest, Future[Fetched | None]] = {}

    def begin(self, first: Digest, fitting: Fitting, expected_s: float) -> Future[Fetched | None] | None:
        """Begin a look-up; None where asking is not worth it.

        Args:
            first: the first-level key that missed in the store.
            fitting: gives an input set back, with this machine's stamps, if the files of now are its files.
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
            try:
                future = self._asking.submit(self._answer, first, fitting, patience_of(expected_s))
            except RuntimeError:  # the store is being closed
                return None
            self._open[first] = future
        future.add_done_callback(lambda _: self._open.pop(first, None))
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

    def _answer(self, first: Digest, fitting: Fitting, patience: Callable[[], Patience]) -> Fetched | None:
        answer = TierAnswer.ABSENT
        try:
            if (meanwhile := self._found_meanwhile(first, fitting)) is not None:
                return meanwhile
            found = self._fetch(raw_of(first), fitting, patience())
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

    def _found_meanwhile(self, first: Digest, fitting: Fitting) -> Fetched | None:
        """What an equal question that has just been answered, or a run, has put into the store."""
        for known in self._store.input_sets(first):
            if self._store.result(known.key) is not None and fitting(known) is not None:
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

    def _fetch(self, first: bytes, fitting: Fitting, patience: Patience) -> Fetched | None:
        named = [(writer, owner, name_of(Kind.INPUTS, first, writer)) for writer, owner in self._tier.settings.believed]
        near = [one for one in named if self._ahead.is_near(one[2])]
        # What was read ahead costs no round trip. Mostly it has the result, and then no other writer is asked.
        for several in (near, [one for one in named if one not in near]):
            entries = self._at_once(lambda one: self._ahead.get(one[2], patience), several)
            for (writer, owner, _), entry in zip(several, entries, strict=True):
                if entry is not None and (key := self._taken(entry, first, writer, fitting, patience)) is not None:
                    return Fetched(key, f"the tier {self._tier.shown}, written by {owner or writer.hex()[:16]}")
        return None

    def _taken(self, entry: bytes, first: bytes, writer: bytes, fitting: Fitting, patience: Patience) -> Digest | None:
        """The key of a result in or behind a record that is in the store now. Raises `CarrierError`."""
        try:
            record = opened(entry, InputsRecord, Kind.INPUTS, first, writer)
            for led in record.sets:
                known = self._leading(led, first, fitting)
                if known is not None:
                    if record.trail is not None:
                        self._ahead.follow(record.trail, first, writer, patience.silence_s)
                    if self._take(led, known, first, writer, patience):
                        return known.key
        except RefusedRecord as why:
            self._refuse(str(why))
        return None

    def _leading(self, led: SharedInputs, first: bytes, fitting: Fitting) -> InputSet | None:
        if led.inputs.first != first:
            raise RefusedRecord("its inputs are of another action")
        try:
            return fitting(input_set_of(led.key, led.inputs, self._store.known_files(led.files)))
        except ValueError:  # a path with a zero byte, for example
            raise RefusedRecord("it names impossible files") from None

    def _take(self, led: SharedInputs, known: InputSet, first: bytes, writer: bytes, patience: Patience) -> bool:
        """Put the result that these inputs lead to into the store. Raises `RefusedRecord`, `CarrierError`."""
        found = led.carried or self._alone(led, writer, patience)
        if found is None:
            return False
        if why := problem_of_result(found.result, found.blobs, led):
            raise RefusedRecord(why)
        if sum(blob.size for blob in found.blobs) > self._store.limit_bytes:
            raise RefusedRecord("it is larger than the store may be")
        lacking = [blob for blob in found.blobs if not self._store.has(Digest(blob.digest.hex()))]
        with Batch() as batch:
            for blob, stored in zip(lacking, self._objects(lacking, found, patience), strict=True):
                content = None if stored is None else content_of(blob, stored)
                if content is None:
                    if found.objects:
                        raise RefusedRecord("it carries other bytes than it names")
                    if stored is not None:
                        self._tier.lied("a blob was not what its name says")
                        self._store.tally.count_reasoned(Reasoned.TIER, TierAnswer.REFUSED.value)
                    return False
                self._store.put_bytes(content, batch)
            self._store.publish(Digest(first.hex()), known, result_of(found.result, time.time_ns()), batch)
        return True

    def _alone(self, led: SharedInputs, writer: bytes, patience: Patience) -> Carried | None:
        """A result from its own record, without objects."""
        entry = self._tier.get(name_of(Kind.RESULT, led.key, writer).hex(), patience)
        if entry is None:
            return None
        record = opened(entry, ResultRecord, Kind.RESULT, led.key, writer)
        return Carried(record.result, record.blobs, [])

    def _objects(self, blobs: list[SharedBlob], found: Carried, patience: Patience) -> Iterable[bytes | None]:
        """The blobs' objects: those that came with the result, or those of `cas/`. Raises as `_take`."""
        if found.objects:
            if len(found.objects) != len(found.blobs):
                raise RefusedRecord("it carries other blobs than it names")
            carried = dict(zip((blob.digest for blob in found.blobs), found.objects, strict=True))
            return [carried[blob.digest] for blob in blobs]
        wanted = [Content(blob.sha256.hex(), blob.stored) for blob in blobs]
        if self._tier.has_batches:
            return self._tier.get_contents(wanted, patience)
        return self._at_once(lambda one: self._tier.get_contents([one], patience)[0], wanted)

    def _at_once(self, get: Callable[[T], bytes | None], wanted: list[T]) -> Iterable[bytes | None]:
        """Objects that are asked for at once. Raises `CarrierError` where one cannot be had."""
        return map(get, wanted) if len(wanted) < 2 else list(self._carrying.map(get, wanted))

    def _unknown(self, firsts: Collection[bytes]) -> Collection[bytes]:
        """Those actions, by their first-level keys, of which the store knows no run."""
        marks = ",".join("?" * len(firsts))
        try:
            rows = self._store.database.rows(f"SELECT first FROM input_sets WHERE first IN ({marks})", tuple(firsts))
        except StoreError:  # it is being closed
            return ()
        return {*firsts} - {first for (first,) in rows}


def patience_of(expected_s: float) -> Callable[[], Patience]:
    """Begins the patience with the tier of a job that would take so long, when the tier is asked."""
    silence_s = min(_MOST_SILENCE_S, max(_LEAST_SILENCE_S, expected_s * _SHARE))
    return lambda: Patience(silence_s, time.monotonic() + waits_s(expected_s))


def waits_s(expected_s: float) -> float:
    """How long a job waits for the tier: what it would take itself, within bounds."""
    return min(_MOST_S, max(_LEAST_S, expected_s))
