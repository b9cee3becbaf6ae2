"""A record as the `ActionResult` of REAPI v2, so that servers of Bazel's cache accept it under `ac/`.

bazel-remote refuses an entry that is no ActionResult, and does not give one out whose files it has dropped. It may also
write its own name into an entry. So what buildd believes is only the auxiliary metadata, whose signature covers it;
the files beside it are for the server. Encodes and reads the few fields that this needs (field numbers:
`build.bazel.remote.execution.v2`); knows no record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TYPE_URL = b"type.googleapis.com/buildd.tier.v1.Record"
_OUTPUT_FILES, _EXECUTION_METADATA = 2, 9
_WORKER, _AUXILIARY = 1, 11
_BYTES = 2
"""The wire type of texts, bytes and messages."""
_LONGEST_VARINT = 10


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file in `cas/` that an entry needs."""

    name: str
    sha256: bytes
    size_bytes: int


def encode(files: Sequence[NamedFile], worker: str, auxiliary: bytes) -> bytes:
    """The entry.

    Args:
        worker: who wrote it; a server names itself where this is empty.
    """
    parts = [_field(_OUTPUT_FILES, _file(file)) for file in files]
    metadata = _field(_WORKER, worker.encode())
    metadata += _field(_AUXILIARY, _field(1, TYPE_URL) + _field(2, auxiliary))
    return b"".join((*parts, _field(_EXECUTION_METADATA, metadata)))


def auxiliary_of(entry: bytes) -> bytes | None:
    """The metadata that `encode` was given; None where the bytes are no such entry."""
    try:
        for metadata in _values(entry, _EXECUTION_METADATA):
            for packed in _values(metadata, _AUXILIARY):
                if TYPE_URL in _values(packed, 1):
                    return next(_values(packed, 2), None)
    except ValueError:
        pass
    return None


def _file(file: NamedFile) -> bytes:
    digest = _field(1, file.sha256.hex().encode()) + _varint(2 << 3) + _varint(file.size_bytes)
    return _field(1, file.name.encode(errors="replace")) + _field(2, digest)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _values(message: bytes, wanted: int) -> Iterator[bytes]:
    """The values of a field of bytes, in order. Raises ValueError where this is no message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        match tag & 7:
            case 0:
                _, at = _read_varint(message, at)
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(message, at)
                end = at + size
                if end > len(message):
                    raise ValueError("a field reaches beyond its end")
                if tag >> 3 == wanted:
                    yield message[at:end]
                at = end
            case 5:
                at += 4
            case _:
                raise ValueError("no field begins here")
    if at != len(message):
        raise ValueError("a field reaches beyond its end")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_VARINT):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at
    raise ValueError("a number has no end")
