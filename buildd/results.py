"""Results and the input sets that lead to them: what a past run of an action read and what it made.

Knows no key: which files make which digest is `keys`' business. A result is published whole, in one transaction, after
all its blobs are there; rows carry checksums, so a damaged one is absent, never different.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from blake3 import blake3

from buildd.batch import ROW_BYTES, Batch
from buildd.blobs import Blobs, add_bytes, missing
from buildd.database import Database
from buildd.errors import StoreError
from buildd.packing import write_error
from buildd.tally import Counter, Tally, next_tick
from buildd.values import as_int, compress, decompress, raw_digest, seal, unseal
from protocol.messages import Digest, Kernel, Timing

UNKNOWN = -1
"""In the place of a folder's stamp: nothing is known of it; no stamp matches."""
PRESENT = -2
"""In the place of a folder's stamp: this path is no folder but a file that existed and was not used."""
LINK = -3
"""In the place of a folder's stamp: this folder, and behind a zero byte the one that links led to from it."""
MOST_INPUT_SETS = 8
"""Input sets kept under one first-level key."""
_MAX_LIST_BYTES = 64 << 20
_MAX_CACHED_ENTRIES = 20_000

Entry = TypeVar("Entry", Digest, int)

_NO_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One file of a result."""

    name: str
    digest: Digest
    size_bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an action made, and what it said while it did."""

    key: Digest
    action: str
    """The action's name when it ran: for people and for `flush PATTERN`."""
    outputs: tuple[StoredOutput, ...]
    stdout: Digest | None = None
    stderr: Digest | None = None
    timing: Timing = _NO_TIMING
    created_ns: int = 0
    kernels: tuple[Kernel, ...] = ()
    """In its outputs."""

    def digests(self) -> tuple[Digest, ...]:
        """Every blob that the result needs, each once."""
        said = [digest for digest in (self.stdout, self.stderr) if digest is not None]
        return tuple(dict.fromkeys([*(output.digest for output in self.outputs), *said]))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """The discovered inputs of a past run."""

    files: tuple[tuple[str, Digest], ...]
    """Name as keyed -> content digest."""
    folders: tuple[tuple[str, int], ...] = ()
    """Path as keyed -> stamp of each folder whose listing could shadow one of the files, or one of the marks above."""
    roots: tuple[tuple[str, str], ...] = ()
    """Root name -> absolute path, where a used file's path reaches the result."""
    key: Digest
    """Of the result that these files lead to."""


class _ResultBody(msgspec.Struct, frozen=True, array_like=True):
    action: bytes
    outputs: list[tuple[bytes, bytes, int, bool]]
    stdout: bytes | None
    stderr: bytes | None
    timing: tuple[float, float, float, int]
    created_ns: int
    kernels: list[Kernel] = []


_result_decoder = msgspec.msgpack.Decoder(_ResultBody)
_files_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_folders_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, int]])
_roots_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_encoder = msgspec.msgpack.Encoder()


class Results:
    def __init__(self, database: Database, blobs: Blobs, tally: Tally, limit_reached: Callable[[int], None]) -> None:
        self._database = database
        self._blobs = blobs
        self._tally = tally
        self._limit_reached = limit_reached
        self._files: _ListCache[Digest] = _ListCache()
        self._folders: _ListCache[int] = _ListCache()

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

    def publish(self, first: Digest, input_set: InputSet, result: Result, batch: Batch | None = None) -> None:
        """Make a result findable, replacing the one under the same key. All or nothing.

        Args:
            batch: blobs of it that are to be stored with it.

        Raises `StoreError` where one of its blobs is not there, `StoreFull`.
        """
        if self._database.read_only:
            self._tally.count(Counter.DROPPED_PUTS)
            return
        if input_set.key != result.key:
            raise ValueError("the input set leads to another key than the result's")
        key, raw_first = _raw(result.key), _raw(first)
        wanted = [_raw(digest) for digest in result.digests()]
        there = [digest for digest in wanted if batch is None or digest not in batch.ready]
        body = encode_result(result)
        files, folders = _files_list(input_set), _folders_list(input_set)
        session = self._blobs.session()

        def work(connection: sqlite3.Connection) -> int:
            if gone := missing(connection, there):
                raise StoreError(
                    f"{result.action}: not stored, a blob of it is not there",
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
        """Replace the folder stamps of an input set that is there (looked at again, nothing shadows)."""
        if self._database.read_only:
            return
        raw_first, key = _raw(first), _raw(input_set.key)
        files, folders = _files_list(input_set), _folders_list(input_set)

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute(
                "SELECT id FROM input_sets WHERE first = ? AND key = ? AND files = ?", (raw_first, key, files[0])
            ).fetchone()
            if row is not None:
                body = _set_body(raw_first, key, files[0], folders[0], input_set)
                add_bytes(connection, _put_list(connection, *folders))
                connection.execute(
                    "UPDATE input_sets SET folders = ?, body = ? WHERE id = ?", (folders[0], body, row[0])
                )

        self._database.transact(work)

    def forget(self, key: Digest) -> None:
        """Drop a result and what leads to it; its blobs go with the next collection."""
        if not self._database.read_only:
            raw = _raw(key)
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
        body = _set_body(first, key, files[0], folders[0], input_set)
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
        try:
            roots = tuple((_text(name), _text(path)) for name, path in _roots_decoder.decode(body))
        except msgspec.MsgspecError:
            return None
        file_list = self._list(self._files, files, _decode_files)
        folder_list = self._list(self._folders, folders, _decode_folders)
        if file_list is None or folder_list is None:
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


def delete_result(connection: sqlite3.Connection, key: bytes) -> list[bytes]:
    """Remove a result's rows inside a transaction; the digests of the blobs that it referred to."""
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
    """Remove a list that no input set uses any more, inside a transaction; the bytes that went."""
    row = connection.execute(
        "SELECT length(data) FROM lists WHERE digest = ?1"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE files = ?1)"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE folders = ?1)",
        (digest,),
    ).fetchone()
    if row is None:
        return 0
    connection.execute("DELETE FROM lists WHERE digest = ?", (digest,))
    return as_int(row[0]) + ROW_BYTES


def encode_result(result: Result) -> bytes:
    timing = result.timing
    body = _ResultBody(
        _on_disk(result.action),
        [(_on_disk(out.name), _raw(out.digest), out.size_bytes, out.executable) for out in result.outputs],
        None if result.stdout is None else _raw(result.stdout),
        None if result.stderr is None else _raw(result.stderr),
        (timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes),
        result.created_ns,
        list(result.kernels),
    )
    return seal(_raw(result.key), _encoder.encode(body))


def decode_result(key: bytes, sealed: object) -> Result | None:
    plain = unseal(key, sealed)
    if plain is None:
        return None
    try:
        body = _result_decoder.decode(plain)
    except msgspec.MsgspecError:
        return None
    wall_s, user_s, system_s, peak = body.timing
    return Result(
        key=Digest(key.hex()),
        action=_text(body.action),
        outputs=tuple(
            StoredOutput(name=_text(name), digest=Digest(digest.hex()), size_bytes=size, executable=executable)
            for name, digest, size, executable in body.outputs
        ),
        stdout=None if body.stdout is None else Digest(body.stdout.hex()),
        stderr=None if body.stderr is None else Digest(body.stderr.hex()),
        timing=Timing(wall_s=wall_s, user_s=user_s, system_s=system_s, peak_rss_bytes=peak),
        created_ns=body.created_ns,
        kernels=tuple(body.kernels),
    )


def _set_body(first: bytes, key: bytes, files: bytes, folders: bytes, input_set: InputSet) -> bytes:
    roots = [(_on_disk(name), _on_disk(path)) for name, path in input_set.roots]
    return seal(first + key + files + folders, _encoder.encode(roots))


def _files_list(input_set: InputSet) -> tuple[bytes, bytes]:
    return _pack([(_on_disk(name), _raw(digest)) for name, digest in input_set.files])


def _folders_list(input_set: InputSet) -> tuple[bytes, bytes]:
    return _pack([(_on_disk(path), stamp) for path, stamp in input_set.folders])


def _pack(entries: Sequence[tuple[bytes, bytes | int]]) -> tuple[bytes, bytes]:
    """Digest of a list, and the list compressed. Equal lists of many actions are one row."""
    plain = _encoder.encode(entries)
    return blake3(plain).digest(), compress(plain)


def _put_list(connection: sqlite3.Connection, digest: bytes, data: bytes) -> int:
    """Keep a list, inside a transaction; the bytes that were added."""
    row = connection.execute("SELECT data FROM lists WHERE digest = ?", (digest,)).fetchone()
    if row is not None and row[0] == data:
        return 0
    # Also replaces a damaged one, which nobody else would ever repair.
    connection.execute("INSERT OR REPLACE INTO lists (digest, data) VALUES (?, ?)", (digest, data))
    return len(data) - (len(row[0]) if isinstance(row[0], bytes) else 0) if row else len(data) + ROW_BYTES


def _decode_files(plain: bytes) -> tuple[tuple[str, Digest], ...] | None:
    try:
        return tuple((_text(name), Digest(digest.hex())) for name, digest in _files_decoder.decode(plain))
    except msgspec.MsgspecError:
        return None


def _decode_folders(plain: bytes) -> tuple[tuple[str, int], ...] | None:
    try:
        return tuple((_text(path), stamp) for path, stamp in _folders_decoder.decode(plain))
    except msgspec.MsgspecError:
        return None


def _on_disk(text: str) -> bytes:
    """Names that are not UTF-8 arrive with surrogates, which MessagePack's strings cannot hold."""
    return text.encode(errors="surrogateescape")


def _text(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _raw(digest: str) -> bytes:
    raw = raw_digest(digest)
    if raw is None:
        raise ValueError(f"not a digest: {digest!r}")
    return raw
