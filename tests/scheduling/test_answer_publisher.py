"""Which commands the answer of a divided command is put together from."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from buildd.scheduling.answer_publisher import _Divided
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
