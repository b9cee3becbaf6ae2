"""The manifest of a bundle: results, the input sets that lead to them, blobs, profiles; and checks of its soundness.

Knows no file and no store. Digests are 32 bytes, names and paths are bytes; `bundle` describes each field.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from buildd.store.profiles import Profile
from protocol.messages import Kernel

MAX_NAME_BYTES = 4096
MAX_KERNEL_BYTES = 256 << 20
KERNEL_NAME = re.compile(rb"((inductor|jax|ccache)/)?[0-9a-f]{32}")
MOST_LISTS = 1 << 20

# Checked while a manifest is decoded: many empty items would need sixty times the memory of the bytes that hold them.
RawDigest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[bytes, msgspec.Meta(min_length=1)]
FileDigests = Annotated[bytes, msgspec.Meta(min_length=32, max_length=64)]
"""The digest of a file's content; if a compiler sees less than the file, the digest of that follows it."""
Files = list[tuple[Name, FileDigests]]


class BundledInputs(msgspec.Struct, frozen=True, array_like=True):
    """An input set that leads to a result; `files` is the number of a list."""

    first: RawDigest
    files: int
    folders: list[tuple[Name, bool]]
    roots: list[tuple[Name, Name]]


class BundledResult(msgspec.Struct, frozen=True, array_like=True):
    """A result."""

    key: RawDigest
    action: Name
    outputs: list[tuple[Name, RawDigest, int, bool]]
    stdout: RawDigest | None
    stderr: RawDigest | None
    timing: tuple[float, float, float, int]
    sets: list[BundledInputs]
    kernels: list[Kernel] = []


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All of a bundle but its bytes."""

    results: list[BundledResult]
    lists: Annotated[list[Files], msgspec.Meta(max_length=MOST_LISTS)]
    blobs: list[tuple[RawDigest, int]]
    profiles: list[Profile] = []
    kernels: list[tuple[Name, RawDigest, int]] = []
    """Triton's kernels and Inductor's graphs: name of the file, digest, size."""


def problem_of(manifest: Manifest) -> str:
    """Why a manifest is unsound, as far as its types do not show it; empty where it is sound."""
    digests, sizes = [digest for digest, _ in manifest.blobs], dict(manifest.blobs)
    if digests != sorted(set(digests)) or not all(size >= 0 for size in sizes.values()):
        return "its list of blobs is not in order"
    keys = [entry.key for entry in manifest.results]
    if keys != sorted(set(keys)):
        return "its list of results is not in order"
    for names in manifest.lists:
        if not all(_is_text(name) and len(digest) in (32, 64) for name, digest in names):
            return "a list of files holds what is no name or no digest"
    for entry in manifest.results:
        if not _is_text(entry.action) or not all(_is_name(name) for name, *_ in entry.outputs):
            return "a result has an impossible name"
        if len({name for name, *_ in entry.outputs}) != len(entry.outputs):
            return "a result has two outputs of one name"
        for _, digest, size, _ in entry.outputs:
            if sizes.get(digest) != size:
                return "an output is not among the blobs, or has another size"
        if not {entry.stdout, entry.stderr} - {None} <= sizes.keys():
            return "a log is not among the blobs"
        if not entry.sets:
            return "nothing leads to a result"
        if not all(0 <= figure < 1 << 62 for figure in entry.timing):
            return "a result has an impossible time"
        for one in entry.sets:
            paths = [part for path, _ in one.folders for part in path.split(b"\0", 1)]
            paths += [part for pair in one.roots for part in pair]
            if not (0 <= one.files < len(manifest.lists) and all(map(_is_text, paths))):
                return "an input set is not sound"
    kernels = [name for name, _, _ in manifest.kernels]
    if kernels != sorted(set(kernels)) or not all(map(KERNEL_NAME.fullmatch, kernels)):
        return "its list of kernels is not in order"
    if not all(0 <= size <= MAX_KERNEL_BYTES for _, _, size in manifest.kernels):
        return "a kernel is not sound"
    return "" if all(profile.is_possible for profile in manifest.profiles) else "a profile has impossible numbers"


def _is_text(value: bytes) -> bool:
    return 0 < len(value) <= MAX_NAME_BYTES and b"\0" not in value


def _is_name(value: bytes) -> bool:
    """Whether an output may have this name: joined to a folder, it must not lead out of that."""
    return _is_text(value) and not value.startswith(b"/") and b".." not in value.split(b"/")
