"""Results and the input sets that lead to them: the files that a past run of an action read, and those that it made.

Knows no key: `keys` computes digests from files. A result is published whole, in one transaction, after all its blobs
are in the store. Rows carry checksums, so a damaged row is absent, never different.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from blake3 import blake3

from buildd.errors import StoreError
from buildd.store.batch import ROW_BYTES, Batch
from buildd.store.blob_reader import add_bytes
from buildd.store.blobs import Blobs, missing
from buildd.store.database import Database
from buildd.store.packing import write_error
from buildd.store.result_rows import (
    FileList,
    FileRows,
    InputSet,
    Result,
    decode_files,
    decode_folders,
    decode_result,
    decode_roots,
    encode_input_set,
    encode_result,
    file_list,
    files_digest,
    files_list,
    folders_list,
    raw_of,
)
from buildd.store.tally import Counter, Tally, next_tick
from buildd.store.values import as_int, decompress, raw_digest, unseal
from protocol.messages import Digest

MOST_INPUT_SETS = 32
"""Input sets kept under one first-level key: several checkouts share it, each with a few states of its headers."""
_MAX_LIST_BYTES = 64 << 20
_MAX_CACHED_ENTRIES = 20_000
_MAX_PACKS = 16

Entry = TypeVar("Entry", Digest, int)


class Results:
    """The results of one store. Every method may be called from any thread."""

    def __init__(self, database: Database, blobs: Blobs, tally: Tally, limit_reached: Callable[[int], None]) -> None:
        self._database = database
        self._blobs = blobs
        self._tally = tally
        self._limit_reached = limit_reached
        self._files: _ListCache[Digest] = _ListCache()
        self._folders: _ListCache[int] = _ListCache()
        self._packs = _Packs()

    def result(self, key: Digest) -> Result | None:
        """The result under a key, if every blob that it needs is in the index."""
        raw = raw_digest(key)
        rows = self._database.rows(
            "SELECT body, (SELECT count(*) FROM refs WHERE refs.key = results.key AND NOT EXISTS"
            " (SELECT 1 FROM blobs WHERE blobs.digest = refs.digest)) FROM results WHERE key = ?",
            (raw,),
        )
        if raw is None or not rows or rows[0][1] != 0:
            return None
        result = decode_result(raw, rows[0][0])
        if result is None:
            self._tally.count(Counter.BAD_RESULTS)
        return result

    def input_sets(self, first: Digest) -> tuple[InputSet, ...]:
        """The input sets under a first-level key, newest first."""
        raw = raw_digest(first)
        rows = self._database.rows(
            "SELECT key, files, folders, body FROM input_sets WHERE first = ? ORDER BY id DESC LIMIT ?",
            (raw, MOST_INPUT_SETS),
        )
        return tuple(found for row in rows if raw and (found := self._input_set(raw, row)) is not None)

    def known_files(self, rows: FileRows) -> FileList:
        """A list of files from elsewhere, as input sets have it. Equal lists are one object, also in `input_sets`: what
        is found out about one holds for all."""
        digest = files_digest(rows)
        known = self._files.get(digest)
        if known is None:
            known = file_list(rows)
            self._files.put(digest, known)
        return known

    def publish(self, first: Digest, input_set: InputSet, result: Result, batch: Batch | None = None) -> None:
        """Make a result findable, replacing the one under the same key. All or nothing.

        Args:
            batch: blobs of the result that are stored in the same transaction.

        Raises `StoreError` where one of its blobs is not in the store, `StoreFull`.
        """
        if self._database.read_only:
            self._tally.count(Counter.DROPPED_PUTS)
            return
        if input_set.key != result.key:
            raise ValueError("the input set leads to another key than the result's")
        key, raw_first = raw_of(result.key), raw_of(first)
        wanted = [raw_of(digest) for digest in result.digests()]
        there = [digest for digest in wanted if batch is None or digest not in batch.ready]
        body = encode_result(result)
        files, folders = self._packs.of(input_set), folders_list(input_set)
        session = self._blobs.session()

        def work(connection: sqlite3.Connection) -> int:
            if gone := missing(connection, there):
                raise StoreError(
                    f"{result.action}: not stored, because one of its blobs is missing",
                    file=str(self._blobs.path_of(gone[0].hex())),
                    next_step="it will be built again the next time",
                )
            grown = batch.place(connection) if batch is not None else 0
            known = connection.execute("SELECT 1 FROM results WHERE key = ?", (key,)).fetchone()
            connection.execute(
                "INSERT OR REPLACE INTO results (key, action, used, created_ns, body) VALUES (?, ?, ?, ?, ?)",
                (key, _printable(result.action), next_tick(connection), result.created_ns, body),
            )
            connection.execute("DELETE FROM refs WHERE key = ?", (key,))
            connection.executemany(
                "INSERT OR REPLACE INTO refs (key, digest) VALUES (?, ?)", [(key, digest) for digest in wanted]
            )
            added = 0 if known else ROW_BYTES
            added += self._put_input_set(connection, raw_first, key, input_set, files, folders)
            connection.executemany(
                "DELETE FROM pins WHERE session = ? AND digest = ?", [(session.name, digest) for digest in wanted]
            )
            return add_bytes(connection, grown + added)

        try:
            total = self._database.transact(work)
        except OSError as error:
            raise write_error(error, self._database.folder) from error
        self._blobs.placed(batch.ready.values() if batch is not None else (), total)

    def update_folders(self, first: Digest, input_set: InputSet) -> None:
        """Replace the folder stamps of a stored input set, after a look-up found that no file shadows its files."""
        if self._database.read_only:
            return
        raw_first, key = raw_of(first), raw_of(input_set.key)
        files, folders = self._packs.of(input_set), folders_list(input_set)

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute(
                "SELECT id FROM input_sets WHERE first = ? AND key = ? AND files = ?", (raw_first, key, files[0])
            ).fetchone()
            if row is not None:
                body = encode_input_set(raw_first, key, files[0], folders[0], input_set)
                add_bytes(connection, _put_list(connection, *folders))
                connection.execute(
                    "UPDATE input_sets SET folders = ?, body = ? WHERE id = ?", (folders[0], body, row[0])
                )

        self._database.transact(work)

    def forget(self, key: Digest) -> None:
        """Drop a result and its input sets; the next garbage collection removes its blobs."""
        if not self._database.read_only:
            raw = raw_of(key)
            self._database.transact(lambda connection: delete_result(connection, raw))

    def _put_input_set(
        self,
        connection: sqlite3.Connection,
        first: bytes,
        key: bytes,
        input_set: InputSet,
        files: tuple[bytes, bytes],
        folders: tuple[bytes, bytes],
    ) -> int:
        added = _put_list(connection, *files) + _put_list(connection, *folders)
        body = encode_input_set(first, key, files[0], folders[0], input_set)
        connection.execute("DELETE FROM input_sets WHERE first = ? AND key = ?", (first, key))
        connection.execute(
            "INSERT INTO input_sets (first, key, files, folders, body) VALUES (?, ?, ?, ?, ?)",
            (first, key, files[0], folders[0], body),
        )
        connection.execute(
            "DELETE FROM input_sets WHERE id IN"
            " (SELECT id FROM input_sets WHERE first = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (first, MOST_INPUT_SETS),
        )
        return added

    def _input_set(self, first: bytes, row: tuple[bytes, bytes, bytes, bytes]) -> InputSet | None:
        key, files, folders, sealed = row
        if not all(isinstance(part, bytes) for part in row):
            return None
        body = unseal(first + key + files + folders, sealed)
        if body is None:
            return None
        roots = decode_roots(body)
        file_list = self._list(self._files, files, decode_files)
        folder_list = self._list(self._folders, folders, decode_folders)
        if roots is None or file_list is None or folder_list is None:
            return None
        return InputSet(files=file_list, folders=folder_list, roots=roots, key=Digest(key.hex()))

    def _list(
        self,
        cache: _ListCache[Entry],
        digest: bytes,
        decode: Callable[[bytes], tuple[tuple[str, Entry], ...] | None],
    ) -> tuple[tuple[str, Entry], ...] | None:
        cached = cache.get(digest)
        if cached is None:
            rows = self._database.rows("SELECT data FROM lists WHERE digest = ?", (digest,))
            packed = rows[0][0] if rows else None
            plain = decompress(packed, _MAX_LIST_BYTES) if isinstance(packed, bytes) else None
            if plain is None or blake3(plain).digest() != digest:
                return None
            cached = decode(plain)
            if cached is not None:
                cache.put(digest, cached)
        return cached


class _ListCache(Generic[Entry]):
    """Decoded lists, because thousands of actions share one; bounded by entries, not by lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: OrderedDict[bytes, tuple[tuple[str, Entry], ...]] = OrderedDict()
        self._entries = 0

    def get(self, digest: bytes) -> tuple[tuple[str, Entry], ...] | None:
        with self._lock:
            found = self._lists.get(digest)
            if found is not None:
                self._lists.move_to_end(digest)
            return found

    def put(self, digest: bytes, entries: tuple[tuple[str, Entry], ...]) -> None:
        with self._lock:
            if digest not in self._lists:
                self._lists[digest] = entries
                self._entries += len(entries)
            while self._entries > _MAX_CACHED_ENTRIES and len(self._lists) > 1:
                self._entries -= len(self._lists.popitem(last=False)[1])


class _Packs:
    """Lists of files as they are stored: the results of one build have few, and each has thousands of digests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packs: OrderedDict[int, tuple[FileList, tuple[bytes, bytes]]] = OrderedDict()
        """By identity; the list is kept alive."""

    def of(self, input_set: InputSet) -> tuple[bytes, bytes]:
        """As `files_list`."""
        name = id(input_set.files)
        with self._lock:
            known = self._packs.get(name)
        if known is not None:
            return known[1]
        pack = files_list(input_set)
        with self._lock:
            self._packs[name] = (input_set.files, pack)
            if len(self._packs) > _MAX_PACKS:
                self._packs.popitem(last=False)
        return pack


def delete_result(connection: sqlite3.Connection, key: bytes) -> list[bytes]:
    """Remove a result's rows inside a transaction; returns the digests of the blobs that it referred to."""
    referred = [row[0] for row in connection.execute("SELECT digest FROM refs WHERE key = ?", (key,)).fetchall()]
    led = connection.execute("SELECT files, folders FROM input_sets WHERE key = ?", (key,)).fetchall()
    connection.execute("DELETE FROM refs WHERE key = ?", (key,))
    connection.execute("DELETE FROM input_sets WHERE key = ?", (key,))
    freed = sum(drop_list(connection, digest) for row in led for digest in row)
    if connection.execute("DELETE FROM results WHERE key = ?", (key,)).rowcount > 0:
        freed += ROW_BYTES
    add_bytes(connection, -freed)
    return [digest for digest in referred if isinstance(digest, bytes)]


def drop_list(connection: sqlite3.Connection, digest: bytes) -> int:
    """Remove a list inside a transaction if no input set uses it any more; how many bytes went."""
    row = connection.execute(
        "SELECT length(data) FROM lists WHERE digest = ?"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE files = ?)"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE folders = ?)",
        (digest,) * 3,
    ).fetchone()
    if row is None:
        return 0
    connection.execute("DELETE FROM lists WHERE digest = ?", (digest,))
    return as_int(row[0]) + ROW_BYTES


def _put_list(connection: sqlite3.Connection, digest: bytes, data: bytes) -> int:
    """Store a list inside a transaction; how many bytes were added."""
    row = connection.execute("SELECT data FROM lists WHERE digest = ?", (digest,)).fetchone()
    if row is not None and row[0] == data:
        return 0
    # This also replaces a damaged list, which nothing else would repair.
    connection.execute("INSERT OR REPLACE INTO lists (digest, data) VALUES (?, ?)", (digest, data))
    return len(data) - (len(row[0]) if isinstance(row[0], bytes) else 0) if row else len(data) + ROW_BYTES


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()
