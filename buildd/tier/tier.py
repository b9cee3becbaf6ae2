"""The tier of one process: its carrier behind two breakers, one for reading and one for writing.

Knows the settings and how to ask; knows no record and no store (`fetcher`, `uploader`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from buildd.tier.breaker import Breaker
from buildd.tier.carrier import Carrier, CarrierError, Content, LargeObject, ObjectKind, Patience, Trouble
from buildd.tier.carriers import carrier_of, shown
from buildd.tier.figures import TierAnswer, TierFigures
from buildd.tier.tier_settings import TierSettings

T = TypeVar("T")


class Tier:
    """A tier. Every method may be called from any thread; `get` and `put` raise `CarrierError`.

    Raises `TierError` where the URL leads to no carrier.

    Args:
        renew: gives the settings again, with the writers that are believed now.
    """

    def __init__(
        self,
        settings: TierSettings,
        carrier: Carrier | None = None,
        *,
        renew: Callable[[], TierSettings] | None = None,
        serves_programs: bool = False,
        least_job_s: float = 0.0,
    ) -> None:
        self._renew = renew or (lambda: settings)
        self.serves_programs = serves_programs
        """Programs may ask this process for entries: it is the daemon."""
        self.least_job_s = least_job_s
        """Look-ups may take as long as one for a job of this length, if the job itself is shorter."""
        self.shown = shown(settings.url)
        """Its URL, for people."""
        self.figures = TierFigures()
        self._carrier = carrier_of(settings.url, settings.headers) if carrier is None else carrier
        self._lock = threading.Lock()
        self._reading, self._writing = Breaker(), Breaker()

    @property
    def settings(self) -> TierSettings:
        """The user's settings, with the writers that are believed now."""
        return self._renew()

    def close(self) -> None:
        self._carrier.close()

    def may_be_asked(self) -> bool:
        """Whether a look-up may begin now; after a pause, one look-up finds out whether the tier is well again."""
        with self._lock:
            return self._reading.allows(time.monotonic())

    def may_be_written(self) -> bool:
        """As `may_be_asked`, for an upload."""
        with self._lock:
            return self._writing.allows(time.monotonic())

    def paused_s(self) -> tuple[float, float]:
        """How long nothing is read, and nothing is written, from now on."""
        now_s = time.monotonic()
        with self._lock:
            return self._reading.open_for_s(now_s), self._writing.open_for_s(now_s)

    def get(self, name: str, patience: Patience) -> bytes | None:
        """A record, unchecked; None where there is none."""
        began_s = time.monotonic()
        found = self._attempt(self._reading, lambda: self._carrier.get(ObjectKind.RECORDS, name, patience))
        self.figures.took(time.monotonic() - began_s)
        self.figures.received(len(found or b""))
        return found

    @property
    def kind(self) -> str:
        """What kind of place it is, for people."""
        return self._carrier.words

    @property
    def has_batches(self) -> bool:
        """Whether several objects of `cas/` are best asked for together."""
        return self._carrier.has_batches

    def get_contents(self, wanted: Sequence[Content], patience: Patience) -> list[bytes | None]:
        """Objects of `cas/`, unchecked, each None where there is none."""
        if not wanted:
            return []
        found = self._attempt(self._reading, lambda: self._carrier.get_contents(wanted, patience))
        self.figures.received(sum(len(one or b"") for one in found))
        return found

    def get_ahead(
        self, kind: ObjectKind, name: str, patience: Patience, most_bytes: int, size_bytes: int | None = None
    ) -> bytes | None:
        """An object that no look-up waits for; None where there is none, or where it is large."""

        def work() -> bytes | None:
            try:
                return self._carrier.get(kind, name, patience, most_bytes, size_bytes)
            except LargeObject:
                return None

        found = self._attempt(self._reading, work)
        self.figures.received(len(found or b""))
        return found

    def put(self, name: str, data: bytes, patience: Patience) -> None:
        """Put a record."""
        self._attempt(self._writing, lambda: self._carrier.put(ObjectKind.RECORDS, name, data, patience))

    def put_contents(self, objects: Sequence[tuple[str, bytes]], patience: Patience) -> None:
        """Put objects of `cas/` by their names."""
        if objects:
            self._attempt(self._writing, lambda: self._carrier.put_contents(objects, patience))

    def describe(self, patience: Patience) -> str:
        """What the place says of itself, for people."""
        return self._attempt(self._reading, lambda: self._carrier.describe(patience))

    def too_slow(self) -> CarrierError:
        """Note that an answer which another thread waits for did not come in time; the error to raise."""
        error = CarrierError(Trouble.SLOW)
        self._failed(self._reading, error)
        return error

    def lied(self, why: str) -> None:
        """Note that a blob's bytes were not those of its name: such a tier is not worth its time."""
        self.figures.count(TierAnswer.REFUSED, why)
        with self._lock:
            self._reading.failed(time.monotonic())

    def _attempt(self, breaker: Breaker, work: Callable[[], T]) -> T:
        try:
            found = work()
        except CarrierError as error:
            self._failed(breaker, error)
            raise
        with self._lock:
            breaker.succeeded()
        return found

    def _failed(self, breaker: Breaker, error: CarrierError) -> None:
        self.figures.count(TierAnswer.FAILED, str(error))
        with self._lock:
            breaker.failed(time.monotonic(), at_once=error.trouble in (Trouble.RIGHTS, Trouble.FULL))
