"""Headers that a compiler may have skipped, and the questions about those that it may take for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.once_only import questions, skipped, twins
from buildd.keys.questions import is_question
from buildd.keys.request_files import RequestFiles
from codegen.plan import Action, Discovery, Output, Tool
from protocol.messages import Digest

ONCE = "#pragma once\n"


def compiled(discovery: Discovery = Discovery.GCC, *flags: str) -> Action:
    return Action(
        name="a.o",
        kind="foreign",
        tool="gcc",
        argv=("gcc", *flags, "a.c"),
        inputs=("a.c",),
        outputs=(Output(name="object", path="a.o"),),
        discovery=discovery,
        search=("inc", "lib/inc"),
    )


def tool(folder: Path) -> Tool:
    return Tool(name="gcc", files=(), search=(str(folder.parent / "system"),))


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("FOLDER", str(folder)))


def found(folder: Path, action: Action, *used: str, precompiled: bool = False) -> list[str]:
    files = RequestFiles(Snapshot(Files(), str(folder)))
    return skipped(files, action, tool(folder), used, precompiled=precompiled)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('#include "h.h"\n#include "twin.h"\n', "twin.h"),
        ("#include <twin.h>\n", "inc/twin.h"),
        ("#  include_next <s/twin.h>\n", "lib/inc/s/twin.h"),
        ('#include "../out/twin.h"\n', "../out/twin.h"),
        ('#include "s/../../out/twin.h"\n', "../out/twin.h"),
        ('#include "./s//twin.h"\n', "s/twin.h"),
        ('#include "FOLDER/s/twin.h"\n', "s/twin.h"),
        ("#define AT(x) <inc/x>\n#include AT(h.h)\n", "inc/h.h"),
    ],
)
def test_a_skipped_header(tmp_path: Path, text: str, place: str) -> None:
    project = tmp_path / "project"
    write(project, {"a.c": text, "h.h": ONCE, "s/.keep": "", place: ONCE, "not-included.h": ONCE})
    (path,) = found(project, compiled(), "h.h")
    assert (project / path).resolve() == (project / place).resolve()
    (project / place).write_text(f"{ONCE}// more\n")
    assert not found(project, compiled(), "h.h")


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    write(tmp_path, {"a.c": '#include "there/../twin.h"\n', "h.h": ONCE, "other/in/x": "", "other/twin.h": ONCE})
    (tmp_path / "there").symlink_to("other/in")
    assert found(tmp_path, compiled(), "h.h") == ["other/twin.h"]


def test_a_header_that_the_command_line_names(tmp_path: Path) -> None:
    write(tmp_path, {"a.c": "", "h.h": ONCE, "twin.h": ONCE})
    assert found(tmp_path, compiled(Discovery.GCC, "-include", "twin.h"), "h.h") == ["twin.h"]


def test_headers_that_are_read_again_or_came_with_the_system(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, {"a.c": '#include "twin.h"\n', "h.h": "int h;\n", "twin.h": "int h;\n"})
    assert not found(project, compiled(), "h.h")
    (project / "a.c").write_text('#import "twin.h"\n')
    assert found(project, compiled(), "h.h") == ["twin.h"]
    assert not found(project, compiled(Discovery.REPORTED), "h.h")
    write(project, {"a.c": '#include "../system/twin.h"\n', "h.h": ONCE, "../system/twin.h": ONCE})
    assert not found(project, compiled(), "h.h")


def test_what_a_precompiled_header_may_hold(tmp_path: Path) -> None:
    write(tmp_path, {"a.c": '#include "p.h"\n#include "x.h"\n', "p.h": "int p;\n", "x.h": ONCE})
    assert not found(tmp_path, compiled())
    assert found(tmp_path, compiled(), precompiled=True) == ["x.h"]


@pytest.mark.parametrize("discovery", [Discovery.GCC, Discovery.CLANG])
def test_the_answer_is_as_before_while_the_compiler_chooses_so(tmp_path: Path, discovery: Discovery) -> None:
    write(tmp_path, {"a.c": "", "one.h": ONCE, "two.h": ONCE, "other.h": "int other;\n", "same.h": "int other;\n"})
    action, paths = compiled(discovery), ("one.h", "other.h", "same.h", "two.h")

    def at(one_s: float, two_s: float) -> Snapshot:
        for name, time_s in (("one.h", one_s), ("two.h", two_s)):
            os.utime(tmp_path / name, (time_s, time_s))
        return Snapshot(Files(), str(tmp_path))

    def filed(snapshot: Snapshot) -> list[tuple[str, Digest]]:
        return [(path, snapshot.digest(path) or Digest("")) for path in paths]

    snapshot = at(5, 5.5)
    asked = questions(snapshot, action, tool(tmp_path), filed(snapshot), ())
    assert len(asked) == 1 and all(map(is_question, asked))

    def differs(snapshot: Snapshot) -> bool:
        answered = twins(snapshot, action, filed(snapshot), asked)
        assert answered.paths == {"one.h", "two.h"}
        return bool(answered.difference)

    is_clang = discovery is Discovery.CLANG
    assert not differs(at(6.1, 6.9))
    assert differs(at(6, 7)) is not is_clang
    (tmp_path / "two.h").unlink()
    (tmp_path / "two.h").symlink_to("one.h")
    assert differs(at(6, 6)) is is_clang
