"""The tier's two kinds of records, and their signatures: what earlier runs of an action read, and a run's result.

A record is signed over everything that it says: its format, the name that it answers to, the digests, the writer and
the time. `opened` gives a record only to a caller who asked for exactly this name of this writer, so that an entry of
another name, another writer, another kind or an older format is none. Knows no carrier and no store.

Each writer has records of its own: the name holds the writer's key. So no writer can lose another one's part.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Annotated, TypeVar

import msgspec

from buildd.store.bundle_manifest import BundledInputs, BundledResult, Files, Manifest, RawDigest, problem_of
from buildd.store.packing import Encoding
from buildd.store.signing import Signer, is_signed
from buildd.store.values import compress, decompress
from buildd.tier import action_result
from buildd.tier.carrier import MAX_OBJECT_BYTES
from protocol.described import described

FORMAT = 1
MOST_SETS = 32
"""Input sets of one action that a writer keeps: the newest."""
MOST_RECORD_BYTES = 64 << 20
_SIGNED = b"buildd tier record\n"


class Kind(Enum):
    """What a record says."""

    INPUTS = "inputs"
    """The sets of files that earlier runs of an action read, each with the key of the result that it leads to."""
    RESULT = "result"


class SharedInputs(msgspec.Struct, frozen=True, array_like=True):
    """What one run read."""

    key: RawDigest
    """The key of the result."""
    files: Files
    inputs: BundledInputs
    """Its own `files` is 0: the field above holds the list."""


class SharedBlob(msgspec.Struct, frozen=True, array_like=True):
    """A blob, as the store knows it and as it is in `cas/`."""

    digest: RawDigest
    size: int
    sha256: RawDigest
    """The digest of the object in `cas/`."""
    stored: int
    """Size of that object."""
    encoding: Encoding


class InputsRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the first kind."""

    format: int
    kind: Kind
    name: RawDigest
    first: RawDigest
    """The first-level key of the action."""
    writer: RawDigest
    time_s: int
    sets: Annotated[list[SharedInputs], msgspec.Meta(max_length=MOST_SETS)]


class ResultRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the second kind."""

    format: int
    kind: Kind
    name: RawDigest
    writer: RawDigest
    time_s: int
    result: BundledResult
    """Without input sets."""
    blobs: list[SharedBlob]


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    writer: RawDigest
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    packed: bytes


Record = TypeVar("Record", InputsRecord, ResultRecord)


class RefusedRecord(Exception):
    """An entry that is none of the record that was asked for; its text says why."""


def name_of(kind: Kind, key: bytes, writer: bytes) -> bytes:
    """The name under `ac/` of a writer's record about a first-level key or a result's key."""
    return hashlib.sha256(b"buildd tier %d %s\n%b%b" % (FORMAT, kind.value.encode(), key, writer)).digest()


def sealed(record: InputsRecord | ResultRecord, signer: Signer) -> bytes:
    """The entry that holds a record: signed, and in the form that Bazel's servers accept."""
    packed = compress(msgspec.msgpack.encode(record))
    envelope = msgspec.msgpack.encode(_Envelope(signer.public, signer.sign(_SIGNED + packed), packed))
    files = []
    if isinstance(record, ResultRecord):
        files = [action_result.NamedFile(b.digest.hex(), b.sha256, b.stored) for b in record.blobs]
    return action_result.encode(files, f"buildd {signer.public.hex()[:16]}", envelope)


def opened(entry: bytes, record: type[Record], kind: Kind, key: bytes, writer: bytes) -> Record:
    """The record in an entry that was asked for by its name.

    Args:
        key: the first-level key or the result's key that it must be about.
        writer: the trusted key that must have signed it.

    Raises `RefusedRecord`.
    """
    auxiliary = action_result.auxiliary_of(entry)
    if auxiliary is None:
        raise RefusedRecord("it is no entry of buildd's")
    try:
        envelope = msgspec.msgpack.decode(auxiliary, type=described(_Envelope))
    except (msgspec.MsgspecError, RecursionError):
        raise RefusedRecord("it is no entry of buildd's") from None
    if envelope.writer != writer:
        raise RefusedRecord("another key has signed it")
    # Before anything else is read: unpacking and decoding are for bytes of a writer who is trusted.
    if not is_signed(_SIGNED + envelope.packed, writer, envelope.signature):
        raise RefusedRecord("its signature is wrong")
    plain = decompress(envelope.packed, MOST_RECORD_BYTES)
    if plain is None:
        raise RefusedRecord("it cannot be unpacked")
    try:
        found = msgspec.msgpack.decode(plain, type=described(record))
    except (msgspec.MsgspecError, RecursionError):
        raise RefusedRecord("it is another kind of record, or of another version") from None
    if found.format != FORMAT or found.kind is not kind:
        raise RefusedRecord("it is another kind of record, or of another version")
    about = found.first if isinstance(found, InputsRecord) else found.result.key
    if found.name != name_of(kind, key, writer) or about != key or found.writer != writer:
        raise RefusedRecord("it was signed for another name")
    return found


def problem_of_result(record: ResultRecord, led: SharedInputs) -> str:
    """Why a result and what leads to it are unsound, though signed; empty where they are sound."""
    if led.key != record.result.key:
        return "the inputs lead to another result"
    result = msgspec.structs.replace(record.result, sets=[led.inputs])
    blobs = sorted((blob.digest, blob.size) for blob in record.blobs)
    if why := problem_of(Manifest([result], [led.files], blobs)):
        return why
    if not all(0 <= blob.size <= MAX_OBJECT_BYTES and 0 <= blob.stored <= MAX_OBJECT_BYTES for blob in record.blobs):
        return "a blob has an impossible size"
    return ""
