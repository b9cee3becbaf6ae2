"""Bundles: one verified file that holds results, the input sets that lead to them, and every blob they need.

Knows no path of this machine. The same content gives the same bytes on every machine, but for the signature. Nothing in
a bundle is believed before it was checked: that it is whole and whose it is, then what it says. It is read twice, first
only to verify.

Format, version 2; numbers are little-endian:

    magic     8 bytes   "buildd\\0B"
    version   u16       2
    reserved  u16       0
    packed    u64       bytes of the packed manifest
    plain     u64       bytes of the manifest unpacked, at most 256 MiB
    manifest  packed    one zstd frame of MessagePack: [results, lists, blobs, profiles, kernels]
    blobs and kernels   in the manifest's order: u8 encoding (0 raw, 1 one zstd frame), u64 stored bytes, the bytes
    check     32 bytes  BLAKE3 of everything before it
    key       32 bytes  public key (Ed25519) of whoever made it
    signature 64 bytes  of "buildd bundle" NUL check

    results   [[key, action, [[name, digest, size, executable]...], stdout | nil, stderr | nil,
              [wall_s, user_s, system_s, peak_rss_bytes],
              [[first, list of files, [[path, present]...], [[name, path]...]]...]]...]
              sorted by key
    lists     [[[name, digest]...]...] of files; a result names its lists by their number
    blobs     [[digest, size]...] sorted by digest
    profiles  maps, as `buildd.profiles.Profile` has them, sorted
    kernels   [[name, digest, size]...] of Triton's, and Inductor's graphs, as files that are kept beside the store
              but for their signatures, sorted by name

Digests are 32 bytes, names and paths are bytes (they need not be UTF-8). Folder stamps are not in a bundle: they say
something about one machine only, and after an import they are unknown; `present` marks what is no folder but a file
that existed and was not used. A path with a NUL in it is a link that was followed, and what it led to: that is compared
where it is imported. Nor is the time of creation.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from blake3 import blake3

from buildd import kept_kernels
from buildd.blobs import BadBlob
from buildd.bundle_manifest import Entry, Manifest, Set, problem_of
from buildd.errors import StoreError
from buildd.packing import Encoding, unpacked, write_error
from buildd.profiles import Profile
from buildd.results import LINK, PRESENT, UNKNOWN, InputSet, Result, StoredOutput
from buildd.signing import KEY_BYTES, SIGNATURE_BYTES, Signer, is_signed
from buildd.store import Store
from buildd.values import raw_digest
from protocol.described import described
from protocol.messages import Digest, Timing

MAX_MANIFEST_BYTES = 256 << 20
_HEAD = struct.Struct("<8sHHQQ")
_BLOB = struct.Struct("<BQ")
_MAGIC = b"buildd\0B"
_VERSION = 2
_CHUNK_BYTES = 1 << 20
_CHECK_BYTES = 32
_END_BYTES = _CHECK_BYTES + KEY_BYTES + SIGNATURE_BYTES
_SIGNED = b"buildd bundle\0"
_IN_MEMORY_BYTES = 8 << 20


class BundleError(StoreError):
    """A file is no sound bundle; nothing was imported."""

    code = "bad-bundle"


class UntrustedBundle(BundleError):
    """It is not signed by anybody who is trusted; nothing was imported."""

    code = "untrusted-bundle"


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle holds."""

    results: int
    blobs: int
    blob_bytes: int
    """Of the blobs' contents."""
    profiles: int = 0
    kernels: int = 0
    """Of Triton's."""


def export(
    store: Store, keys: Iterable[Digest] | None, file: Path, signer: Signer, profiles: Iterable[Profile] = ()
) -> Contents:
    """Write the results under `keys` (all when None), what they need, and profiles to `file`, by rename, signed.

    Raises `StoreError` where a result or one of its blobs is not there, `StoreFull`.
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
                writer.write(_HEAD.pack(_MAGIC, _VERSION, 0, len(packed), len(plain)))
                writer.write(packed)
                for raw, _ in manifest.blobs:
                    _write_blob(store, raw, writer, file)
                for name, digest, _ in manifest.kernels:
                    _write_kernel(store, name.decode(), digest, writer)
                check = writer.hasher.digest()
                target.write(check + signer.public + signer.sign(_SIGNED + check))
            os.replace(temporary, file)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise write_error(error, file) from error
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return _contents(manifest)


def import_(
    store: Store, file: Path, trusted: Container[bytes], keep: Callable[[list[Profile]], None] | None = None
) -> Contents:
    """Verify a bundle and take everything in it into the store.

    Args:
        trusted: public keys of those whose bundles are taken in.
        keep: is given its profiles, where it has some.

    Raises `UntrustedBundle`, `BundleError` where a byte of it is not as it should be (then the store is unchanged),
    `StoreFull`, `StoreError`.
    """
    try:
        source = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", file=str(file)) from error
    with source:
        if store.read_only:
            raise StoreError("the store may not be written", file=str(store.folder))
        manifest = _verified(source, file, trusted)
        # Checked to the last byte; from here on only a full disk or a file changed under us can stop it, and what was
        # put by then is unreferenced: results become visible after all their blobs.
        source.seek(0)
        _read_manifest(source, file)
        _put_blobs(store, source, manifest, file)
        now_ns = time.time_ns()
        for entry in manifest.results:
            result = _result(entry, now_ns)
            for one in entry.sets:
                store.publish(Digest(one.first.hex()), _input_set(entry, one, manifest), result)
    if manifest.profiles and keep is not None:
        keep(manifest.profiles)
    return _contents(manifest)


def _put_blobs(store: Store, source: BinaryIO, manifest: Manifest, file: Path) -> None:
    for digest, size in manifest.blobs:
        if size <= _IN_MEMORY_BYTES:
            store.put_bytes(b"".join(_blob(source, digest, size, file)))
        else:
            _put_large(store, source, digest, size, file)
    for name, digest, size in manifest.kernels:
        try:
            kept_kernels.take_in(store.folder, name.decode(), b"".join(_blob(source, digest, size, file)))
        except OSError as error:
            raise write_error(error, store.folder) from error
        except ValueError as error:
            raise StoreError(f"no kernel can be signed: {error}", file=str(store.folder)) from error


# ---------------------------------------------------------------- writing


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
    entries: list[Entry] = []
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
            files = tuple((_bytes(name), _raw(digest)) for name, digest in known.files)
            number = lists.setdefault(files, len(lists))
            folders = [(_bytes(path), stamp == PRESENT) for path, stamp in known.folders]
            sets.append(Set(first, number, folders, [(_bytes(name), _bytes(path)) for name, path in known.roots]))
        if not sets:
            continue  # nothing leads to it: nobody could find it
        for digest in result.digests():
            size = store.blobs.size_bytes(digest)
            sizes[_raw(digest)] = 0 if size is None else size
        timing = result.timing
        entries.append(
            Entry(
                key,
                _bytes(result.action),
                [(_bytes(out.name), _raw(out.digest), out.size_bytes, out.executable) for out in result.outputs],
                None if result.stdout is None else _raw(result.stdout),
                None if result.stderr is None else _raw(result.stderr),
                (timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes),
                sorted(sets, key=lambda one: (one.first, one.files)),
                list(result.kernels),
            )
        )
    kernels = []
    for name, content in kept_kernels.sound(store.folder) if everything else ():
        kernels.append((name.encode(), blake3(content).digest(), len(content)))
    return Manifest(entries, [list(files) for files in lists], sorted(sizes.items()), kernels=sorted(kernels))


def _sets_of(store: Store, key: bytes) -> Iterator[tuple[bytes, InputSet]]:
    rows = store.database.rows("SELECT DISTINCT first FROM input_sets WHERE key = ? ORDER BY first", (key,))
    for (first,) in rows:
        for known in store.input_sets(Digest(first.hex())):
            if known.key == key.hex():
                yield first, known


def _write_blob(store: Store, raw: bytes, writer: _HashingWriter, file: Path) -> None:
    """Packed anew from its content, so that the bytes do not depend on how the store keeps it."""
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    size = 0
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
        try:
            for chunk in store.blobs.chunks(Digest(raw.hex())):
                size += len(chunk)
                spool.write(packer.compress(chunk))
            spool.write(packer.flush())
            stored = spool.tell()
            if stored < size:
                writer.write(_BLOB.pack(Encoding.ZSTD, stored))
                spool.seek(0)
                while chunk := spool.read(_CHUNK_BYTES):
                    writer.write(chunk)
                return
            writer.write(_BLOB.pack(Encoding.RAW, size))
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
        content = kept_kernels.read(store.folder, name)
    except (FileNotFoundError, ValueError):
        content = b""
    if blake3(content).digest() != digest:
        raise StoreError("a kernel was removed while it was exported", file=str(store.folder), next_step="export again")
    packed = _pack(content)
    writer.write(_BLOB.pack(Encoding.ZSTD, len(packed)) + packed)


def _pack(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(plain)


# ---------------------------------------------------------------- reading


def _verified(source: BinaryIO, file: Path, trusted: Container[bytes]) -> Manifest:
    """Read a whole bundle, believing nothing; its manifest."""
    size = os.fstat(source.fileno()).st_size
    if size < _HEAD.size + _END_BYTES:
        raise _bad(file, "it is too short")
    magic, version, *_ = _HEAD.unpack(source.read(_HEAD.size))
    if magic != _MAGIC:
        raise _bad(file, "it does not begin like one")
    if version != _VERSION:
        raise _bad(file, f"it has version {version}, this buildd reads {_VERSION}")
    source.seek(0)
    hasher, left = blake3(), size - _END_BYTES
    while left > 0 and (chunk := source.read(min(_CHUNK_BYTES, left))):
        hasher.update(chunk)
        left -= len(chunk)
    check, key = source.read(_CHECK_BYTES), source.read(KEY_BYTES)
    if left or check != hasher.digest():
        raise _bad(file, "its checksum is wrong (cut short, or damaged on the way)")
    if not is_signed(_SIGNED + check, key, source.read(SIGNATURE_BYTES)):
        raise _bad(file, "its signature is not that of its content")
    if key not in trusted:
        raise UntrustedBundle(
            f"it is signed by {key.hex()}, whom nobody trusts here; nothing was imported",
            file=str(file),
            next_step=f"if you know whose key that is: buildd cache trust {key.hex()} NAME",
        )
    source.seek(0)
    manifest = _read_manifest(source, file)
    if why := problem_of(manifest):
        raise _bad(file, why)
    for digest, blob_bytes in (*manifest.blobs, *((digest, size) for _, digest, size in manifest.kernels)):
        for _ in _blob(source, digest, blob_bytes, file):
            pass
    if source.tell() != size - _END_BYTES:
        raise _bad(file, "there is something behind its last blob")
    return manifest


def _read_manifest(source: BinaryIO, file: Path) -> Manifest:
    head = source.read(_HEAD.size)
    if len(head) != _HEAD.size:
        raise _bad(file, "it is too short")
    _, _, reserved, packed_bytes, plain_bytes = _HEAD.unpack(head)
    if reserved != 0:
        raise _bad(file, "it does not begin like one")
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
    head = source.read(_BLOB.size)
    if len(head) != _BLOB.size:
        raise _bad(file, "it ends before its last blob")
    encoding, stored = _BLOB.unpack(head)
    start = source.tell()
    end = start + stored
    if encoding not in tuple(Encoding) or end > os.fstat(source.fileno()).st_size - _END_BYTES:
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


def _result(entry: Entry, created_ns: int) -> Result:
    wall_s, user_s, system_s, peak = entry.timing
    return Result(
        key=Digest(entry.key.hex()),
        action=_str(entry.action),
        outputs=tuple(
            StoredOutput(_str(name), Digest(digest.hex()), size, executable)
            for name, digest, size, executable in entry.outputs
        ),
        stdout=None if entry.stdout is None else Digest(entry.stdout.hex()),
        stderr=None if entry.stderr is None else Digest(entry.stderr.hex()),
        timing=Timing(wall_s=wall_s, user_s=user_s, system_s=system_s, peak_rss_bytes=peak),
        created_ns=created_ns,
        kernels=tuple(entry.kernels),
    )


def _stamp(path: bytes, present: bool) -> int:
    """What an import knows of a folder: stamps are one machine's own. A link is a folder and, behind a NUL, what it led
    to, which is compared here as it is there."""
    if b"\0" in path:
        return LINK
    return PRESENT if present else UNKNOWN


def _input_set(entry: Entry, one: Set, manifest: Manifest) -> InputSet:
    return InputSet(
        files=tuple((_str(name), Digest(digest.hex())) for name, digest in manifest.lists[one.files]),
        folders=tuple((_str(path), _stamp(path, present)) for path, present in one.folders),
        roots=tuple((_str(name), _str(path)) for name, path in one.roots),
        key=Digest(entry.key.hex()),
    )


def _contents(manifest: Manifest) -> Contents:
    return Contents(
        results=len(manifest.results),
        blobs=len(manifest.blobs),
        blob_bytes=sum(size for _, size in manifest.blobs),
        profiles=len(manifest.profiles),
        kernels=len(manifest.kernels),
    )


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _str(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")


def _raw(digest: str) -> bytes:
    raw = raw_digest(digest)
    if raw is None:
        raise ValueError(f"not a digest: {digest!r}")
    return raw


def _bad(file: Path, why: str) -> BundleError:
    return BundleError(
        f"this is no sound bundle: {why}; nothing was imported", file=str(file), next_step="export or fetch it again"
    )
