"""Batches of blobs that are written but not yet in the index: they get rows and names in their result's transaction.

Knows no result and opens no transaction.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from buildd.errors import StoreError
from buildd.store.packing import Encoding
from buildd.store.values import as_int

ROW_BYTES = 256
"""Estimated size of a row in the index, for the size bound."""


@dataclass(frozen=True, slots=True)
class Ready:
    """One blob that lacks its row.

    Args:
        raw: its digest.
        size, stored: bytes of its content, and of the content as stored.
        data: the content as stored; None where it is in `file`.
        file: the temporary file; renamed to `target` when the blob gets its row.
    """

    raw: bytes
    size: int
    stored: int
    encoding: Encoding
    data: bytes | None
    file: Path | None
    target: Path

    def place(self, connection: sqlite3.Connection) -> int:
        """Write the blob's row and rename its file, inside a transaction; by how many bytes the store grew."""
        file, target = self.file, self.target
        if file is not None and file.exists():
            try:
                os.rename(file, target)
            except FileNotFoundError:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.rename(file, target)
        elif file is not None and size_of(target) != self.stored:
            # The transaction runs again on a new index, and the file that its first run renamed is gone.
            raise StoreError("a blob file vanished while it was stored", file=str(target))
        old = connection.execute("SELECT stored FROM blobs WHERE digest = ?", (self.raw,)).fetchone()
        connection.execute(
            "INSERT OR REPLACE INTO blobs (digest, size, stored, encoding, data) VALUES (?, ?, ?, ?, ?)",
            (self.raw, self.size, self.stored, int(self.encoding), self.data),
        )
        return self.stored - as_int(old[0]) if old else self.stored + ROW_BYTES


class Batch:
    """Blobs for one result. Use it in a `with`: at its end, files of blobs without a row are removed."""

    def __init__(self) -> None:
        self.files = ExitStack()
        """Removes the temporary files."""
        self.ready: dict[bytes, Ready] = {}

    def place(self, connection: sqlite3.Connection) -> int:
        """Place all blobs; see `Ready.place`."""
        return sum(ready.place(connection) for ready in self.ready.values())

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.files.close()


def size_of(path: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None
