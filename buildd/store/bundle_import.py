"""Imports a bundle (`bundle_format`) into a store: checks the whole bundle first, then imports all of it or nothing.

Decides nothing about trust: the caller says which keys are trusted.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from blake3 import blake3

from buildd.errors import NoSuchFile, StoreError
from buildd.store import shared_kernels
from buildd.store.bundle_format import (
    BLOB,
    CHECK_BYTES,
    CHUNK_BYTES,
    END_BYTES,
    HEAD,
    IN_MEMORY_BYTES,
    MAGIC,
    MAX_MANIFEST_BYTES,
    SIGNED,
    VERSION,
    BundleError,
    Contents,
    UntrustedBundle,
    contents_of,
)
from buildd.store.bundle_manifest import Manifest, problem_of
from buildd.store.bundled import input_set_of, result_of
from buildd.store.packing import Encoding, unpacked, write_error
from buildd.store.profiles import Profile
from buildd.store.signing import KEY_BYTES, SIGNATURE_BYTES, is_signed
from buildd.store.store import Store
from protocol.described import described
from protocol.messages import Digest


def import_(
    store: Store, file: Path, trusted: Container[bytes], keep: Callable[[list[Profile]], None] | None = None
) -> Contents:
    """Verify a bundle and take everything in it into the store.

    Args:
        trusted: the public keys whose bundles may be imported.
        keep: called with the bundle's profiles, if it has any.

    Raises `UntrustedBundle`, `BundleError` where a byte of it is not as it should be (then the store is unchanged),
    `StoreFull`, `StoreError`.
    """
    try:
        source = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise NoSuchFile(
            f"{file} cannot be read: {error.strerror}", next_step="name a file that `buildd cache export` wrote"
        ) from error
    with source:
        if store.read_only:
            raise StoreError(
                "the store is read-only, so nothing was imported",
                file=str(store.folder),
                next_step="check the folder's permissions, or set BUILDD_DIR to a folder that you may write",
            )
        manifest = _verified(source, file, trusted, store.limit_bytes)
        # The file is checked to its last byte. From here on only a full disk, or a change of the file, can stop the
        # import; blobs put by then are unreferenced, because results become visible after all their blobs.
        source.seek(0)
        _read_manifest(source, file)
        _put_blobs(store, source, manifest, file)
        now_ns, known = time.time_ns(), 0
        for entry in manifest.results:
            result = result_of(entry, now_ns)
            known += store.result(result.key) is not None
            for one in entry.sets:
                files = store.known_files(manifest.lists[one.files])
                store.publish(Digest(one.first.hex()), input_set_of(entry.key, one, files), result)
    if manifest.profiles and keep is not None:
        keep(manifest.profiles)
    return msgspec.structs.replace(contents_of(manifest), known=known)


def _put_blobs(store: Store, source: BinaryIO, manifest: Manifest, file: Path) -> None:
    for digest, size in manifest.blobs:
        if size <= IN_MEMORY_BYTES:
            store.put_bytes(b"".join(_blob(source, digest, size, file)))
        else:
            _put_large(store, source, digest, size, file)
    for name, digest, size in manifest.kernels:
        try:
            shared_kernels.take_in(store.folder, name.decode(), b"".join(_blob(source, digest, size, file)))
        except OSError as error:
            raise write_error(error, store.folder) from error
        except ValueError as error:
            raise StoreError(f"no kernel can be signed: {error}", file=str(store.folder)) from error


def _verified(source: BinaryIO, file: Path, trusted: Container[bytes], limit_bytes: int) -> Manifest:
    """Read and check a whole bundle; its manifest.

    Args:
        limit_bytes: the store's bound. More content than that is not even unpacked.
    """
    size = os.fstat(source.fileno()).st_size
    begun = source.read(HEAD.size)
    if begun[: len(MAGIC)] != MAGIC:
        raise _bad(file, "`buildd cache export` did not write this file" if begun else "it is empty")
    if size < HEAD.size + END_BYTES:
        raise _bad(file, "it is cut short")
    _, version, *_ = HEAD.unpack(begun)
    if version != VERSION:
        raise _bad(file, f"it has version {version}, this buildd reads {VERSION}")
    source.seek(0)
    hasher, left = blake3(), size - END_BYTES
    while left > 0 and (chunk := source.read(min(CHUNK_BYTES, left))):
        hasher.update(chunk)
        left -= len(chunk)
    check, key = source.read(CHECK_BYTES), source.read(KEY_BYTES)
    if left or check != hasher.digest():
        raise _bad(file, "its checksum is wrong (cut short, or damaged on the way)")
    if not is_signed(SIGNED + check, key, source.read(SIGNATURE_BYTES)):
        raise _bad(file, "its signature does not match its content")
    if key not in trusted:
        raise UntrustedBundle(
            f"the bundle is signed by {key.hex()}, a key that you do not trust; nothing was imported",
            file=str(file),
            next_step=f"if you know the key's owner: buildd cache trust {key.hex()} NAME",
        )
    source.seek(0)
    manifest = _read_manifest(source, file)
    if why := problem_of(manifest):
        raise _bad(file, why)
    if (needed_bytes := contents_of(manifest).blob_bytes) > limit_bytes:
        raise BundleError(
            f"the content of the bundle needs {needed_bytes >> 20} MiB, and the store's bound is "
            f"{limit_bytes >> 20} MiB; nothing was imported",
            file=str(file),
            next_step="raise BUILDD_CACHE_SIZE, or export fewer results",
        )
    for digest, blob_bytes in (*manifest.blobs, *((digest, size) for _, digest, size in manifest.kernels)):
        for _ in _blob(source, digest, blob_bytes, file):
            pass
    if source.tell() != size - END_BYTES:
        raise _bad(file, "there is something behind its last blob")
    return manifest


def _read_manifest(source: BinaryIO, file: Path) -> Manifest:
    head = source.read(HEAD.size)
    if len(head) != HEAD.size:
        raise _bad(file, "it is cut short")
    _, _, reserved, packed_bytes, plain_bytes = HEAD.unpack(head)
    if reserved != 0:
        raise _bad(file, "its reserved field is not 0")
    left = os.fstat(source.fileno()).st_size - source.tell()
    if packed_bytes > left or plain_bytes > MAX_MANIFEST_BYTES:
        raise _bad(file, "its manifest is larger than allowed")
    try:
        plain = _bounded(source.read(packed_bytes), plain_bytes)
        if len(plain) != plain_bytes:
            raise _bad(file, "its manifest has another size than it says")
        return msgspec.msgpack.decode(plain, type=described(Manifest))
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise _bad(file, f"its manifest cannot be read: {error}") from error


def _bounded(packed: bytes, limit_bytes: int) -> bytes:
    """Unpack, but never more than one chunk beyond `limit_bytes`."""
    pieces, count = [], 0
    for chunk in unpacked(io.BytesIO(packed), Encoding.ZSTD):
        pieces.append(chunk)
        count += len(chunk)
        if count > limit_bytes:
            break
    return b"".join(pieces)


def _blob(source: BinaryIO, digest: bytes, size: int, file: Path) -> Iterator[bytes]:
    """The next blob's content in pieces; `BundleError` at the latest after the last one."""
    head = source.read(BLOB.size)
    if len(head) != BLOB.size:
        raise _bad(file, "it ends before its last blob")
    encoding, stored = BLOB.unpack(head)
    start = source.tell()
    end = start + stored
    if encoding not in tuple(Encoding) or end > os.fstat(source.fileno()).st_size - END_BYTES:
        raise _bad(file, "a blob reaches beyond its end")
    hasher, count = blake3(), 0
    try:
        for chunk in unpacked(_Window(source, stored), encoding):
            count += len(chunk)
            if count > size:
                raise _bad(file, "a blob is larger than it says")
            hasher.update(chunk)
            yield chunk
    except zstandard.ZstdError as error:
        raise _bad(file, f"a blob cannot be unpacked: {error}") from error
    if count != size or hasher.digest() != digest:
        raise _bad(file, "a blob is not what its digest says")
    source.seek(end)


class _Window:
    """The next bytes of a file as a file of their own."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int, /) -> bytes:
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data


def _put_large(store: Store, source: BinaryIO, digest: bytes, size: int, file: Path) -> None:
    place = store.scratch_folder() / f"import-{digest.hex()[:16]}"
    try:
        with open(place, "wb") as target:
            for chunk in _blob(source, digest, size, file):
                target.write(chunk)
        store.put_file(place, expect=Digest(digest.hex()))
    except OSError as error:
        raise write_error(error, place) from error
    finally:
        place.unlink(missing_ok=True)


def _bad(file: Path, why: str) -> BundleError:
    return BundleError(
        f"the bundle cannot be used: {why}; nothing was imported", file=str(file), next_step="export or fetch it again"
    )
