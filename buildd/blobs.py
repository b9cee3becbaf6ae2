"""Bytes by their digest: small ones inside the index, large ones as files beside it.

Knows nothing of results. Promises: what is read was checked against its digest; a blob is there with all its bytes or
not at all. A blob file is renamed into place, replaced and unlinked only inside a write transaction of the index, so a
collection in one process and a put of the same blob in another cannot cross.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import re
import secrets
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zstandard
from blake3 import blake3

from buildd.batch import ROW_BYTES, Batch, Ready, size_of
from buildd.database import Database
from buildd.errors import StoreError
from buildd.packing import (
    CHUNK_BYTES,
    PAYS,
    SAMPLE_BYTES,
    Encoding,
    read_up_to,
    sample_pays,
    unpacked,
    write_all,
    write_error,
)
from buildd.sessions import FolderLock, Session, boottime_s
from buildd.tally import Counter, Tally
from buildd.values import as_int, compress, decompress, digest_of, raw_digest
from protocol.messages import Digest

INLINE_BYTES = 64 << 10
"""Most bytes, as stored, of a blob inside the index: larger ones are faster as files."""
MEMORY_BYTES = 8 << 20
"""Larger contents are streamed; inline ones are never larger than this when unpacked."""

_SELECT_ROW = "SELECT size, stored, encoding, data FROM blobs WHERE digest = ?"
_FICLONE = 0x40049409
_PLAIN = re.compile(r"[A-Za-z0-9_./+=@%-]*")
_temporaries = itertools.count(1)


class BadBlob(Exception):
    """A blob's bytes are not those of its digest, or are gone."""


class Blobs:
    """Put, get and restore.

    Args:
        database: the index.
        tally: is told what was stored and what was bad.
        limit_reached: called after a put with the bytes that the store then holds.
    """

    def __init__(self, database: Database, tally: Tally, limit_reached: Callable[[int], None]) -> None:
        self._database = database
        self._tally = tally
        self._limit_reached = limit_reached
        self._folder = database.folder
        self._lock = threading.Lock()
        self._session: Session | None = None

    # ------------------------------------------------------------ putting

    def put_bytes(self, data: bytes, batch: Batch | None = None) -> Digest:
        """Store `data`; pinned against collection until it is published. Raises `StoreFull`, `StoreError`.

        Args:
            batch: takes it up instead, to be stored when that is published.
        """
        digest = digest_of(data)
        if self._database.read_only:
            self._tally.count(Counter.DROPPED_PUTS)
            return digest
        raw = bytes.fromhex(digest)
        if batch is None:
            if self._pin_existing(raw, len(data)):
                return digest
        elif raw in batch.ready or self._is_there(raw, len(data)):
            return digest
        encoding, stored = Encoding.RAW, data
        packed = compress(data) if len(data) <= MEMORY_BYTES or sample_pays(data[:SAMPLE_BYTES]) else data
        if len(packed) < len(data) * PAYS:
            encoding, stored = Encoding.ZSTD, packed
        with contextlib.ExitStack() as ours:
            target, path = self.path_of(digest), None
            inline: bytes | None = stored
            if len(stored) > INLINE_BYTES or len(data) > MEMORY_BYTES:
                file, path = (ours if batch is None else batch.files).enter_context(self._temporary())
                self._fill(file, path, stored)
                inline = None
            ready = Ready(raw, len(data), len(stored), encoding, inline, path, target)
            if batch is None:
                self._adopt(ready)
            else:
                batch.ready[raw] = ready
        return digest

    def put_file(self, path: Path, *, expect: Digest | None = None, batch: Batch | None = None) -> tuple[Digest, int]:
        """Store a file's bytes as they are read, whatever happens to the file meanwhile; its digest and size in bytes.

        Raises `StoreFull`, and `StoreError` where it cannot be read or is not what was expected.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd, "rb", buffering=0) as source:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise StoreError("only regular files can be stored", file=str(path))
                head = read_up_to(source, MEMORY_BYTES + 1)
                if len(head) > MEMORY_BYTES:
                    return self._put_stream(head, source, path, expect)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", file=str(path)) from error
        if expect is not None and digest_of(head) != expect:
            raise _changed(path)
        return self.put_bytes(head, batch), len(head)

    def _put_stream(self, head: bytes, source: io.FileIO, path: Path, expect: Digest | None) -> tuple[Digest, int]:
        if self._database.read_only:
            hasher = blake3(head)
            while chunk := source.read(CHUNK_BYTES):
                hasher.update(chunk)
            self._tally.count(Counter.DROPPED_PUTS)
            return Digest(hasher.hexdigest()), os.fstat(source.fileno()).st_size
        encoding = Encoding.ZSTD if sample_pays(head[:SAMPLE_BYTES]) else Encoding.RAW
        packer = zstandard.ZstdCompressor(level=1).compressobj() if encoding is Encoding.ZSTD else None
        hasher, size, stored = blake3(), 0, 0
        with self._temporary() as (file, temporary):
            chunk = head
            while chunk:
                hasher.update(chunk)
                size += len(chunk)
                packed = packer.compress(chunk) if packer else chunk
                stored += len(packed)
                self._fill(file, temporary, packed)
                chunk = source.read(CHUNK_BYTES) or b""
            if packer:
                packed = packer.flush()
                stored += len(packed)
                self._fill(file, temporary, packed)
            digest = Digest(hasher.hexdigest())
            if expect is not None and digest != expect:
                raise _changed(path)
            if not self._pin_existing(hasher.digest(), size):
                self._adopt(Ready(hasher.digest(), size, stored, encoding, None, temporary, self.path_of(digest)))
        return digest, size

    def _pin_existing(self, raw: bytes, size: int) -> bool:
        """Pin a blob that is already there; False where it has to be written."""
        if not self._database.rows("SELECT 1 FROM blobs WHERE digest = ?", (raw,)):
            return False
        session = self.session()

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT stored, data IS NULL FROM blobs WHERE digest = ? AND size = ?", (raw, size)
            ).fetchone()
            if row is None:
                return False
            if row[1] and size_of(self.path_of(raw.hex())) != row[0]:
                return False
            _pin(connection, raw, session)
            return True

        there = self._database.transact(work)
        if there:
            self._tally.count(Counter.SHARED_BLOBS)
        return there

    def _is_there(self, raw: bytes, size: int) -> bool:
        """As `_pin_existing`, for one that is to be published in a moment."""
        rows = self._database.rows("SELECT stored, data IS NULL FROM blobs WHERE digest = ? AND size = ?", (raw, size))
        there = bool(rows) and not (rows[0][1] and size_of(self.path_of(raw.hex())) != rows[0][0])
        if there:
            self._tally.count(Counter.SHARED_BLOBS)
        return there

    def _adopt(self, ready: Ready) -> None:
        session = self.session()

        def work(connection: sqlite3.Connection) -> int:
            grown = ready.place(connection)
            _pin(connection, ready.raw, session)
            return add_bytes(connection, grown)

        try:
            total = self._database.transact(work)
        except OSError as error:
            raise write_error(error, ready.target) from error
        self.placed([ready], total)

    def placed(self, several: Iterable[Ready], total: int) -> None:
        """These got their rows; the store holds `total` bytes now."""
        for ready in several:
            self._tally.count(Counter.STORED_BLOBS)
            self._tally.count(Counter.STORED_BYTES, ready.size)
        self._limit_reached(total)

    # ------------------------------------------------------------ reading

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, checked; None where there is no sound blob (a bad one is counted and removed)."""
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            return None
        try:
            return b"".join(self._chunks(raw, row))
        except BadBlob:
            self.drop_bad(raw)
            return None

    def restore(self, digest: Digest, destination: Path, *, executable: bool) -> bool:
        """Make `destination` a private copy of the blob, whole or not at all; False where there is no sound blob.

        The user's umask decides the mode. A symlink at `destination` is replaced, not followed. Missing folders are
        made. Raises `StoreFull`, and `StoreError` where the destination cannot be written.
        """
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            return False
        folder = os.path.dirname(destination)
        temporary = os.path.join(folder, f".buildd-{os.getpid()}-{secrets.token_hex(6)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                fd = os.open(temporary, flags, 0o777 if executable else 0o666)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                fd = os.open(temporary, flags, 0o777 if executable else 0o666)
            try:
                with open(fd, "w+b", buffering=0) as file:
                    if not self._clone(raw, row, file):
                        for chunk in self._chunks(raw, row):
                            write_all(file, chunk)
                os.rename(temporary, destination)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        except BadBlob:
            self.drop_bad(raw)
            return False
        except OSError as error:
            raise write_error(error, destination) from error
        return True

    def chunks(self, digest: Digest) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB. They are right only if the iterator ends without `BadBlob`."""
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            raise BadBlob(digest)
        yield from self._chunks(raw, row)

    def size_bytes(self, digest: Digest) -> int | None:
        """Size of the unpacked bytes, from the index (not checked); None where there is no such blob."""
        rows = self._database.rows("SELECT size FROM blobs WHERE digest = ?", (raw_digest(digest),))
        return as_int(rows[0][0]) if rows else None

    def has(self, digest: Digest) -> bool:
        """Whether the index knows a blob; its bytes are not looked at."""
        return self.size_bytes(digest) is not None

    def is_sound(self, raw: bytes) -> bool:
        """Read a blob to its end; whether it is what its digest says."""
        row = self._row(raw)
        try:
            if row is not None:
                for _ in self._chunks(raw, row):
                    pass
        except BadBlob:
            return False
        return row is not None

    def drop_bad(self, raw: bytes) -> bool:
        """Remove a blob that was found bad, unless another process has replaced it meanwhile."""

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT size, stored, encoding, data FROM blobs WHERE digest = ?", (raw,)
            ).fetchone()
            if row is None:
                return False  # collected while we read it
            try:
                for _ in self._chunks(raw, row):
                    pass
                return False
            except BadBlob:
                self.delete(connection, raw, as_int(row[1]))
                return True

        if self._database.read_only:
            self._tally.count(Counter.BAD_BLOBS)
            return False
        try:
            removed = self._database.transact(work)
        except StoreError:
            removed = False  # the disk is full or the index busy: it stays a miss
        if removed:
            self._tally.count(Counter.BAD_BLOBS)
        return removed

    def delete(self, connection: sqlite3.Connection, raw: bytes, stored: int) -> None:
        """Remove row and file inside the caller's transaction."""
        connection.execute("DELETE FROM blobs WHERE digest = ?", (raw,))
        with contextlib.suppress(OSError):
            os.unlink(self.path_of(raw.hex()))
        add_bytes(connection, -stored - ROW_BYTES)

    def path_of(self, digest: str) -> Path:
        """Where a large blob's file is."""
        return self._folder / "blobs" / digest[:2] / digest

    # ------------------------------------------------------------ the session

    def session(self) -> Session:
        """This process as a writer, made at its first write."""
        with self._lock:
            if self._session is None:
                try:
                    with FolderLock(self._folder):
                        session = Session(self._folder)
                except OSError as error:
                    raise write_error(error, self._folder / "sessions") from error
                try:
                    self._database.transact(
                        lambda connection: connection.execute(
                            "INSERT OR REPLACE INTO sessions (name, pid, start_ticks, boot_id) VALUES (?, ?, ?, ?)",
                            (session.name, session.pid, session.start_ticks, session.boot_id),
                        )
                    )
                except BaseException:
                    session.close()
                    raise
                self._session = session
            return self._session

    def scratch_folder(self) -> Path:
        """A folder for private files of this process, on the store's disk; gone with the process.

        In the temporary folder where the store cannot be written, or has a name that tools take apart: nvcc hands
        linker options to a shell and splits them at commas, gcc's SUNPRO_DEPENDENCIES ends at the first blank.
        """
        if self._database.read_only or not _PLAIN.fullmatch(str(self._folder)):
            import tempfile

            return Path(tempfile.gettempdir())
        folder = self._folder / "tmp" / f"{self.session().name}.scratch"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(error, folder) from error
        return folder

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return

            def work(connection: sqlite3.Connection) -> None:
                for table in ("pins", "leases"):
                    connection.execute(f"DELETE FROM {table} WHERE session = ?", (session.name,))
                connection.execute("DELETE FROM sessions WHERE name = ?", (session.name,))

            with contextlib.suppress(StoreError):  # the next collection does it
                self._database.transact(work, wait=False)
            shutil.rmtree(self._folder / "tmp" / f"{session.name}.scratch", ignore_errors=True)
            session.close()

    # ------------------------------------------------------------ inside

    def _row(self, raw: bytes) -> tuple[int, int, int, bytes | None] | None:
        rows = self._database.rows(_SELECT_ROW, (raw,))
        if not rows:
            return None
        size, stored, encoding, data = rows[0]
        return as_int(size), as_int(stored), as_int(encoding), data

    def _chunks(self, raw: bytes, row: tuple[int, int, int, bytes | None]) -> Iterator[bytes]:
        """Unpacked pieces; `BadBlob` at the latest after the last one."""
        size, _, encoding, data = row
        if data is not None and size <= MEMORY_BYTES:
            yield _inline(raw, row)
            return
        hasher, count = blake3(), 0
        try:
            with open(self.path_of(raw.hex()), "rb") as source:
                for chunk in unpacked(source, encoding):
                    count += len(chunk)
                    if count > size:
                        raise BadBlob(raw.hex())
                    hasher.update(chunk)
                    yield chunk
        except (OSError, zstandard.ZstdError, MemoryError) as error:
            raise BadBlob(raw.hex()) from error
        if count != size or hasher.digest() != raw:
            raise BadBlob(raw.hex())

    def _clone(self, raw: bytes, row: tuple[int, int, int, bytes | None], file: io.FileIO) -> bool:
        """Share the blocks of a blob file with `file` where the file system can; what was shared is then checked."""
        if row[3] is not None or row[2] != Encoding.RAW:
            return False
        try:
            with open(self.path_of(raw.hex()), "rb", buffering=0) as source:
                fcntl.ioctl(file.fileno(), _FICLONE, source.fileno())
        except OSError:
            return False
        hasher = blake3()
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
        if hasher.digest() != raw:
            raise BadBlob(raw.hex())
        return True

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[io.FileIO, Path]]:
        """A new file in <store>/tmp, named after the session so that its leftovers can be told from live ones."""
        folder = self._folder / "tmp"
        path = folder / f"{self.session().name}.{next(_temporaries)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise write_error(error, path) from error
        try:
            with open(fd, "wb", buffering=0) as file:
                yield file, path
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def _fill(file: io.FileIO, path: Path, data: bytes) -> None:
        try:
            write_all(file, data)
        except OSError as error:
            raise write_error(error, path) from error


def add_bytes(connection: sqlite3.Connection, delta: int) -> int:
    """Account for what the store holds, inside a transaction; the new total."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'bytes'").fetchone()
    total = max(0, min((as_int(row[0]) if row else 0) + delta, 1 << 62))
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('bytes', ?)", (total,))
    return total


def missing(connection: sqlite3.Connection, wanted: Iterable[bytes]) -> list[bytes]:
    """Which of `wanted` have no row."""
    return [
        raw for raw in wanted if connection.execute("SELECT 1 FROM blobs WHERE digest = ?", (raw,)).fetchone() is None
    ]


def _pin(connection: sqlite3.Connection, raw: bytes, session: Session) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO pins (digest, session, boottime_s) VALUES (?, ?, ?)", (raw, session.name, boottime_s())
    )


def _inline(raw: bytes, row: tuple[int, int, int, bytes | None]) -> bytes:
    size, _, encoding, data = row
    content = decompress(data, size) if encoding == Encoding.ZSTD and isinstance(data, bytes) else data
    if not isinstance(content, bytes) or len(content) != size or blake3(content).digest() != raw:
        raise BadBlob(raw.hex())
    return content


def _changed(path: Path) -> StoreError:
    return StoreError("changed while it was being stored", file=str(path), next_step="build it again")
