"""A blob of the store as an object of the tier, and back, checked.

The object is one zstd frame, or the content itself where that is not larger. Knows no carrier.
"""

from __future__ import annotations

import hashlib

import zstandard

from buildd.store.packing import Encoding
from buildd.store.values import decompress, digest_of
from buildd.tier.records import SharedBlob

_LEVEL = 3


def packed(content: bytes) -> tuple[SharedBlob, bytes]:
    """The object, and its row in a record."""
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    encoding = Encoding.ZSTD if len(frame) < len(content) else Encoding.RAW
    stored = frame if encoding is Encoding.ZSTD else content
    digest = bytes.fromhex(digest_of(content))
    return SharedBlob(digest, len(content), hashlib.sha256(stored).digest(), len(stored), encoding), stored


def content_of(blob: SharedBlob, stored: bytes) -> bytes | None:
    """The blob's content; None where the object is not the one that was signed."""
    if len(stored) != blob.stored or hashlib.sha256(stored).digest() != blob.sha256:
        return None
    content = decompress(stored, blob.size) if blob.encoding is Encoding.ZSTD else stored
    if content is None or len(content) != blob.size or bytes.fromhex(digest_of(content)) != blob.digest:
        return None
    return content
