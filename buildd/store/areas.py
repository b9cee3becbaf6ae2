"""Areas: what a store keeps beside its results, such as shims' answers, Triton's kernels and learned times.

Each module that keeps something gives one area, and `store` puts the areas together. Garbage collection, verification,
figures and `buildd cache` treat all areas alike and know none by name. Bundles are not part of it: their format names
what they carry.
"""

from __future__ import annotations

import msgspec


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of an area."""

    entries: int
    bytes: int = 0
    """Size of the area's files, which the store's own size does not include; 0 for rows of the index."""
    note: str = ""
    """For people, printed behind the number of entries."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the verification of an area read and found."""

    entries: int = 0
    removed: int = 0
    """Damaged entries; buildd makes them again when they are needed."""
    repaired: int = 0
    """Damaged entries that were made again at once."""


class Area:
    """Entries of one kind that a store keeps beside its results. What an area does not override does nothing."""

    name: str
    """A noun in the plural: the area's key in `--json`, and its line in `buildd cache stats`."""

    def settle(self) -> None:
        """Count in the store what has only been noted so far; called before figures are read."""

    def held(self) -> Held | None:
        """The area's figures now; None for an area that has no figures."""
        return None

    def trim(self, limit_bytes: int) -> None:
        """Remove the least recently used entries down to the area's bound.

        Args:
            limit_bytes: the store's bound; an area of files takes its share of it.
        """

    def verify(self) -> Checked:
        """Read all entries, and remove or repair the damaged ones; where nothing may be written, only count them."""
        return Checked()

    def flush(self, *, everything: bool) -> None:
        """Drop what `buildd cache flush` drops.

        Args:
            everything: False where only the results of some actions are dropped.
        """
