"""The trail that an uploader leaves: which actions' results, or which entries, it wrote one after another.

Readers follow it (`read_ahead`). A trail is written whole each time that it has grown; it ends after a pause, because
the next build has little to do with the last one. Knows no result and no entry.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from buildd.store.signing import Signer
from buildd.tier.carrier import CarrierError, Patience
from buildd.tier.records import FORMAT, MOST_STEPS, Kind, TrailRecord, name_of, sealed
from buildd.tier.tier import Tier

PAUSE_S = 60.0
"""A trail ends when nothing was added to it for so long."""


class Trail:
    """The trail of one uploader. One thread at a time may use it."""

    def __init__(self, tier: Tier, signer: Signer) -> None:
        self._tier, self._signer = tier, signer
        self._key = b""
        self._firsts: dict[bytes, None] = {}
        self._grown_s = 0.0
        self._is_named = self._is_whole = False
        """A record in the tier names it; the tier has all of it."""

    def lead_past(self, firsts: Iterable[bytes]) -> bytes:
        """Lead the trail past some actions or entries, in this order; the key that their records name.

        Args:
            firsts: first-level keys, or keys of entries, at most `MOST_STEPS`.
        """
        new = dict.fromkeys(firsts)
        now_s = time.monotonic()
        if not self._key or now_s - self._grown_s > PAUSE_S or len({**self._firsts, **new}) > MOST_STEPS:
            self._key, self._firsts, self._is_named = os.urandom(32), {}, False
        self._firsts |= new
        self._grown_s, self._is_whole = now_s, False
        return self._key

    def named(self) -> None:
        """Note that a record that names it was written. From any thread."""
        self._is_named = True

    @property
    def is_unwritten(self) -> bool:
        """Whether a reader could look for it, and would find less of it than there is."""
        return self._is_named and not self._is_whole

    def catch_up(self, patience: Patience) -> bool:
        """Write it to the tier if it is unwritten; False where the tier failed."""
        if self.is_unwritten:
            try:
                self._write(patience)
            except CarrierError:
                return False
        return True

    def _write(self, patience: Patience) -> None:
        name = name_of(Kind.TRAIL, self._key, self._signer.public)
        record = TrailRecord(
            FORMAT, Kind.TRAIL, name, self._key, self._signer.public, int(time.time()), list(self._firsts)
        )
        self._tier.put(name.hex(), sealed(record, self._signer), patience)
        self._is_whole = True
