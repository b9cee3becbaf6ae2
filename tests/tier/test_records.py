"""Records: what is believed of an entry, and what is not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildd.store.bundle_manifest import BundledInputs, BundledResult
from buildd.store.signing import Signer
from buildd.store.values import compress
from buildd.tier import action_result, records
from buildd.tier.packed_blobs import content_of, packed
from buildd.tier.records import (
    FORMAT,
    InputsRecord,
    Kind,
    RefusedRecord,
    SharedInputs,
    name_of,
    opened,
    problem_of_result,
    sealed,
)
from tests.support.tiers import ALICE, MALLORY

FIRST, KEY, OTHER = b"f" * 32, b"k" * 32, b"o" * 32


def inputs_record(first: bytes = FIRST, writer: Signer = ALICE, **changes: object) -> InputsRecord:
    led = SharedInputs(KEY, [(b"a.h", b"d" * 32)], BundledInputs(first, 0, [(b"include", False)], []))
    name = name_of(Kind.INPUTS, first, writer.public)
    record = InputsRecord(FORMAT, Kind.INPUTS, name, first, writer.public, 1_700_000_000, [led])
    return msgspec.structs.replace(record, **changes)


def read(entry: bytes, first: bytes = FIRST) -> InputsRecord:
    return opened(entry, InputsRecord, Kind.INPUTS, first, ALICE.public)


def test_a_record_comes_back() -> None:
    record = inputs_record()
    assert read(sealed(record, ALICE)) == record


@given(st.data())
def test_no_changed_byte_is_believed(data: st.DataObject) -> None:
    record = inputs_record()
    entry = bytearray(sealed(record, ALICE))
    place = data.draw(st.integers(0, len(entry) - 1))
    entry[place] ^= data.draw(st.integers(1, 255))
    try:
        assert read(bytes(entry)) == record  # the frame around the record is nobody's concern
    except RefusedRecord:
        pass


@pytest.mark.parametrize(
    "entry",
    [
        sealed(inputs_record(writer=MALLORY), MALLORY),
        sealed(inputs_record(), MALLORY),  # Alice's words, signed by another key
        sealed(inputs_record(first=OTHER), ALICE),  # Alice's record of another action under this name
        sealed(inputs_record(format=0), ALICE),
        sealed(inputs_record(kind=Kind.RESULT), ALICE),
        sealed(inputs_record(name=OTHER), ALICE),
        sealed(inputs_record(writer=ALICE), ALICE)[:-1],
        b"",
        b"\xff" * 100,
        action_result.encode([], "x", b"\x93"),
    ],
)
def test_what_alice_did_not_say_about_this_is_refused(entry: bytes) -> None:
    with pytest.raises(RefusedRecord):
        read(entry)


def test_a_signature_of_something_else_of_alices_is_none() -> None:
    body = compress(msgspec.msgpack.encode(inputs_record()))
    signature = ALICE.sign(body)  # without the words that a record's signature begins with
    entry = action_result.encode([], "x", msgspec.msgpack.encode([ALICE.public, signature, body]))
    with pytest.raises(RefusedRecord, match="signature"):
        read(entry)


def test_nothing_is_unpacked_before_the_signature_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("unpacked")

    bomb = compress(bytes(64 << 20))
    entry = action_result.encode([], "x", msgspec.msgpack.encode([ALICE.public, b"s" * 64, bomb]))
    monkeypatch.setattr(records, "decompress", never)
    with pytest.raises(RefusedRecord, match="signature"):
        read(entry)


def test_a_signed_record_is_unpacked_within_bounds() -> None:
    bomb = compress(bytes(records.MOST_RECORD_BYTES + 1))
    entry = action_result.encode(
        [], "x", msgspec.msgpack.encode([ALICE.public, ALICE.sign(b"buildd tier record\n" + bomb), bomb])
    )
    with pytest.raises(RefusedRecord, match="unpacked"):
        read(entry)


def test_a_server_may_write_its_own_name_into_an_entry() -> None:
    record = inputs_record()
    auxiliary = action_result.auxiliary_of(sealed(record, ALICE))
    assert auxiliary is not None
    assert read(action_result.encode([], "bazel-remote", auxiliary)) == record


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": [(b"../../.ssh/authorized_keys", b"b" * 32, 3, False)]},
        {"outputs": [(b"/etc/passwd", b"b" * 32, 3, False)]},
        {"outputs": [(b"o", b"b" * 32, 4, False)]},
        {"outputs": [(b"o", b"x" * 32, 3, False)]},
        {"stdout": b"x" * 32},
        {"action": b"\0"},
        {"key": OTHER},
    ],
)
def test_a_result_that_is_unsound_is_seen_though_it_is_signed(change: dict[str, object]) -> None:
    led = inputs_record().sets[0]
    result = BundledResult(KEY, b"a.o", [(b"o", b"b" * 32, 3, False)], None, None, (1.0, 1.0, 0.0, 1), [])
    blob = msgspec.structs.replace(packed(b"abc")[0], digest=b"b" * 32)
    assert problem_of_result(result, [blob], led) == ""
    assert problem_of_result(msgspec.structs.replace(result, **change), [blob], led) != ""


@given(st.binary(max_size=5000))
def test_blobs_come_back_and_no_other_bytes_do(content: bytes) -> None:
    blob, stored = packed(content)
    assert content_of(blob, stored) == content
    assert content_of(blob, stored + b"x") is None
    assert content_of(blob, stored[:-1] + bytes([stored[-1] ^ 1]) if stored else b"y") is None
    assert content_of(msgspec.structs.replace(blob, digest=b"0" * 32), stored) is None


def test_an_entry_names_its_blobs_as_reapi_does() -> None:
    """Bytes that protoc writes for the same ActionResult; a server decides by them whether the blobs are there."""
    entry = action_result.encode([action_result.NamedFile("n", bytes(32), 300)], "w", b"m")
    digest = b"\x0a\x40" + b"0" * 64 + b"\x10\xac\x02"
    file = b"\x0a\x01n" + b"\x12" + bytes([len(digest)]) + digest
    url = action_result.TYPE_URL
    packed_any = b"\x0a" + bytes([len(url)]) + url + b"\x12\x01m"
    metadata = b"\x0a\x01w" + b"\x5a" + bytes([len(packed_any)]) + packed_any
    assert entry == b"\x12" + bytes([len(file)]) + file + b"\x4a" + bytes([len(metadata)]) + metadata
