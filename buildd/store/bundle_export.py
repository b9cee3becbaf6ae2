"""Export of results, profiles and kernels from a store to one signed file (`bundle_format`).

Knows no target: the caller says which results.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from blake3 import blake3

from buildd.errors import StoreError
from buildd.store import shared_kernels
from buildd.store.blob_reader import BadBlob
from buildd.store.bundle_format import (
    BLOB,
    CHUNK_BYTES,
    HEAD,
    IN_MEMORY_BYTES,
    MAGIC,
    SIGNED,
    VERSION,
    Contents,
    contents_of,
)
from buildd.store.bundle_manifest import BundledResult, Manifest
from buildd.store.bundled import bundled_files, bundled_inputs, bundled_result
from buildd.store.packing import Encoding, named_file_error
from buildd.store.profiles import Profile
from buildd.store.result_rows import InputSet
from buildd.store.signing import Signer
from buildd.store.store import Store
from buildd.store.values import raw_digest
from protocol.messages import Digest


def export(
    store: Store,
    keys: Iterable[Digest] | None,
    file: Path,
    signer: Signer,
    profiles: Iterable[Profile] = (),
    named: Path | None = None,
) -> Contents:
    """Write the results under `keys` (all when None), all they need, and profiles to `file`, by rename, signed.

    Args:
        named: what errors call the file, if that is another name.

    Raises `StoreError` where a result or one of its blobs is not in the store, `StoreFull`.
    """
    wanted = sorted({_raw(key) for key in keys} if keys is not None else _all_keys(store))
    with store.lease([Digest(raw.hex()) for raw in wanted]):
        rows = sorted(profiles, key=msgspec.json.encode)
        manifest = msgspec.structs.replace(_gather(store, wanted, everything=keys is None), profiles=rows)
        plain = msgspec.msgpack.encode(manifest)
        packed = _pack(plain)
        temporary = file.parent / f".buildd-{os.getpid()}-{os.urandom(6).hex()}.tmp"
        try:
            with open(temporary, "xb") as target:
                writer = _HashingWriter(target)
                writer.write(HEAD.pack(MAGIC, VERSION, 0, len(packed), len(plain)))
                writer.write(packed)
                for raw, _ in manifest.blobs:
                    _write_blob(store, raw, writer, file)
                for name, digest, _ in manifest.kernels:
                    _write_kernel(store, name.decode(), digest, writer)
                check = writer.hasher.digest()
                target.write(check + signer.public + signer.sign(SIGNED + check))
            os.replace(temporary, file)
        except OSError as error:
            raise named_file_error(error, named or file, store.folder) from error
        finally:
            with suppress(OSError):  # it was never made, or has its name
                temporary.unlink()
    return contents_of(manifest)


class _HashingWriter:
    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.hasher = blake3()

    def write(self, data: bytes) -> None:
        self.hasher.update(data)
        self._target.write(data)


def _all_keys(store: Store) -> set[bytes]:
    return {row[0] for row in store.database.rows("SELECT key FROM results") if isinstance(row[0], bytes)}


def _gather(store: Store, keys: list[bytes], *, everything: bool) -> Manifest:
    """The manifest of these results. With `everything`, results that lost a blob are left out instead of refused."""
    entries: list[BundledResult] = []
    lists: dict[tuple[tuple[bytes, bytes], ...], int] = {}
    sizes: dict[bytes, int] = {}
    for key in keys:
        result = store.result(Digest(key.hex()))
        if result is None:
            if everything:
                continue
            raise StoreError(
                f"no result {key.hex()[:16]} in the store", file=str(store.folder), next_step="build the targets first"
            )
        sets = []
        for first, known in _sets_of(store, key):
            number = lists.setdefault(bundled_files(known), len(lists))
            sets.append(bundled_inputs(first, number, known))
        if not sets:
            continue  # no input set leads to it, so no look-up could find it
        for digest in result.digests():
            size = store.blobs.size_bytes(digest)
            sizes[_raw(digest)] = 0 if size is None else size
        entries.append(bundled_result(result, sorted(sets, key=lambda one: (one.first, one.files))))
    kernels = []
    for name, content in shared_kernels.sound(store.folder) if everything else ():
        kernels.append((name.encode(), blake3(content).digest(), len(content)))
    return Manifest(entries, [list(files) for files in lists], sorted(sizes.items()), kernels=sorted(kernels))


def _sets_of(store: Store, key: bytes) -> Iterator[tuple[bytes, InputSet]]:
    rows = store.database.rows("SELECT DISTINCT first FROM input_sets WHERE key = ? ORDER BY first", (key,))
    for (first,) in rows:
        for known in store.input_sets(Digest(first.hex())):
            if known.key == key.hex():
                yield first, known


def _write_blob(store: Store, raw: bytes, writer: _HashingWriter, file: Path) -> None:
    """Write a blob, packed again from its content, so that the bytes do not depend on how the store keeps it."""
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    size = 0
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as spool:
        try:
            for chunk in store.blobs.chunks(Digest(raw.hex())):
                size += len(chunk)
                spool.write(packer.compress(chunk))
            spool.write(packer.flush())
            stored = spool.tell()
            if stored < size:
                writer.write(BLOB.pack(Encoding.ZSTD, stored))
                spool.seek(0)
                while chunk := spool.read(CHUNK_BYTES):
                    writer.write(chunk)
                return
            writer.write(BLOB.pack(Encoding.RAW, size))
            for chunk in store.blobs.chunks(Digest(raw.hex())):
                writer.write(chunk)
        except BadBlob as error:
            store.blobs.drop_bad(raw)
            raise StoreError(
                "a blob of the bundle is damaged in the store",
                file=str(file),
                next_step="run `buildd cache verify`, build again, then export",
            ) from error


def _write_kernel(store: Store, name: str, digest: bytes, writer: _HashingWriter) -> None:
    try:
        content = shared_kernels.read(store.folder, name)
    except (FileNotFoundError, ValueError):
        content = b""
    if blake3(content).digest() != digest:
        raise StoreError("a kernel was removed while it was exported", file=str(store.folder), next_step="export again")
    packed = _pack(content)
    writer.write(BLOB.pack(Encoding.ZSTD, len(packed)) + packed)


def _pack(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(plain)


def _raw(digest: str) -> bytes:
    raw = raw_digest(digest)
    if raw is None:
        raise ValueError(f"not a digest: {digest!r}")
    return raw
