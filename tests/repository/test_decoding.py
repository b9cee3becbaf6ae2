"""No struct is decoded into for the first time in two threads: msgspec would end the process (`protocol.described`)."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ROOMS = ("artifacts", "builds", "daemon", "files", "host", "keys", "processes", "scheduling", "state", "store")
ROOMS += ("tier", "watch")
"""Rooms whose code runs in the daemon, which has threads."""
ALONE = {"store/oci_layout.py": "a command reads a layout, in its only thread"}


def undescribed(text: str) -> list[int]:
    """Lines of calls of msgspec that name a type to decode into, of more than built-in classes, without `described`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("decode", "convert"):
            continue
        kinds = [word.value for word in node.keywords if word.arg == "type"]
        if node.func.attr == "convert" and ast.unparse(node.func.value) == "msgspec":
            kinds += node.args[1:2]
        for kind in kinds:
            if isinstance(kind, ast.Call) and ast.unparse(kind.func) == "described":
                continue
            names = {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}
            if not names <= set(dir(builtins)) or any(isinstance(each, ast.Attribute) for each in ast.walk(kind)):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_types_to_decode_into_are_described(room: str) -> None:
    for path in sorted(Path(ROOT / "buildd" / room).glob("*.py")):
        if f"{room}/{path.name}" not in ALONE:
            assert undescribed(path.read_text(encoding="utf-8")) == [], path


def test_what_the_test_sees() -> None:
    assert undescribed("msgspec.msgpack.decode(data, type=Thing)") == [1]
    assert undescribed("msgspec.json.decode(data, type=list[m.Thing])") == [1]
    assert undescribed("msgspec.convert(table, Thing)") == [1]
    assert (
        undescribed("msgspec.json.decode(data, type=described(Thing)); msgspec.json.decode(data, type=list[str])") == []
    )
    assert undescribed("data.decode(); decoder.decode(data)") == []
