"""Bundles that a trusted key has signed although somebody hostile wrote their manifest.

Draws edits of a sound bundle as steps (see `trials`), and carries them out. Knows the format from `bundle_format`'s
document, so that what is hostile does not come from the code that reads it.
"""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import msgspec
import zstandard
from blake3 import blake3

from buildd.store.signing import Signer, signer_of
from tests.support.mutations import EDITS, Tree, edit

SIGNER: Signer = signer_of(b"s" * 32)


_HEAD = struct.Struct("<8sHHQQ")
_BLOB = struct.Struct("<BQ")
_END_BYTES = 32 + 32 + 64

NAMES = (
    b"", b".", b"..", b"/", b"//", b"../x", b"../../../../etc/passwd", b"/etc/passwd", b"a/../../b", b"a/..", b"a\0b",
    b"\0", b"x" * 4096, b"x" * 4097, b"\xff\xfe", b"\x1b[2J", b"-rf", b"a\nb", b"~", b"tmp/../..", b"./x", b"a//b",
    b"index.db", b"blobs", b"/proc/self/fd/0", b"/dev/zero", b"inductor/../index.db", b"inductor/" + b"a" * 32,
)  # fmt: skip
FACTS = (
    b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"key": 1, "group": [], "files": []}',
    b'{"key": "k", "group": "g", "files": [["../../x", 7]]}', b'{"key": "k", "group": "g", "files": [["x", -7]]}',
    b'{"key": "k", "group": "g", "files": [["x", 1e400]]}', b'{"key": "k", "group": "g", "files": {"x": 7}}',
    b'{"key": "k", "group": "g", "files": [[1, 7]]}', b'{"key": "k", "group": "g", "files": [["x", 7]]}',
    b'{"key": "k", "group": "g", "files": [["x"]]}', b'{"key": "k", "group": "g", "files": [["", 7]]}',
    b'{"key": "\\ud800", "group": "g", "files": [["x", 7]]}', b'{"key": "k", "group": "../g", "files": [["../g", 7]]}',
)  # fmt: skip
"""What an entry of a kernel may say about itself; `content` follows it."""
VERSIONS = (0, 1, 3, 255, 65535)
KINDS = (*EDITS, "kernel")
FRAMES = (
    "version",
    "reserved",
    "plain",
    "packed",
    "bomb",
    "two frames",
    "cut frame",
    "blob",
    "behind",
    "no blobs",
    "many lists",
)


def split(bundle: bytes) -> tuple[Tree, bytes]:
    """Manifest and blobs of a sound bundle."""
    _, _, _, packed, _ = _HEAD.unpack_from(bundle)
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(bundle[_HEAD.size : _HEAD.size + packed])
    return msgspec.msgpack.decode(plain), bundle[_HEAD.size + packed : -_END_BYTES]


def draw(rng: random.Random) -> list[Any]:
    """Some edits; nearly always of the manifest alone, else everything would end at the frames."""
    steps: list[Any] = [[rng.choice(KINDS), rng.getrandbits(32)] for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if rng.random() < 0.12:
        steps.append([rng.choice(FRAMES), rng.getrandbits(32)])
    return steps


def signed(manifest: Tree, blobs: bytes, steps: list[Any]) -> bytes:
    """The bundle after the edits, with a right checksum and signature."""
    frames = []
    for kind, seed in steps:
        if kind in FRAMES:
            frames.append((kind, random.Random(seed)))
        elif kind == "kernel":
            blobs = _with_kernel(manifest, blobs, random.Random(seed))
        else:
            edit(manifest, kind, random.Random(seed), NAMES)
    plain = msgspec.msgpack.encode(manifest)
    packed = zstandard.ZstdCompressor().compress(plain)
    fields = {"version": 2, "reserved": 0, "plain": len(plain), "packed": len(packed)}
    for kind, rng in frames:
        if kind in fields:
            wrong = (
                VERSIONS if kind in ("version", "reserved") else (0, 1, len(plain) - 1, 256 << 20, 1 << 40, 2**64 - 1)
            )
            fields[kind] = rng.choice(wrong)
        elif kind == "bomb":
            packed = zstandard.ZstdCompressor(level=19).compress(rng.choice((b"\x90", b"\0", b"\x91")) * (20 << 20))
            fields |= {"packed": len(packed), "plain": rng.choice((len(plain), 20 << 20))}
        elif kind == "many lists":
            count = rng.choice((1 << 20, 6 << 20))
            full = b"\x93\x90\xdd" + struct.pack(">I", count) + b"\x90" * count + b"\x90"
            packed = zstandard.ZstdCompressor().compress(full)
            fields |= {"packed": len(packed), "plain": len(full)}
        elif kind == "two frames":
            packed += zstandard.ZstdCompressor().compress(plain)
            fields["packed"] = len(packed)
        elif kind == "cut frame":
            packed = packed[: rng.randrange(len(packed))]
            fields["packed"] = len(packed)
        elif kind == "blob" and blobs:
            blobs = _BLOB.pack(rng.choice((0, 1, 2, 255)), rng.choice((0, 5, 1 << 40, 2**64 - 1))) + blobs[_BLOB.size :]
        elif kind == "behind":
            blobs += rng.randbytes(rng.choice((1, 9, 4096)))
        elif kind == "no blobs":
            blobs = b""
    head = _HEAD.pack(b"buildd\0B", fields["version"], fields["reserved"], fields["packed"], fields["plain"])
    body = head + packed + blobs
    check = blake3(body).digest()
    return body + check + SIGNER.public + SIGNER.sign(b"buildd bundle\0" + check)


def _with_kernel(manifest: Tree, blobs: bytes, rng: random.Random) -> bytes:
    """Make the first kernel an entry with other facts; right digests everywhere."""
    try:
        name, _, _ = manifest[4][0]
    except (IndexError, TypeError, ValueError, KeyError):
        return blobs  # an earlier edit has hit it
    at = last = 0
    while at + _BLOB.size <= len(blobs):
        last, at = at, at + _BLOB.size + _BLOB.unpack_from(blobs, at)[1]
    facts = rng.choice(FACTS)
    rest = struct.pack("<I", rng.choice((len(facts), len(facts), 0, 2**32 - 1))) + facts + b"content"
    check = hashlib.blake2b(rest, digest_size=32).digest()
    entry = b"buildd-entry 2\n\0" + bytes(96) + check + rest
    manifest[4][0] = [name, blake3(entry).digest(), len(entry)]
    return blobs[:last] + _BLOB.pack(0, len(entry)) + entry
