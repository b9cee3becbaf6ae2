"""`buildd explain --last`: why each thing of the last build was built, and why each was not."""

from __future__ import annotations

import json
import shutil

import pytest

from buildd.commands.explain import run
from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_the_last_build_is_explained(
    developer: Developer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUILDD_DIR", "BUILDD_RUNTIME_DIR"):
        monkeypatch.setenv(name, developer.environ[name])
    monkeypatch.chdir(developer.project)

    def last(*arguments: str) -> list[str]:
        assert run(["--last", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    status, said = developer.buildd("explain", "--last", "-C", str(developer.project))
    assert status == 2 and "no build of" in said and "next:" in said
    developer.build("--no-daemon")
    developer.write("src/x.h", "other\n")
    developer.build("--no-daemon")
    heading, *lines = last()
    assert "built" in heading and "1 hit, 2 compiled" in heading
    assert "ran demo/src/a.cu.o: input src/x.h: content changed" in lines
    assert "hit demo/src/b.cu.o: same inputs" in lines
    assert last("demo") == [heading, *lines] and len(last("src/x.h")) == 2
    assert last("nobody")[1:] == [
        "no action that this build ran or looked up, and no reason, names nobody;"
        " buildd explain nobody says which actions use it"
    ]
    assert last("build/demo/libdemo.so")[1:] == [lines[-1]] and "libdemo.so" in lines[-1]
    found = [json.loads(line)["body"] for line in last("--json")]
    assert {body["action"]: body["would_run"] for body in found} == {
        "demo/src/a.cu.o": True,
        "demo/src/b.cu.o": False,
        "demo/libdemo.so": True,
    }
    # A name of a target is one also where there is another folder, and where it stands in other names.
    developer.write(
        "buildd.toml", (developer.project / "buildd.toml").read_text() + '[target.b]\nkind = "hip"\nsources = []\n'
    )
    monkeypatch.chdir(developer.project / "src")
    assert last("demo") == [heading, *lines]
    assert last("b")[1:] == ["this build ran and looked up no action of b"]
    developer.write("buildd.toml", (developer.project / "buildd.toml").read_text().partition("[target.b]")[0])
    developer.write("src/b.cu", "//! fail\n")
    developer.build("--no-daemon")
    _, *lines = last()
    assert any("failed: nvcc ended with status" in line for line in lines)
    assert lines[-1].startswith("1 other action not looked up: the build ended first")
    developer.write("src/b.cu", "third\n")
    assert developer.build().status == 0
    developer.write("src/b.cu", "//! fail\n")
    assert "1 hit, 0 compiled" in developer.build().text
    _, *lines = last()
    assert lines[-2:] == [
        "hit 1 other action: no input had changed since the previous build",
        "1 other action not looked up: the build ended first",
    ], "every hit of the summary is among them"


def test_what_was_found_without_a_build_before_is_explained_by_what_changed(developer: Developer) -> None:
    """As after an import: the results are there, and no build of this folder."""
    assert developer.build().status == 0
    copy = developer.folder / "copy"
    shutil.copytree(developer.project, copy, ignore=shutil.ignore_patterns("build"))
    assert developer.build(project=copy).hits == 3
    (copy / "src/b.cu").write_text("another\n")
    status, text = developer.buildd("explain", "-C", str(copy))
    assert status == 0 and "would run demo/src/b.cu.o: input src/b.cu: content changed" in text, text
    status, text = developer.buildd("warm", "-C", str(copy), "--prove")
    assert status == 1 and "not warm: 2 of 3 actions would still run" in text, text
    said = developer.build()
    assert "nothing to do for 1 target: 3 hits, 0 compiled" in said.text and "saved" not in said.text
    status, text = developer.buildd("warm", "-C", str(copy))
    assert status == 0 and "build/demo/libdemo.so" not in text, "warm writes no outputs"


def test_what_was_used_last_is_compared_and_not_what_ran_last(developer: Developer) -> None:
    """A revert is a hit: the next change is one against the reverted text."""
    project = (developer.project / "buildd.toml").read_text()
    assert developer.build().compiled == 3
    developer.write("buildd.toml", project + 'flags = ["-lineinfo"]\n')
    assert developer.build().compiled == 2
    developer.write("buildd.toml", project)
    assert developer.build().hits == 3
    developer.write("src/b.cu", "another\n")
    status, text = developer.buildd("explain", "-C", str(developer.project))
    assert status == 0 and "would run demo/src/b.cu.o: input src/b.cu: content changed" in text, text


def test_each_name_that_explain_prints_and_each_path_is_an_argument(developer: Developer) -> None:
    def told(*arguments: str, folder: str = "") -> list[str]:
        status, text = developer.buildd("explain", *arguments, cwd=developer.project / folder)
        assert status == 0, text
        return [line.partition(":")[0] for line in text.splitlines()[:-1]]

    assert developer.build().compiled == 3
    objects = ["hit demo/src/a.cu.o", "hit demo/src/b.cu.o"]
    assert sorted(told()) == [*sorted(("hit demo/libdemo.so", *objects))]
    for name in ("src/x.h", "./src/../src/x.h", str(developer.project / "src/x.h"), "src/a.cu", "demo/src/a.cu.o"):
        assert told(name) == objects[:1], name
    assert sorted(told("src")) == objects
    assert told("build/demo/libdemo.so") == told("demo/libdemo.so") == ["hit demo/libdemo.so"]
    assert told("x.h", folder="src") == told("src/x.h", folder="src") == objects[:1]
    assert told("demo/src/b.cu.o", folder="src") == objects[1:]
    # What the last compile read is known, also where its own text and flags are other ones now.
    developer.write("src/a.cu", '#include "x.h"\nnew\n')
    assert told("src/x.h") == ["would run demo/src/a.cu.o", "would run demo/libdemo.so"]
    assert told("demo/src/b.cu.o") == objects[1:]
    developer.write("notes.txt", "")
    status, text = developer.buildd("explain", "notes.txt", cwd=developer.project)
    assert status == 0 and text == "no action uses notes.txt\n"
    developer.write("src/new.h", "")
    assert developer.build().status == 0
    developer.write("src/between.h", '#include "new.h"\n')
    developer.write("src/b.cu", '#include "between.h"\n')
    status, text = developer.buildd("explain", "src/new.h", cwd=developer.project)
    assert status == 0 and text == "no build has read src/new.h yet; new or changed sources that include it: src/b.cu\n"
    for name in ("demo/src/c.cu.o", "src/c.h"):
        status, text = developer.buildd("explain", name, cwd=developer.project)
        assert status == 2 and f'there is no target, action or file "{name}"' in text, text
    status, text = developer.buildd("explain", "demi", cwd=developer.project)
    assert status == 2 and 'there is no target "demi"; did you mean "demo"?' in text, text
