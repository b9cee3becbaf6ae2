"""Formats in which tools name the files that they read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from buildd.keys.depfiles import parse
from codegen.plan import Discovery


def test_several_rules_with_continuations_and_escapes() -> None:
    text = b"inputs: a.h \\\n  b\\ c.h d$$e.h\ninputs: f\\#g.h a.h\n"
    assert parse(Discovery.GCC, text) == ("a.h", "b c.h", "d$e.h", "f#g.h")


def test_what_gcc_really_writes(tmp_path: Path) -> None:
    for name in ("plain.h", "with space.h", "dollar$.h", "hash#.h", "colon:.h"):
        (tmp_path / name).touch()
    (tmp_path / "a.c").write_text(
        "".join(f'#include "{n}"\n' for n in ("plain.h", "with space.h", "dollar$.h", "hash#.h", "colon:.h"))
    )
    depfile = tmp_path / "deps"
    for _ in range(2):
        subprocess.run(
            ["gcc", "-E", "a.c", "-o", "/dev/null"],
            cwd=tmp_path,
            check=True,
            env={"PATH": "/usr/bin:/bin", "SUNPRO_DEPENDENCIES": f"{depfile} inputs"},
        )
    found = parse(Discovery.GCC, depfile.read_bytes())
    assert [p for p in found if not p.startswith("/")] == [
        "plain.h",
        "with space.h",
        "dollar$.h",
        "hash#.h",
        "colon:.h",
    ]


def test_header_lines_of_clang() -> None:
    assert parse(Discovery.CLANG, b'/usr/include/a.h\n./b c.h\n../q\\"\\\\.h\n') == (
        "/usr/include/a.h",
        "./b c.h",
        '../q"\\.h',
    )


def test_reported_lines_and_nothing() -> None:
    assert parse(Discovery.REPORTED, b"/a/b.py\n\n/c.py\nabsent /d.py\n") == ("/a/b.py", "/c.py")
    assert parse(Discovery.NONE, b"/a: b") == ()


def test_a_linker_escapes_nothing(tmp_path: Path) -> None:
    names = ["a b.o", "c#$.o"]
    text = "x: \\\n  " + " \\\n  ".join(names) + "\n\na b.o:\n\nc#$.o:\n"
    assert parse(Discovery.LINKER, text.encode()) == tuple(names)
    assert parse(Discovery.LINKER, b"x: a.o b.o\n") == ("a.o", "b.o"), "all in one line, as mold does"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_what_the_real_linker_writes_of_names_with_blanks(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "c d.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-c", "c d.c", "-o", "c d.o"], cwd=folder, check=True)
    linked = ["gcc", f"{folder}/c d.o", "-o", "x", "-Wl,--dependency-file=inputs.d"]
    if subprocess.run(linked, cwd=folder, capture_output=True).returncode:
        pytest.skip("this linker writes no dependency file")
    assert f"{folder}/c d.o" in parse(Discovery.LINKER, (folder / "inputs.d").read_bytes())
