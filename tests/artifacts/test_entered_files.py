"""Line markers of preprocessed text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildd.artifacts.entered_files import entered, together
from buildd.keys.depfiles import Listing
from tests.support.toolkit import host_compiler


def test_a_file_counts_as_the_users_once_it_is_entered_as_such() -> None:
    lines = ('0 "k.cu"', '0 "<built-in>"', '1 "s.h" 1 3', '1 "both.h" 1 3', '2 "k.cu" 2', '1 "both.h" 1')
    text = "".join(f"# {line}\n" for line in lines).encode()
    assert entered(text) == Listing(("s.h", "both.h"), ("both.h",))
    assert entered(b"int x;\n") == Listing((), ())


def test_several_texts_name_a_file_once() -> None:
    one, other = Listing(("a", "b"), ("b",)), Listing(("c", "b"), ("c", "b"))
    assert together((one, other)) == Listing(("a", "b", "c"), ("b", "c"))


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_names_as_gcc_escapes_them(tmp_path: Path) -> None:
    names = ["a b.h", "d$#.h", "é.h", 'm"m.h', "n\\n.h"]
    (tmp_path / "a.c").write_text("".join(f"#include <{name}>\n" for name in names))
    for name in names:
        (tmp_path / name).touch()
    text = subprocess.run(["gcc", "-E", "-I.", "a.c"], cwd=tmp_path, check=True, capture_output=True).stdout
    assert [name for name in entered(text).files if not name.startswith("/")] == [f"./{name}" for name in names]
