"""`buildd explain --last`: why each thing of the last build was built, and why each was not."""

from __future__ import annotations

import json

import pytest
from estate import Estate

from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_the_last_build_is_explained(estate: Estate) -> None:
    def last(*arguments: str) -> list[str]:
        status, said = estate.buildd("explain", "--last", "-C", str(estate.project), *arguments)
        assert status == 0, said
        return said.splitlines()

    status, said = estate.buildd("explain", "--last", "-C", str(estate.project))
    assert status == 2 and "no build of" in said and "next:" in said
    estate.build("--no-daemon")
    estate.write("src/x.h", "other\n")
    estate.build("--no-daemon")
    heading, *lines = last()
    assert "built" in heading and "1 hit, 2 compiled" in heading
    assert "ran demo/src/a.cu.o: input src/x.h: content changed" in lines
    assert "hit demo/src/b.cu.o: same inputs" in lines
    assert len(last(str(estate.project / "src/x.h"))) == 2
    assert last("nobody")[1:] == ["no action of that build that ran or was looked up names nobody"]
    found = [json.loads(line)["body"] for line in last("--json")]
    assert {body["action"]: body["would_run"] for body in found} == {
        "demo/src/a.cu.o": True,
        "demo/src/b.cu.o": False,
        "demo/libdemo.so": True,
    }
    estate.write("src/b.cu", "//! fail\n")
    estate.build("--no-daemon")
    _, *lines = last()
    assert any("failed: nvcc ended with status" in line for line in lines)
    assert lines[-1] == "1 action had no turn: the build ended before"
