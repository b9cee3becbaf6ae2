"""Bundles: one verified file that holds results, the input sets that lead to them, and every blob they need.

Knows no path of this machine. The same content gives the same bytes on every machine, except for the signature. Nothing
in a bundle is used before it has been checked: first that it is whole and who signed it, then its content. An import
reads it twice, the first time only to verify (`bundle_import`).

Format, version 2; numbers are little-endian:

    magic     8 bytes   "buildd\\0B"
    version   u16       2
    reserved  u16       0
    packed    u64       bytes of the packed manifest
    plain     u64       bytes of the manifest unpacked, at most 256 MiB
    manifest  packed    one zstd frame of MessagePack: [results, lists, blobs, profiles, kernels]
    blobs and kernels   in the manifest's order: u8 encoding (0 raw, 1 one zstd frame), u64 stored bytes, the bytes
    check     32 bytes  BLAKE3 of everything before it
    key       32 bytes  public key (Ed25519) of the exporting user
    signature 64 bytes  of "buildd bundle" NUL check

    results   [[key, action, [[name, digest, size, executable]...], stdout | nil, stderr | nil,
              [wall_s, user_s, system_s, peak_rss_bytes],
              [[first, list of files, [[path, present]...], [[name, path]...]]...]]...]
              sorted by key
    lists     [[[name, digest]...]...] of files; a result names its lists by their number
    blobs     [[digest, size]...] sorted by digest
    profiles  maps, as `buildd.store.profiles.Profile` has them, sorted
    kernels   [[name, digest, size]...] Triton's kernels, Inductor's graphs, JAX's programs and ccache's values, as in
              the files beside the store but without their signatures, sorted by name; the names of all but Triton's
              begin with a folder

Digests are 32 bytes, names and paths are bytes (they need not be UTF-8). A bundle contains no folder stamps, because
they are valid on one machine only: after an import they are unknown. `present` marks a path that is no folder but a
file that existed and was not used. A path with a NUL in it is a link that was followed, and its target, which the
importing machine compares. A bundle does not contain the time of its creation.
"""

from __future__ import annotations

import struct
from collections import Counter

import msgspec

from buildd.errors import StoreError
from buildd.store.bundle_manifest import Manifest
from buildd.store.signing import KEY_BYTES, SIGNATURE_BYTES

MAX_MANIFEST_BYTES = 256 << 20
HEAD = struct.Struct("<8sHHQQ")
BLOB = struct.Struct("<BQ")
MAGIC = b"buildd\0B"
VERSION = 2
CHUNK_BYTES = 1 << 20
CHECK_BYTES = 32
END_BYTES = CHECK_BYTES + KEY_BYTES + SIGNATURE_BYTES
SIGNED = b"buildd bundle\0"
IN_MEMORY_BYTES = 8 << 20


class BundleError(StoreError):
    """A file is no sound bundle; nothing was imported."""

    code = "bad-bundle"


class UntrustedBundle(BundleError):
    """No trusted key has signed the file; nothing was imported."""

    code = "untrusted-bundle"


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle holds."""

    results: int
    blobs: int
    blob_bytes: int
    """Size of the blobs' contents."""
    profiles: int = 0
    kernels: int = 0
    """Triton's."""
    graph_entries: int = 0
    """torch.compile's: each graph has an entry of Inductor and one of AOTAutograd; and tuned configurations."""
    programs: int = 0
    """JAX's."""
    values: int = 0
    """ccache's."""
    known: int = 0
    """After an import: results that the store had already."""


def contents_of(manifest: Manifest) -> Contents:
    folders = Counter(name.rpartition(b"/")[0] for name, _, _ in manifest.kernels)
    return Contents(
        results=len(manifest.results),
        blobs=len(manifest.blobs),
        blob_bytes=sum(size for _, size in manifest.blobs),
        profiles=len(manifest.profiles),
        kernels=folders[b""],
        graph_entries=folders[b"inductor"],
        programs=folders[b"jax"],
        values=folders[b"ccache"],
    )
