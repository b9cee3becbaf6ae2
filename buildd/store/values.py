"""Named values in the index, each stored with a checksum over its name and its bytes.

Does not know what a value means. A flipped byte anywhere in a row makes the value absent, never different.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from enum import Enum

import zstandard
from blake3 import blake3

from buildd.store.areas import Area, Checked, Held
from buildd.store.database import Database
from protocol.messages import Digest

MAX_VALUE_BYTES = 256 << 20
TRIM_EVERY_TICKS = 256
"""About one in so many writes trims the tables that have a bound of their own."""
_CHECK_BYTES = 16
_COMPRESS_ABOVE_BYTES = 512
_PLAIN, _ZSTD = b"\0", b"\1"

_local = threading.local()


def raw_digest(digest: str) -> bytes | None:
    """The 32 bytes of a digest; None for a text that is no digest."""
    if len(digest) != 64:
        return None
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return None


def digest_of(data: bytes | memoryview) -> Digest:
    return Digest(blake3(data).hexdigest())


def as_int(value: object) -> int:
    """The number in a column; 0 where damage made it something else."""
    return value if isinstance(value, int) else 0


def decoded(value: object) -> str:
    """A text column, which is read as bytes, as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def compress(data: bytes) -> bytes:
    """One zstd frame, level 1, with its content size."""
    # Threads may not share a compressor, and making one costs more than compressing a small frame.
    context: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if context is None:
        context = _local.compressor = zstandard.ZstdCompressor(level=1)
    return context.compress(data)


def decompress(frame: bytes, limit_bytes: int) -> bytes | None:
    """The content of one zstd frame; None where it is damaged or says that it is larger than `limit_bytes`."""
    context: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if context is None:
        context = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        # buildd writes no frame without its size; a wrong size makes the decompressor fail.
        if not 0 <= zstandard.frame_content_size(frame) <= limit_bytes:
            return None
        return context.decompress(frame)
    except (zstandard.ZstdError, MemoryError):
        return None


def seal(name: bytes, body: bytes) -> bytes:
    """`body` with a checksum in front that also covers `name`."""
    return blake3(len(name).to_bytes(4, "little") + name + body).digest(_CHECK_BYTES) + body


def unseal(name: bytes, sealed: object) -> bytes | None:
    """The body that was sealed under `name`; None where a byte of either has changed."""
    if not isinstance(sealed, bytes):
        return None
    body = sealed[_CHECK_BYTES:]
    return body if seal(name, body) == sealed else None


class Table(Enum):
    """The tables of named values, and how many rows each keeps at most."""

    ACTIONS = "actions"
    """The last components of each action, for explanations."""
    PROBES = "probes"
    RECORDS = "records"
    """Up-to-date records of whole plans."""

    @property
    def most(self) -> int:
        return {Table.ACTIONS: 50_000, Table.PROBES: 10_000, Table.RECORDS: 2_000}[self]


_NOTES = {
    Table.ACTIONS: "commands, for `buildd explain`",
    Table.PROBES: "questions to compilers, such as --version, with their answers",
    Table.RECORDS: "builds that are up to date while none of their files changes",
}


class NamedValues:
    """Named values of any size: get and put.

    Args:
        next_tick: gives the next tick of the logical clock inside a transaction.
        touched: called with the row that was read, for the batched access times.
    """

    def __init__(
        self,
        database: Database,
        next_tick: Callable[[sqlite3.Connection], int],
        touched: Callable[[str, bytes], None],
    ) -> None:
        self._database = database
        self._next_tick = next_tick
        self._touched = touched

    def get(self, table: Table, name: Digest) -> bytes | None:
        raw = raw_digest(name)
        if raw is None:
            return None
        rows = self._database.rows(f"SELECT value FROM {table.value} WHERE name = ?", (raw,))
        body = unseal(raw, rows[0][0]) if rows else None
        if body is None:
            return None
        self._touched(table.value, raw)
        return decompress(body[1:], MAX_VALUE_BYTES) if body[:1] == _ZSTD else body[1:]

    def put(self, table: Table, name: Digest, value: bytes) -> None:
        self.put_many(table, [(name, value)])

    def put_many(self, table: Table, values: Iterable[tuple[Digest, bytes]]) -> None:
        """Put several in one transaction. Raises ValueError for a name that is no digest."""
        sealed = [_sealed(name, value) for name, value in values]

        def work(connection: sqlite3.Connection) -> None:
            for raw, body in sealed:
                tick = self._next_tick(connection)
                connection.execute(
                    f"INSERT OR REPLACE INTO {table.value} (name, used, value) VALUES (?, ?, ?)", (raw, tick, body)
                )
                if tick % TRIM_EVERY_TICKS == 0:
                    for each in Table:
                        trim(connection, each)

        if sealed:
            self._database.transact(work)


class ValueArea(Area):
    """The rows of one table of named values."""

    def __init__(self, database: Database, table: Table) -> None:
        self.name = table.value
        self._database = database
        self._table = table

    def held(self) -> Held:
        return Held(entries=self._database.count(self._table.value), note=_NOTES[self._table])

    def trim(self, limit_bytes: int) -> None:
        self._database.transact(lambda connection: trim(connection, self._table))

    def verify(self) -> Checked:
        table = self._table.value
        rows = self._database.rows(f"SELECT rowid, name, value FROM {table}")
        bad = [(row,) for row, name, value in rows if not isinstance(name, bytes) or unseal(name, value) is None]
        if bad and not self._database.read_only:
            self._database.transact(lambda c: c.executemany(f"DELETE FROM {table} WHERE rowid = ?", bad))
        return Checked(entries=len(rows), removed=len(bad))

    def flush(self, *, everything: bool) -> None:
        if everything:
            self._database.transact(lambda connection: connection.execute(f"DELETE FROM {self._table.value}"))


def _sealed(name: Digest, value: bytes) -> tuple[bytes, bytes]:
    raw = raw_digest(name)
    if raw is None:
        raise ValueError(f"not a digest: {name!r}")
    packed = compress(value) if len(value) > _COMPRESS_ABOVE_BYTES else value
    return raw, seal(raw, _ZSTD + packed) if len(packed) < len(value) else seal(raw, _PLAIN + value)


def trim(connection: sqlite3.Connection, table: Table) -> None:
    """Drop the least recently used values of a table, down to its bound."""
    connection.execute(
        f"DELETE FROM {table.value} WHERE rowid IN"
        f" (SELECT rowid FROM {table.value} ORDER BY used DESC LIMIT -1 OFFSET ?)",
        (table.most,),
    )
