"""Frames <-> messages: whatever comes in, a message or a WireError goes out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import wire
from protocol.errors import WireError
from protocol.messages import (
    BuildId,
    Done,
    Event,
    FromClient,
    FromControl,
    FromDaemon,
    Hello,
    Namespaces,
    Outcome,
    Ping,
    Request,
    RequestId,
    Submit,
    ToControl,
    Unknown,
    spec_from,
)

pack = msgspec.msgpack.encode
DECODERS = (wire.decode_from_client, wire.decode_from_daemon, wire.decode_to_control, wire.decode_from_control)


def event_frames(body: dict[str, Any], **more: Any) -> list[bytes]:
    return [wire.MAGIC, pack({"type": "event", "request_id": "r", "sequence": 3, "time_ns": 5, "body": body, **more})]


@pytest.mark.parametrize(
    "message",
    [
        Hello(version=1, client="c", namespaces=Namespaces(mount=4)),
        Submit(
            request=Request(
                request_id=RequestId("r"),
                build_id=BuildId("b"),
                project="/p",
                specs={"t": spec_from({"kind": "cuda", "sources": ["a.cu"]})},
            )
        ),
        Ping(),
    ],
)
def test_a_message_survives_the_way(message: FromClient) -> None:
    frames = wire.encode(message)
    assert frames[0] == b"buildd1" and len(frames) == 2
    assert wire.decode_from_client(frames) == message


def test_unknown_fields_are_ignored_and_absent_ones_take_their_default() -> None:
    frames = [wire.MAGIC, pack({"type": "hello", "version": 1, "client": "c", "favourite_colour": "blue"})]
    assert wire.decode_from_client(frames) == Hello(version=1, client="c")


def test_an_event_of_a_later_version_can_be_skipped() -> None:
    event = wire.decode_from_daemon(event_frames({"type": "sang", "song": 1}, extra=1))
    assert event == Event(request_id=RequestId("r"), sequence=3, time_ns=5, body=Unknown(name="sang"))


def test_a_known_body_with_an_unknown_value_can_be_skipped() -> None:
    event = wire.decode_from_daemon(event_frames({"type": "notice", "text": "x", "severity": "apocalypse"}))
    assert isinstance(event, Event) and event.body == Unknown(name="notice")


def test_a_done_of_a_later_version_still_ends() -> None:
    event = wire.decode_from_daemon(event_frames({"type": "done", "outcome": "postponed"}))
    assert isinstance(event, Event)
    assert isinstance(event.body, Done) and event.body.outcome is Outcome.DAEMON_ERROR


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([], "bad-frames"),
        ([wire.MAGIC], "bad-frames"),
        ([wire.MAGIC, b"", b""], "bad-frames"),
        ([b"http", pack({"type": "ping"})], "bad-frames"),
        ([b"buildd12345", pack({"type": "ping"})], "bad-frames"),
        ([b"buildd2", pack({"type": "ping"})], "framing"),
        ([wire.MAGIC, b""], "bad-message"),
        ([wire.MAGIC, b"\xc1"], "bad-message"),
        ([wire.MAGIC, pack(["ping"])], "bad-message"),
        ([wire.MAGIC, pack({"typ": "ping"})], "bad-message"),
        ([wire.MAGIC, pack({"type": "sing"})], "unknown-type"),
        ([wire.MAGIC, pack({"type": "event"})], "unknown-type"),
        ([wire.MAGIC, pack({"type": "hello", "version": "one", "client": "c"})], "bad-message"),
        ([wire.MAGIC, b"\x81" * 50_000], "bad-message"),
        ([wire.MAGIC, b"\x82\xa4type\xa5hello\xa6client\xa2\xff\xfe"], "bad-message"),
    ],
)
def test_bad_frames_have_a_stable_code(frames: list[bytes], code: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.decode_from_client(frames)
    assert caught.value.code == code


def test_an_event_without_its_envelope_is_malformed() -> None:
    with pytest.raises(WireError) as caught:
        wire.decode_from_daemon([wire.MAGIC, pack({"type": "event", "body": {"type": "done"}})])
    assert caught.value.code == "bad-message"


def test_sizes_are_bounded_both_ways() -> None:
    small: wire.Decoder[FromClient] = wire.Decoder(FromClient, limit_bytes=10)
    with pytest.raises(WireError) as caught:
        small(wire.encode(Hello(version=1, client="much too long")))
    assert caught.value.code == "too-large"
    with pytest.raises(WireError) as caught:
        wire.encode(Hello(version=1, client="much too long"), limit_bytes=10)
    assert caught.value.code == "too-large"


def test_a_path_that_is_not_utf8_is_a_clear_error() -> None:
    with pytest.raises(WireError) as caught:
        wire.encode(Hello(version=1, client="caf\udce9"))
    assert caught.value.code == "not-utf8" and caught.value.next_step


def test_control_accepts_other_framings() -> None:
    assert wire.decode_to_control([b"buildd7", pack({"type": "ping"})]) == Ping()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), st.just(wire.MAGIC)), max_size=4))
def test_random_bytes_are_messages_or_wire_errors(frames: list[bytes]) -> None:
    for decode in DECODERS:
        try:
            decode(frames)  # type: ignore[operator]
        except WireError as error:
            assert error.code


_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
_tags = sorted({tag for decoder in DECODERS for tag in decoder.tags})  # type: ignore[attr-defined]
_fields = st.sampled_from(
    ["request_id", "sequence", "time_ns", "body", "request", "version", "client", "digest", "data"]
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(_tags), st.dictionaries(_fields, _values, max_size=6))
def test_well_formed_nonsense_is_a_message_or_a_wire_error(tag: str, fields: dict[str, Any]) -> None:
    for decode in DECODERS:
        try:
            decode([wire.MAGIC, pack({"type": tag, **fields})])  # type: ignore[operator]
        except WireError as error:
            assert error.code in {"bad-message", "unknown-type"}


def test_every_union_has_its_decoder() -> None:
    for union, decoder in zip((FromClient, FromDaemon, ToControl, FromControl), DECODERS, strict=True):
        assert {part.__struct_config__.tag for part in union.__args__} == decoder.tags  # type: ignore[attr-defined]


def test_the_first_decoders_may_be_made_in_several_threads_at_once() -> None:
    """In a subprocess, since msgspec's own way ends the process within a few of these rounds."""
    code = """
import sys, threading, types
import msgspec
from protocol.described import described
source = "from __future__ import annotations\\nimport msgspec\\n"
for number in range(12):
    source += f"class A{number}(msgspec.Struct, tag=True):\\n    a: int\\n    b: list[str] = []\\n"
source += "class E(msgspec.Struct):\\n    body: " + " | ".join(f"A{number}" for number in range(12))
sys.setswitchinterval(1e-6)
def decode(together, kind, data):
    together.wait()
    assert msgspec.msgpack.Decoder(described(kind)).decode(data).body.b == ["x"]
for _ in range(40):
    module = sys.modules["made"] = types.ModuleType("made")
    exec(source, vars(module))
    data = msgspec.msgpack.encode(module.E(module.A3(1, ["x"])))
    together = threading.Barrier(3)
    threads = [threading.Thread(target=decode, args=(together, module.E, data)) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
