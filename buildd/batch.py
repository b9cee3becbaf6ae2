"""Blobs on their way into the index: written already, they get their rows and names in one transaction with the result
that names them.

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
from buildd.packing import Encoding
from buildd.values import as_int

ROW_BYTES = 256
"""What a row costs in the index, for the size bound."""


@dataclass(frozen=True, slots=True)
class Ready:
    """One blob that lacks its row.

    Args:
        raw: its digest.
        size, stored: bytes of it, and of what is written of it.
        data: that; None where it is in `file`.
        file: where it is written; renamed to `target` when it gets its row.
    """

    raw: bytes
    size: int
    stored: int
    encoding: Encoding
    data: bytes | None
    file: Path | None
    target: Path

    def place(self, connection: sqlite3.Connection) -> int:
        """Give it its row, and its file its name, inside a transaction; by how many bytes the store grew."""
        file, target = self.file, self.target
        if file is not None and file.exists():
            try:
                os.rename(file, target)
            except FileNotFoundError:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.rename(file, target)
        elif file is not None and size_of(target) != self.stored:
            # Second run of this transaction, on a new index, and the file that the first renamed is gone.
            raise StoreError("a blob file vanished while it was stored", file=str(target))
        old = connection.execute("SELECT stored FROM blobs WHERE digest = ?", (self.raw,)).fetchone()
        connection.execute(
            "INSERT OR REPLACE INTO blobs (digest, size, stored, encoding, data) VALUES (?, ?, ?, ?, ?)",
            (self.raw, self.size, self.stored, int(self.encoding), self.data),
        )
        return self.stored - as_int(old[0]) if old else self.stored + ROW_BYTES


class Batch:
    """Blobs for one result. Use it in a `with`: what got no row by its end is removed."""

    def __init__(self) -> None:
        self.files = ExitStack()
        """Removes what was written."""
        self.ready: dict[bytes, Ready] = {}

    def place(self, connection: sqlite3.Connection) -> int:
        """All of them, as `Ready.place`."""
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
