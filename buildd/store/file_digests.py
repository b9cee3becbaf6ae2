"""File digests that the store remembers by stamp, from one process to the next.

Knows no path and trusts no stamp: `files` decides whether a row still describes a file.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence

from buildd.store.areas import Area, Held
from buildd.store.database import Database

MOST_ROWS = 300_000
_TRIM_EVERY_TICKS = 64
_MANY_ROWS = 10_000
_ROW = struct.Struct("<qqq32sQ")
_BARE_BYTES = 64
_CHECK = struct.Struct("<I")
_KEY = struct.Struct("<qq")


DigestRow = tuple[int, int, int, int, int, bytes, int, bytes]
"""Device, inode, size in bytes, mtime and ctime in ns, digest (32 bytes), traits (64 bits that are the caller's),
digests of bare forms (64 bytes or none)."""


class Digests:
    """The remembered file digests of one store. Every method may be called from any thread."""

    def __init__(self, database: Database, next_tick: Callable[[sqlite3.Connection], int]) -> None:
        self._database = database
        self._next_tick = next_tick

    def load(self) -> list[DigestRow]:
        """Every remembered row that is sound."""
        return _unpacked(self._database.rows("SELECT device, inode, value FROM digests"))

    def find(self, files: Sequence[tuple[int, int]]) -> dict[tuple[int, int], DigestRow]:
        """The remembered rows of these (device, inode) pairs; one query a device."""
        by_device: dict[int, list[int]] = {}
        for device, inode in files:
            by_device.setdefault(device, []).append(_signed(inode))
        found: list[DigestRow] = []
        for device, inodes in by_device.items():
            # As JSON, because a statement takes few parameters and a build has tens of thousands of files.
            found += _unpacked(
                self._database.rows(
                    "SELECT d.device, d.inode, d.value FROM json_each(?) AS j"
                    " CROSS JOIN digests AS d ON d.device = ? AND d.inode = j.value",
                    (json.dumps(inodes), _signed(device)),
                )
            )
        return {(row[0], row[1]): row for row in found}

    def save(self, rows: Iterable[DigestRow]) -> None:
        """Remember rows, replacing those of the same files; one transaction."""
        packed = [(_signed(row[0]), _signed(row[1]), _pack(row)) for row in rows]
        if not packed or self._database.read_only:
            return

        def work(connection: sqlite3.Connection) -> None:
            tick = self._next_tick(connection)
            connection.executemany(
                "INSERT OR REPLACE INTO digests (device, inode, used, value) VALUES (?, ?, ?, ?)",
                [(device, inode, tick, value) for device, inode, value in packed],
            )
            if tick % _TRIM_EVERY_TICKS == 0 or len(packed) >= _MANY_ROWS:
                trim(connection)

        self._database.transact(work)


class DigestArea(Area):
    """The rows of the file digests."""

    name = "digests"

    def __init__(self, database: Database) -> None:
        self._database = database

    def held(self) -> Held:
        return Held(
            entries=self._database.count("digests"),
            note="files that need not be read again while they stay as they are",
        )

    def trim(self, limit_bytes: int) -> None:
        self._database.transact(trim)

    def flush(self, *, everything: bool) -> None:
        if everything:
            self._database.transact(lambda connection: connection.execute("DELETE FROM digests"))


def trim(connection: sqlite3.Connection) -> None:
    """Drop the oldest rows down to the bound."""
    connection.execute(
        "DELETE FROM digests WHERE rowid IN (SELECT rowid FROM digests ORDER BY used DESC LIMIT -1 OFFSET ?)",
        (MOST_ROWS,),
    )


def _signed(number: int) -> int:
    # SQLite's integers are signed; inode numbers of some file systems use all 64 bits.
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _pack(row: DigestRow) -> bytes:
    body = _ROW.pack(*row[2:7]) + row[7]
    return body + _CHECK.pack(zlib.crc32(body, zlib.crc32(_KEY.pack(_signed(row[0]), _signed(row[1])))))


def _unpacked(rows: list[tuple[int, int, bytes]]) -> list[DigestRow]:
    sound: list[DigestRow] = []
    least, mask = _ROW.size + _CHECK.size, (1 << 64) - 1
    for device, inode, value in rows:
        if not (isinstance(value, bytes) and len(value) in (least, least + _BARE_BYTES) and isinstance(device, int)):
            continue
        if not isinstance(inode, int):
            continue
        body = value[:-4]
        if zlib.crc32(body, zlib.crc32(_KEY.pack(device, inode))).to_bytes(4, "little") == value[-4:]:
            size, mtime_ns, ctime_ns, digest, traits = _ROW.unpack_from(body)
            row = (device & mask, inode & mask, size, mtime_ns, ctime_ns, digest, traits, body[_ROW.size :])
            sound.append(row)
    return sound
