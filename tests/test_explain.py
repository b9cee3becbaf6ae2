"""`buildd explain --last`: why each thing of the last build was built, and why each was not."""

from __future__ import annotations

import json

import pytest
from estate import Estate

from buildd.commands.explain import run
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_the_last_build_is_explained(
    estate: Estate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDD_DIR", estate.environ["BUILDD_DIR"])
    monkeypatch.chdir(estate.project)

    def last(*arguments: str) -> list[str]:
        assert run(["--last", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    status, said = estate.buildd("explain", "--last", "-C", str(estate.project))
    assert status == 2 and "no build of" in said and "next:" in said
    estate.build("--no-daemon")
    estate.write("src/x.h", "other\n")
    estate.build("--no-daemon")
    heading, *lines = last()
    assert "built" in heading and "1 hit, 2 compiled" in heading
    assert "ran demo/src/a.cu.o: input src/x.h: content changed" in lines
    assert "hit demo/src/b.cu.o: same inputs" in lines
    assert last("demo") == [heading, *lines] and len(last("src/x.h")) == 2
    assert last("nobody")[1:] == ["no action of that build that ran or was looked up names nobody"]
    found = [json.loads(line)["body"] for line in last("--json")]
    assert {body["action"]: body["would_run"] for body in found} == {
        "demo/src/a.cu.o": True,
        "demo/src/b.cu.o": False,
        "demo/libdemo.so": True,
    }
    # A name of a target is one also where there is another folder, and where it stands in other names.
    estate.write(
        "buildd.toml", (estate.project / "buildd.toml").read_text() + '[target.b]\nkind = "hip"\nsources = []\n'
    )
    monkeypatch.chdir(estate.project / "src")
    assert last("demo") == [heading, *lines]
    assert last("b")[1:] == ["no action of that build that ran or was looked up names b"]
    estate.write("buildd.toml", (estate.project / "buildd.toml").read_text().partition("[target.b]")[0])
    estate.write("src/b.cu", "//! fail\n")
    estate.build("--no-daemon")
    _, *lines = last()
    assert any("failed: nvcc ended with status" in line for line in lines)
    assert lines[-1].startswith("1 other action had no turn: the build ended before")
