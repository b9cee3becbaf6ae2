"""Packing and unpacking of blobs, and reading and writing of files in pieces.

Knows no store and no digest.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from buildd.errors import StoreError
from buildd.store.database_errors import full
from buildd.store.values import compress

CHUNK_BYTES = 1 << 20
SAMPLE_BYTES = 256 << 10
PAYS = 0.85
"""Packed content is kept if it is smaller than this share of the content."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Encoding(IntEnum):
    """How a blob's bytes are stored."""

    RAW = 0
    ZSTD = 1


class Readable(Protocol):
    """A source of bytes that can be unpacked."""

    def read(self, size: int, /) -> bytes: ...


def unpacked(source: Readable, encoding: int) -> Iterator[bytes]:
    """The unpacked content of `source` in pieces of at most 1 MiB, however small it was packed. Raises `ZstdError`."""
    if encoding == Encoding.ZSTD:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 24).stream_reader(
            cast(BinaryIO, source), closefd=False
        )
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk
    elif encoding == Encoding.RAW:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def sample_pays(sample: bytes) -> bool:
    """Whether content that begins like this is worth packing."""
    return len(compress(sample)) < len(sample) * PAYS


def read_up_to(source: io.FileIO, count: int) -> bytes:
    """At most `count` bytes; fewer only at the end."""
    pieces = []
    while count > 0 and (piece := source.read(min(count, CHUNK_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write without a buffer, however little the kernel takes at once."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def write_error(error: OSError, path: Path, *, store: Path | None = None) -> StoreError:
    """The error to raise where `path` could not be written.

    Args:
        store: the store's folder, if `path` may lie on another disk than the store: then nothing that is done to the
            store makes room there.
    """
    if error.errno in _NO_SPACE:
        problem = full(path)
        if store is not None and not _is_one_disk(path.parent, store):
            problem.next_step = "free some space and build again"
        return problem
    return StoreError(
        f"cannot be written: {error.strerror}",
        file=str(path),
        next_step="check its permissions and its folder's",
    )


def named_file_error(error: OSError, path: Path, store: Path) -> StoreError:
    """The error to raise where a file that the user has named could not be written.

    Args:
        store: the store's folder.
    """
    if error.errno in _NO_SPACE:
        problem = write_error(error, path, store=store)
        own = f"{problem.next_step}; or " if _is_one_disk(path.parent, store) else "free some space there, or "
        problem.next_step = f"{own}name a file on another disk"
        return problem
    if not path.parent.is_dir():
        message, step = f"there is no folder {path.parent}", "make the folder, or name a file in another one"
    elif error.errno == errno.EISDIR:
        message, step = "this is a folder", "name a file in it"
    else:
        message, step = f"cannot be written: {error.strerror}", "name a file in a folder that you may write to"
    return StoreError(message, file=str(path), next_step=step)


def _is_one_disk(folder: Path, other: Path) -> bool:
    try:
        return os.stat(folder).st_dev == os.stat(other).st_dev
    except OSError:
        return False
