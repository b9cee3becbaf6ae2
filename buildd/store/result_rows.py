"""Results and input sets, and the bytes that hold them in rows of the index.

Knows no table and no blob. Encoded results and input sets carry a checksum that covers their key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from buildd.store.values import compress, raw_digest, seal, unseal
from protocol.messages import Digest, Kernel, Timing

UNKNOWN = -1
"""In place of a folder's stamp: nothing is known about the folder, and no stamp matches."""
PRESENT = -2
"""In place of a folder's stamp: the path is no folder but a file that existed and was not used."""
LINK = -3
"""In place of a folder's stamp: the path is a folder and, behind a zero byte, the folder that its links led to."""

FileList = tuple[tuple[str, Digest], ...]
FileRows = Sequence[tuple[bytes, bytes]]
"""A list of files as rows and records have it."""
_NO_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One file of a result."""

    name: str
    digest: Digest
    size_bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outputs of an action, and what its tool printed."""

    key: Digest
    action: str
    """The action's name when it ran: for people and for `flush PATTERN`."""
    outputs: tuple[StoredOutput, ...]
    stdout: Digest | None = None
    stderr: Digest | None = None
    timing: Timing = _NO_TIMING
    created_ns: int = 0
    kernels: tuple[Kernel, ...] = ()
    """The kernels in its outputs."""

    def digests(self) -> tuple[Digest, ...]:
        """The digests of all blobs that the result needs, each once."""
        said = [digest for digest in (self.stdout, self.stderr) if digest is not None]
        return tuple(dict.fromkeys([*(output.digest for output in self.outputs), *said]))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """The discovered inputs of a past run."""

    files: FileList
    """Name as keyed -> digest of its content, or the digests of its two bare forms (`native.bare_text`)."""
    folders: tuple[tuple[str, int], ...] = ()
    """Path as keyed -> stamp of each folder whose listing could shadow one of the files, or one of the marks above."""
    roots: tuple[tuple[str, str], ...] = ()
    """Root name -> absolute path, where a used file's path reaches the result."""
    key: Digest
    """Key of the result that these files lead to."""


class _ResultBody(msgspec.Struct, frozen=True, array_like=True):
    action: bytes
    outputs: list[tuple[bytes, bytes, int, bool]]
    stdout: bytes | None
    stderr: bytes | None
    timing: tuple[float, float, float, int]
    created_ns: int
    kernels: list[Kernel] = []


_result_decoder = msgspec.msgpack.Decoder(_ResultBody)
_files_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_folders_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, int]])
_roots_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_encoder = msgspec.msgpack.Encoder()


def encode_result(result: Result) -> bytes:
    timing = result.timing
    body = _ResultBody(
        _on_disk(result.action),
        [(_on_disk(out.name), raw_of(out.digest), out.size_bytes, out.executable) for out in result.outputs],
        None if result.stdout is None else raw_of(result.stdout),
        None if result.stderr is None else raw_of(result.stderr),
        (timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes),
        result.created_ns,
        list(result.kernels),
    )
    return seal(raw_of(result.key), _encoder.encode(body))


def decode_result(key: bytes, sealed: object) -> Result | None:
    plain = unseal(key, sealed)
    if plain is None:
        return None
    try:
        body = _result_decoder.decode(plain)
    except msgspec.MsgspecError:
        return None
    wall_s, user_s, system_s, peak = body.timing
    return Result(
        key=Digest(key.hex()),
        action=_text(body.action),
        outputs=tuple(
            StoredOutput(name=_text(name), digest=Digest(digest.hex()), size_bytes=size, executable=executable)
            for name, digest, size, executable in body.outputs
        ),
        stdout=None if body.stdout is None else Digest(body.stdout.hex()),
        stderr=None if body.stderr is None else Digest(body.stderr.hex()),
        timing=Timing(wall_s=wall_s, user_s=user_s, system_s=system_s, peak_rss_bytes=peak),
        created_ns=body.created_ns,
        kernels=tuple(body.kernels),
    )


def encode_input_set(first: bytes, key: bytes, files: bytes, folders: bytes, input_set: InputSet) -> bytes:
    roots = [(_on_disk(name), _on_disk(path)) for name, path in input_set.roots]
    return seal(first + key + files + folders, _encoder.encode(roots))


def files_list(input_set: InputSet) -> tuple[bytes, bytes]:
    return _pack([(_on_disk(name), raw_text(digest)) for name, digest in input_set.files])


def folders_list(input_set: InputSet) -> tuple[bytes, bytes]:
    return _pack([(_on_disk(path), stamp) for path, stamp in input_set.folders])


def _pack(entries: Sequence[tuple[bytes, bytes | int]]) -> tuple[bytes, bytes]:
    """Digest of a list, and the list compressed. Equal lists of many actions are one row."""
    plain = _encoder.encode(entries)
    return blake3(plain).digest(), compress(plain)


def decode_files(plain: bytes) -> FileList | None:
    try:
        return file_list(_files_decoder.decode(plain))
    except msgspec.MsgspecError:
        return None


def file_list(rows: FileRows) -> FileList:
    return tuple((_text(name), Digest(digest.hex())) for name, digest in rows)


def files_digest(rows: FileRows) -> bytes:
    """The digest by which `files_list` names the list."""
    return blake3(_encoder.encode(rows)).digest()


def decode_folders(plain: bytes) -> tuple[tuple[str, int], ...] | None:
    try:
        return tuple((_text(path), stamp) for path, stamp in _folders_decoder.decode(plain))
    except msgspec.MsgspecError:
        return None


def decode_roots(body: bytes) -> tuple[tuple[str, str], ...] | None:
    try:
        return tuple((_text(name), _text(path)) for name, path in _roots_decoder.decode(body))
    except msgspec.MsgspecError:
        return None


def _on_disk(text: str) -> bytes:
    """Names that are not UTF-8 arrive with surrogates, which MessagePack's strings cannot hold."""
    return text.encode(errors="surrogateescape")


def _text(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")


def raw_text(digest: str) -> bytes:
    """The bytes of a digest of a content, or of the two digests of a text's bare forms."""
    if len(digest) == 64 or len(digest) == 128:
        return bytes.fromhex(digest)
    raise ValueError(f"not a digest: {digest!r}")


def raw_of(digest: str) -> bytes:
    raw = raw_digest(digest)
    if raw is None:
        raise ValueError(f"not a digest: {digest!r}")
    return raw
