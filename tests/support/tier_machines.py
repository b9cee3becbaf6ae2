"""A daemon's side of a store with a tier, in this process: what programs and commands ask at the store's door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from buildd.store.signing import Signer
from buildd.store.store import Store
from buildd.tier.figures import TierAnswer
from buildd.tier.store_tier import StoreTier
from buildd.tier.tier import Tier
from buildd.tier.tier_settings import TierSettings
from tests.support.tiers import ALICE


class TierMachine:
    """A store, and what a daemon has beside it.

    Args:
        folder: the store's; made if it is not there.
    """

    def __init__(self, folder: Path, tier: Tier) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder, self.tier, self.store = str(folder), tier, Store.open(folder)
        self.beside = StoreTier(tier, self.store)

    def count(self, answer: TierAnswer) -> int:
        return self.tier.figures.counts()[answer]

    def close(self) -> None:
        self.tier.close()
        self.beside.close()
        self.store.close()


M = TypeVar("M", bound=TierMachine)


def serving_tier(url: str, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)) -> Tier:
    """A tier that programs may ask."""
    names = tuple((signer.public, "alice") for signer in believes)
    return Tier(TierSettings(url, names, writer), serves_programs=True)


@contextmanager
def serving(
    kind: type[M], folder: Path, url: str, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)
) -> Iterator[M]:
    """A machine whose tier programs may ask, until the end of the block."""
    with closing(kind(folder, serving_tier(url, writer, believes))) as made:
        yield made
