"""Which commands the answer of a divided command is put together from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.scheduling.answer_publisher import _Divided, _listings
from codegen.plan import Tool
from protocol import messages as m

COMPILE = ("/usr/bin/nvcc", "a.cu", "-c", "-o", "/tmp/buildd-parts-0000000000000000/p/prog/0/a.o")
LINK = ("/usr/bin/nvcc", COMPILE[-1], "-o", "prog")
WHOLE = m.Request(
    request_id=m.RequestId("r"),
    build_id=m.BuildId("b"),
    project="/p",
    command=("/usr/bin/nvcc", "a.cu", "-o", "prog"),
    environment={"NVCC_APPEND_FLAGS": "-O1"},
)


@pytest.mark.parametrize("command", [COMPILE, LINK])
def test_its_own_parts_count(command: tuple[str, ...]) -> None:
    part = msgspec.structs.replace(WHOLE, command=command, build_id=m.BuildId("another"))
    assert _Divided(WHOLE, (COMPILE, LINK)).has(part)


@pytest.mark.parametrize(
    "other",
    [
        {"command": (*COMPILE[:2], "-DX", *COMPILE[2:])},
        {"project": "/q"},
        {"environment": {"NVCC_APPEND_FLAGS": "-O2"}},
        {"environment": {}},
    ],
    ids=["another command", "another folder", "another value", "no variable"],
)
def test_a_part_of_another_command_with_the_same_folder_does_not(other: dict[str, Any]) -> None:
    part = msgspec.structs.replace(WHOLE, **{"command": COMPILE, **other})
    assert not _Divided(WHOLE, (COMPILE, LINK)).has(part)


@pytest.mark.parametrize("becomes", ["header", "folder", "nothing", "neighbour"])
def test_a_name_that_became_another_file_before_the_answer_was_published_is_no_part_of_it(
    tmp_path: Path, becomes: str
) -> None:
    (tmp_path / "inc" / "vector").mkdir(parents=True)
    (tmp_path / "inc" / "map").touch()
    time.sleep(0.05)
    snapshot = Snapshot(Files(), str(tmp_path))
    since_ns = snapshot.files.now_ns()
    for name in snapshot.listing("inc") or ():
        snapshot.is_folder(f"inc/{name}")  # as `shrink` asks
    if becomes == "header":
        (tmp_path / "inc" / "vector").rmdir()
        (tmp_path / "inc" / "vector").touch()
    elif becomes == "folder":
        (tmp_path / "inc" / "map").unlink()
        (tmp_path / "inc" / "map").mkdir()
    elif becomes == "neighbour":
        (tmp_path / "inc" / "m.o").touch()
    found = _listings(snapshot, ["inc"], Tool(name="cc"), frozenset({"vector", "map"}), since_ns)
    held = {str(tmp_path / "inc"): frozenset({("vector", True), ("map", False)})}
    assert found == (held if becomes in ("nothing", "neighbour") else {})
