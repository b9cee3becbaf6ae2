"""What a bundle says of its content: results, input sets that lead to them, blobs, profiles; and if that can be so.

Knows no file and no store. Digests are 32 bytes, names and paths are bytes; what each field means stands in `bundle`.
"""

from __future__ import annotations

import re

import msgspec

from buildd.profiles import Profile
from protocol.messages import Kernel

MAX_NAME_BYTES = 4096
MAX_KERNEL_BYTES = 256 << 20
KERNEL_NAME = re.compile(rb"(inductor/)?[0-9a-f]{32}")


class Set(msgspec.Struct, frozen=True, array_like=True):
    """An input set that leads to a result; `files` is the number of a list."""

    first: bytes
    files: int
    folders: list[tuple[bytes, bool]]
    roots: list[tuple[bytes, bytes]]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A result."""

    key: bytes
    action: bytes
    outputs: list[tuple[bytes, bytes, int, bool]]
    stdout: bytes | None
    stderr: bytes | None
    timing: tuple[float, float, float, int]
    sets: list[Set]
    kernels: list[Kernel] = []


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All of a bundle but its bytes."""

    results: list[Entry]
    lists: list[list[tuple[bytes, bytes]]]
    blobs: list[tuple[bytes, int]]
    profiles: list[Profile] = []
    kernels: list[tuple[bytes, bytes, int]] = []
    """Triton's, and graphs of Inductor's: name of the file, digest, size."""


def problem_of(manifest: Manifest) -> str:
    """Everything in a manifest that a type does not say; empty where it is sound."""
    digests = [digest for digest, _ in manifest.blobs]
    if digests != sorted(set(digests)) or not all(_is_digest(d) and size >= 0 for d, size in manifest.blobs):
        return "its list of blobs is not in order"
    sizes = dict(manifest.blobs)
    keys = [entry.key for entry in manifest.results]
    if keys != sorted(set(keys)) or not all(map(_is_digest, keys)):
        return "its list of results is not in order"
    for names in manifest.lists:
        if not all(_is_text(name) and _is_digest(digest) for name, digest in names):
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
            if not (_is_digest(one.first) and 0 <= one.files < len(manifest.lists) and all(map(_is_text, paths))):
                return "an input set is not sound"
    kernels = [name for name, _, _ in manifest.kernels]
    if kernels != sorted(set(kernels)) or not all(map(KERNEL_NAME.fullmatch, kernels)):
        return "its list of kernels is not in order"
    if not all(_is_digest(digest) and 0 <= size <= MAX_KERNEL_BYTES for _, digest, size in manifest.kernels):
        return "a kernel is not sound"
    return "" if all(profile.is_possible for profile in manifest.profiles) else "a profile has impossible numbers"


def _is_digest(value: bytes) -> bool:
    return len(value) == 32


def _is_text(value: bytes) -> bool:
    return 0 < len(value) <= MAX_NAME_BYTES and b"\0" not in value


def _is_name(value: bytes) -> bool:
    """Of an output: no path of it may leave a folder, whoever joins it to one."""
    return _is_text(value) and not value.startswith(b"/") and b".." not in value.split(b"/")
