"""SPEC.md and messages.py say the same: every message, field, default, enumeration value, code and limit."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import protocol
from buildd.builds import event_log
from buildd.daemon import clients, dispatch, followers, gpu_leases, handshake, request_check, requests, server
from buildd.errors import RunnerError, StoreError, StoreFull, StoreTooNew
from buildd.scheduling import call_notes, foreign_compile
from buildd.store import ownership
from codegen.foreign.called_tool import sent_variables
from codegen.gemm.capability import NOT_MEASURED
from protocol import messages, wire
from protocol.curve import Scope
from protocol.endpoint import Endpoint, Folder
from protocol.places import SOCKET_PATH_BYTES
from tests.support.paths import ROOT

SPEC = (Path(protocol.__file__).parent / "SPEC.md").read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """Text below each "### name" or "## name" heading, by the heading's first word."""
    parts = re.split(r"^##+ +(.*)$", SPEC, flags=re.MULTILINE)
    return {heading.split(" ")[0]: text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


SECTIONS = sections()
TAGGED = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, messages.Message | messages.Body) and kind not in (messages.Message, messages.Body)
]
# Structs inside others are described with the message that holds them.
NESTED = {
    messages.Request: "submit",
    messages.Namespaces: "hello",
    messages.Timing: "finished",
    messages.Output: "finished",
    messages.Diagnostic: "failed",
    messages.JobStatus: "status",
    messages.RequestStatus: "status",
    messages.BuildFigures: "status",
    messages.GpuStatus: "status",
    messages.GpuProcess: "lease_waits",
    messages.ProfileOptions: "submit",
    Endpoint: "endpoint.json",
}
ENUMS = [kind for _, kind in inspect.getmembers(messages, inspect.isclass) if issubclass(kind, enum.Enum)]


def tag_of(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def section_of(kind: Any) -> str:
    return SECTIONS[NESTED.get(kind) or tag_of(kind)]


@pytest.mark.parametrize("kind", [kind for kind in ENUMS if kind is not enum.Enum], ids=lambda kind: kind.__name__)
def test_every_value_of_an_enumeration_is_in_the_spec(kind: type[enum.Enum]) -> None:
    for member in kind:
        assert f"`{member.value}`" in SPEC, f"{kind.__name__}.{member.name}"


@pytest.mark.parametrize("kind", [*TAGGED, *NESTED], ids=lambda kind: kind.__name__)
def test_every_field_is_in_its_section(kind: Any) -> None:
    text = section_of(kind)
    for field in msgspec.structs.fields(kind):
        assert f"`{field.encode_name}`" in text, f"{field.name} of {kind.__name__}"


@pytest.mark.parametrize("kind", [*TAGGED, *NESTED], ids=lambda kind: kind.__name__)
def test_tables_of_the_spec_have_the_right_defaults(kind: Any) -> None:
    """Rows "| `field` | type | default | ..." of the kind's section, where it has such a table."""
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    shown = {"required": msgspec.NODEFAULT, '""': "", "[]": (), "{}": {}, "false": False, "0": 0, "nil": None}
    for names, default in re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \|", section_of(kind), flags=re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            if name not in known or kind is messages.Namespaces:
                continue  # the other's fields of these names, in the same section
            field = known[name]
            actual = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
            actual = actual() if callable(actual) else actual
            actual = actual.value if isinstance(actual, enum.Enum) else actual
            if default in shown:
                assert actual == shown[default] or (default == "{}" and isinstance(actual, msgspec.Struct)), name
            elif isinstance(actual, tuple):
                assert [str(item) for item in actual] == re.findall(r"[\w-]+", default), name
            else:
                assert str(actual) == default.strip('"'), name


def test_the_spec_describes_no_message_that_does_not_exist() -> None:
    tags = {tag_of(kind) for kind in TAGGED}
    described = {name for name in SECTIONS if re.fullmatch(r"[a-z_]+", name)}
    assert described == tags


def test_codes_that_are_sent_are_in_the_spec() -> None:
    sources = [inspect.getsource(module) for module in (server, requests, dispatch, gpu_leases, handshake, wire)]
    sources.append((Path(server.__file__).parent / "control.py").read_text(encoding="utf-8"))
    codes = {code for text in sources for code in re.findall(r'\bcode="([a-z0-9-]+)"', text)}
    listed = set(re.findall(r"^\| `([a-z-]+)` \| (?:error|refused)", SECTIONS["11."], flags=re.MULTILINE))
    assert listed
    # not-utf8 is said by the sender's own encoder and never travels.
    assert codes - {"not-utf8"} == listed


def test_codes_of_done_are_in_the_spec() -> None:
    """All codes that planning and building give, found in their source."""
    codes = {NOT_MEASURED, foreign_compile.PASSED_THROUGH, call_notes.WOULD_COMPILE}
    for room in ("codegen", "buildd/builds", "buildd/scheduling", "buildd/watch"):
        for path in (ROOT / room).rglob("*.py"):
            if path.parent.name in ("tuning", "workers"):
                continue  # they serve commands and jobs, not requests
            text = path.read_text(encoding="utf-8")
            codes |= set(re.findall(r'"(bad-[a-z]+)"', text))
            codes |= set(re.findall(r'RequestError\(\s*"([a-z-]+)"', text))
            codes |= set(re.findall(r'(?:Done|end)\([^()]*code="([a-z-]+)"', text))
    daemon = (Path(server.__file__).parent / "daemon.py").read_text(encoding="utf-8")
    codes |= set(re.findall(r'm\.Done\([^()]*code="([a-z-]+)"', daemon))
    codes |= {kind.code for kind in (StoreError, StoreTooNew, StoreFull, RunnerError)} | {*ownership.CODES}
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]+) \|", SECTIONS["11."], flags=re.MULTILINE)
    listed = {
        code
        for names, where in rows
        if "done" in where or not where.startswith(("error", "refused"))
        for code in re.findall(r"`([a-z-]+)`", names)
    }
    assert listed - {"draining", "internal"} == codes - {"draining", "internal"}


def test_the_variables_that_a_shim_sends_are_in_the_spec() -> None:
    text = SECTIONS["16."].partition("for any ending):")[2]
    assert tuple(re.findall(r"`([A-Z_*]+)`", text)) == sent_variables()


def test_numbers_of_the_spec_are_those_of_the_code() -> None:
    limits = SECTIONS["12."]
    for number in (
        wire.MAX_MESSAGE_BYTES,
        wire.MAX_CONTROL_BYTES,
        wire.MAX_EVENT_BYTES,
        event_log.MAX_LINE_CHARACTERS,
        wire.BLOB_CHUNK_BYTES,
        followers.MAX_FOLLOWED,
        followers.MAX_TRANSFERS,
        followers.MAX_REPLIES,
    ):
        assert f"| {number}" in limits, number
    assert f"| {event_log.DEFAULT_LIMIT_BYTES >> 20} MiB |" in limits
    assert clients.Limits() == clients.Limits(
        beat_s=10.0, expiry_s=30.0, return_s=10.0, keep_finished_s=600.0, keep_finished=100
    )
    overhead = len(Folder(".").addresses("0" * 16).control.removeprefix("ipc://.")) + len("/" + "0" * 12)
    assert f"at most {SOCKET_PATH_BYTES - overhead} bytes" in SPEC
    assert f"at most {SOCKET_PATH_BYTES - overhead - len('/buildd')} bytes" in SPEC
    assert f"1 to {request_check.MAX_REQUEST_ID_CHARACTERS}\n" in SECTIONS["6."]
    assert SPEC.startswith(f"# The buildd protocol, version {messages.PROTOCOL_VERSION}\n")
    assert f"`{wire.MAGIC.decode()}`" in SECTIONS["4."]


def test_scopes_and_capabilities_are_in_the_spec() -> None:
    for scope in Scope:
        assert f"| `{scope.value}` |" in SECTIONS["15."]
    for capability in handshake.CAPABILITIES:
        assert f"`{capability}`" in SECTIONS["welcome"]


def test_messages_are_frozen() -> None:
    for kind in [*TAGGED, *NESTED]:
        assert kind.__struct_config__.frozen, kind.__name__


def test_an_inline_target_travels_as_its_table() -> None:
    table = {"kind": "cuda", "sources": ["a.cu"], "options": {"fast": True}}
    assert msgspec.msgpack.decode(messages.spec_from(table)) == table
