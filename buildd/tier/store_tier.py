"""The tier as one store uses it: what builds ask for, and what they offer.

Knows no build; `builds.shared_results` decides which actions take part.
"""

from __future__ import annotations

from buildd.store.store import Store
from buildd.tier.fetcher import Fetcher
from buildd.tier.figures import TierAnswer
from buildd.tier.program_entries import ProgramEntries
from buildd.tier.tier import Tier
from buildd.tier.uploader import Uploader


class StoreTier:
    """The tier of one process, beside one of its stores."""

    def __init__(self, tier: Tier, store: Store) -> None:
        self.tier = tier
        self.fetcher = Fetcher(tier, store)
        signer = tier.settings.signer
        self.uploader = Uploader(tier, store, signer) if signer is not None and not store.read_only else None
        self.entries = ProgramEntries(tier, store, self.uploader.queue.folder if self.uploader is not None else None)
        """Kernels, graphs and programs that users' programs keep beside the results."""
        if self.uploader is not None:
            self.uploader.start()
        self.entries.start()

    @property
    def waiting(self) -> int:
        """How many results are still to be written, or to be looked at once more, and entries to be written."""
        return (len(self.uploader.queue) if self.uploader is not None else 0) + self.entries.waiting

    def count_late(self) -> None:
        """Note that a build did not wait for an answer."""
        self.tier.figures.count(TierAnswer.LATE)

    def rest(self) -> None:
        """Give memory back, while nothing is being built."""
        self.fetcher.rest()
        self.entries.rest()

    def close(self) -> None:
        """End everything; the tier is closed before."""
        self.entries.close()
        self.fetcher.close()
        if self.uploader is not None:
            self.uploader.close()
