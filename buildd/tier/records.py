"""The tier's records and their signatures: what earlier runs of an action read, a run's result, trails, and programs'
entries.

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
from buildd.store.profiles import Profile
from buildd.store.signing import Signer, is_signed
from buildd.store.values import compress, decompress
from buildd.tier import action_result
from buildd.tier.carrier import MAX_OBJECT_BYTES
from protocol.described import described

FORMAT = 2
MOST_SETS = 32
"""Input sets of one action that a writer keeps: the newest."""
MOST_CARRIED_BYTES = 256 << 10
"""The most bytes of objects in one record: a reader that wants one result of it waits for all of them."""
MOST_STEPS = 1024
"""Actions or entries on one trail."""
MOST_PROFILES = 100_000
"""Rows of one writer: the newest."""
MOST_RECORD_BYTES = 64 << 20
_SIGNED = b"buildd tier record\n"


class Kind(Enum):
    """What a record says."""

    INPUTS = "inputs"
    """The sets of files that earlier runs of an action read, each with the key of the result that it leads to."""
    RESULT = "result"
    TRAIL = "trail"
    """The actions whose results, or the entries, that one machine wrote one after another."""
    PROFILES = "profiles"
    """Measurements of kernels."""
    ENTRY = "entry"
    """What programs keep beside the results: a kernel of Triton, a program of JAX, a graph of Inductor."""


class SharedBlob(msgspec.Struct, frozen=True, array_like=True):
    """A blob, as the store knows it and as it is in `cas/`."""

    digest: RawDigest
    size: int
    sha256: RawDigest
    """The digest of the object in `cas/`."""
    stored: int
    """Size of that object."""
    encoding: Encoding


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A small result inside the record that leads to it. It is in a record of its own too, and its blobs are in `cas/`:
    newer results take its room here."""

    result: BundledResult
    """Without input sets."""
    blobs: list[SharedBlob]
    objects: list[bytes]
    """What `cas/` has of each blob."""


class SharedInputs(msgspec.Struct, frozen=True, array_like=True):
    """What one run read."""

    key: RawDigest
    """The key of the result."""
    files: Files
    inputs: BundledInputs
    """Its own `files` is 0: the field above holds the list."""
    carried: Carried | None = None


class InputsRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one action."""

    format: int
    kind: Kind
    name: RawDigest
    first: RawDigest
    """The first-level key of the action."""
    writer: RawDigest
    time_s: int
    sets: Annotated[list[SharedInputs], msgspec.Meta(max_length=MOST_SETS)]
    trail: RawDigest | None = None
    """The trail that the newest of the results is on."""


class ResultRecord(msgspec.Struct, frozen=True, array_like=True):
    """One result."""

    format: int
    kind: Kind
    name: RawDigest
    writer: RawDigest
    time_s: int
    result: BundledResult
    """Without input sets."""
    blobs: list[SharedBlob]


class TrailRecord(msgspec.Struct, frozen=True, array_like=True):
    """A trail of actions, or one of entries. A build that asks for one of its actions is likely to ask for those near
    it next, and so is a program with entries."""

    format: int
    kind: Kind
    name: RawDigest
    trail: RawDigest
    """Its own key: a random number."""
    writer: RawDigest
    time_s: int
    firsts: Annotated[list[RawDigest], msgspec.Meta(max_length=MOST_STEPS)]
    """The first-level keys of the actions, or the keys of the entries, in the order in which they were written."""


class EntryRecord(msgspec.Struct, frozen=True, array_like=True):
    """An entry of `hooks.entries`, without the signature that it has in a store."""

    format: int
    kind: Kind
    name: RawDigest
    entry: RawDigest
    """The key of its place in a store (`entry_key`)."""
    writer: RawDigest
    time_s: int
    blob: SharedBlob
    object: bytes | None
    """The blob as `cas/` would have it; None where it is there."""
    trail: RawDigest | None = None
    """The trail that it is on."""


class ProfilesRecord(msgspec.Struct, frozen=True, array_like=True):
    """All measurements of one writer."""

    format: int
    kind: Kind
    name: RawDigest
    about: RawDigest
    """The one key that there is of this kind."""
    writer: RawDigest
    time_s: int
    rows: Annotated[list[Profile], msgspec.Meta(max_length=MOST_PROFILES)]


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    writer: RawDigest
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    packed: bytes


AnyRecord = InputsRecord | ResultRecord | TrailRecord | EntryRecord | ProfilesRecord
Record = TypeVar("Record", InputsRecord, ResultRecord, TrailRecord, EntryRecord, ProfilesRecord)


class RefusedRecord(Exception):
    """An entry that is none of the record that was asked for; its text says why."""


def name_of(kind: Kind, key: bytes, writer: bytes) -> bytes:
    """The name under `ac/` of a writer's record about a first-level key, a result's key, a trail or an entry."""
    return hashlib.sha256(b"buildd tier %d %s\n%b%b" % (FORMAT, kind.value.encode(), key, writer)).digest()


def entry_key(place: str) -> bytes:
    """The key of an entry, from its place in a store, such as "triton/5f0c..."."""
    return hashlib.sha256(b"buildd entry\n" + place.encode()).digest()


def sealed(record: AnyRecord, signer: Signer) -> bytes:
    """The entry that holds a record: signed, and in the form that Bazel's servers accept."""
    packed = compress(msgspec.msgpack.encode(record))
    envelope = msgspec.msgpack.encode(_Envelope(signer.public, signer.sign(_SIGNED + packed), packed))
    blobs: list[SharedBlob] = []
    # Only these: a server that has dropped a blob drops the entry that names it. A record of inputs that carries
    # results stands without `cas/`, and one lost blob must not take all other results with it.
    if isinstance(record, ResultRecord):
        blobs = record.blobs
    elif isinstance(record, EntryRecord) and record.object is None:
        blobs = [record.blob]
    files = [action_result.NamedFile(b.digest.hex(), b.sha256, b.stored) for b in blobs]
    return action_result.encode(files, f"buildd {signer.public.hex()[:16]}", envelope)


def opened(entry: bytes, record: type[Record], kind: Kind, key: bytes, writer: bytes) -> Record:
    """The record in an entry that was asked for by its name.

    Args:
        key: the first-level key, the result's key, the trail or the entry that it must be about.
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
    if found.name != name_of(kind, key, writer) or _about(found) != key or found.writer != writer:
        raise RefusedRecord("it was signed for another name")
    return found


def carried_size(led: SharedInputs) -> int:
    """Bytes of the objects that come with it."""
    return sum(map(len, led.carried.objects)) if led.carried is not None else 0


def within_bounds(sets: list[SharedInputs]) -> list[SharedInputs]:
    """The newest sets, of which the newest carry their results; the newest is first."""
    kept, bytes_left = [], MOST_CARRIED_BYTES
    for led in sets[:MOST_SETS]:
        bytes_left -= carried_size(led)
        kept.append(led if bytes_left >= 0 else msgspec.structs.replace(led, carried=None))
    return kept


def problem_of_result(result: BundledResult, blobs: list[SharedBlob], led: SharedInputs) -> str:
    """Why a result and what leads to it are unsound, though signed; empty where they are sound."""
    if led.key != result.key:
        return "the inputs lead to another result"
    whole = msgspec.structs.replace(result, sets=[led.inputs])
    if why := problem_of(Manifest([whole], [led.files], sorted((blob.digest, blob.size) for blob in blobs))):
        return why
    if not all(0 <= blob.size <= MAX_OBJECT_BYTES and 0 <= blob.stored <= MAX_OBJECT_BYTES for blob in blobs):
        return "a blob has an impossible size"
    return ""


def _about(record: AnyRecord) -> bytes:
    match record:
        case InputsRecord():
            return record.first
        case ResultRecord():
            return record.result.key
        case TrailRecord():
            return record.trail
        case EntryRecord():
            return record.entry
        case ProfilesRecord():
            return record.about
