"""Programs' entries in the tier, for one store: the door at which programs ask, look-ups and uploads; and measurements,
which commands ask for at the same door.

Learns how long programs take to make their entries, since nobody should wait for the tier for longer. Knows no record.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path

from buildd.hooks import inductor_cache, jax_cache, triton_cache
from buildd.store.shared_kernels import CCACHE
from buildd.store.store import Store
from buildd.tier.door import Door
from buildd.tier.entry_fetcher import EntryFetcher
from buildd.tier.entry_uploader import EntryUploader
from buildd.tier.fetcher import waits_s
from buildd.tier.profile_exchange import ProfileExchange
from buildd.tier.tier import Tier

_USUAL_S = {triton_cache.FOLDER: 1.0, inductor_cache.FOLDER: 5.0, jax_cache.FOLDER: 1.0, CCACHE: 2.0}
"""How long an entry of each kind takes to make, until programs of this daemon's user have told."""
_WEIGHT = 0.1
"""The part that the newest time has in the mean."""
_log = logging.getLogger(__name__)


class ProgramEntries:
    """The entries and the measurements of one store. Every method may be called from any thread.

    Args:
        queues: the folder of the store's queues for this tier; None where nothing is written.
    """

    def __init__(self, tier: Tier, store: Store, queues: Path | None) -> None:
        self.fetcher = EntryFetcher(tier, store)
        signer = tier.settings.signer
        self.uploader = EntryUploader(tier, store, signer, queues) if signer is not None and queues else None
        self.profiles = ProfileExchange(tier, store)
        self._usual_s = dict(_USUAL_S)
        self._lock = threading.Lock()
        self._door: Door | None = None
        if tier.serves_programs and not store.read_only:
            try:
                self._door = Door(store.folder, self._begin, self._made, self.profiles.begin, self.profiles.measured)
            except OSError as error:  # on some network file systems there are no sockets
                _log.warning("programs cannot ask the tier: %s: %s", store.folder, error.strerror)

    @property
    def waiting(self) -> int:
        """How many entries are still to be written."""
        return len(self.uploader.queue) if self.uploader is not None else 0

    def start(self) -> None:
        """Go on with what an earlier process has left."""
        if self.uploader is not None:
            self.uploader.start()

    def rest(self) -> None:
        """Give memory back."""
        self.fetcher.rest()

    def close(self) -> None:
        """End everything; the tier is closed before."""
        if self._door is not None:
            self._door.close()
        self.fetcher.close()
        self.profiles.close()
        if self.uploader is not None:
            self.uploader.close()

    def _begin(self, place: str) -> tuple[Future[bool], float] | None:
        expected_s = self._usual_s[_kind(place)]
        looking = self.fetcher.begin(place, expected_s)
        return None if looking is None else (looking, waits_s(expected_s))

    def _made(self, place: str, seconds: float) -> None:
        if seconds > 0:
            with self._lock:
                kind = _kind(place)
                self._usual_s[kind] += (seconds - self._usual_s[kind]) * _WEIGHT
        if self.uploader is not None:
            self.uploader.offer(place)


def _kind(place: str) -> str:
    return place.partition("/")[0]
