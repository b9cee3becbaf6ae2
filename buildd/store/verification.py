"""Verification of a store: reads everything, checks it against digests and checksums, removes what is damaged.

A store that may not be written is only read. Knows no key and no build, and no area by name.
"""

from __future__ import annotations

import msgspec

from buildd.store import garbage_collection
from buildd.store.areas import Checked
from buildd.store.database import Database
from buildd.store.parts import Parts
from buildd.store.result_rows import decode_result
from buildd.store.values import decoded


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found. Damaged entries have been removed or repaired, unless the store is read-only."""

    blobs: int = 0
    bad_blobs: int = 0
    results: int = 0
    bad_results: int = 0
    """Results that are damaged, or lack one of their blobs."""
    areas: dict[str, Checked] = {}
    """Name -> what was found in an area that has entries."""
    orphans: int = 0
    """Files without a row in the index."""
    foreign: tuple[str, ...] = ()
    """Files in the blobs' folder that buildd did not write; they are left alone."""
    index_problems: tuple[str, ...] = ()
    read_only: bool = False
    """The store may not be written, so everything stays as it was found."""

    @property
    def removed(self) -> dict[str, int]:
        """Name -> how many damaged entries were removed; names without any are left out."""
        counts = {"blobs": self.bad_blobs, "results": self.bad_results}
        counts |= {name: found.removed for name, found in self.areas.items()}
        return {name: count for name, count in counts.items() if count}

    @property
    def repaired(self) -> dict[str, int]:
        """Name -> how many damaged entries were made again; names without any are left out."""
        return {name: found.repaired for name, found in self.areas.items() if found.repaired}

    @property
    def is_sound(self) -> bool:
        return not (self.removed or self.repaired or self.index_problems)


def verify(store: Parts) -> Verified:
    """Read everything, check it against its digests and checksums, and remove what is bad."""
    database = store.database
    store.tally.flush(wait=True)
    problems = tuple(text for row in database.rows("PRAGMA integrity_check(20)") if (text := decoded(row[0])) != "ok")
    names = [row[0] for row in database.rows("SELECT digest FROM blobs ORDER BY digest")]
    bad_blobs = sum(not store.blobs.is_sound(raw) and (store.read_only or store.blobs.drop_bad(raw)) for raw in names)
    rows = database.rows(
        "SELECT key, body, (SELECT count(*) FROM refs WHERE refs.key = results.key AND NOT EXISTS"
        " (SELECT 1 FROM blobs WHERE blobs.digest = refs.digest)) FROM results"
    )
    bad_results = [key for key, body, gone in rows if gone or not _is_whole(database, key, body)]
    orphans, foreign = 0, tuple[str, ...]()
    if not store.read_only:
        garbage_collection.delete_results(store, bad_results, leased_too=True)
        orphans, foreign = garbage_collection.drop_orphans(store)
    checked = {area.name: area.verify() for area in store.areas}
    if not store.read_only:
        garbage_collection.drop_lists(database)
        garbage_collection.recount(database)
    return Verified(
        blobs=len(names),
        bad_blobs=bad_blobs,
        results=len(rows),
        bad_results=len(bad_results),
        areas={name: found for name, found in checked.items() if found.entries},
        orphans=orphans,
        foreign=foreign,
        index_problems=problems,
        read_only=store.read_only,
    )


def _is_whole(database: Database, key: object, body: object) -> bool:
    """Whether a result's row is sound and its references are those of its body."""
    result = decode_result(key, body) if isinstance(key, bytes) else None
    if result is None:
        return False
    rows = database.rows("SELECT digest FROM refs WHERE key = ?", (key,))
    return {row[0] for row in rows} == {bytes.fromhex(digest) for digest in result.digests()}
