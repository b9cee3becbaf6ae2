"""Precompiled headers of gcc: read silently, and never served for a source that would read another one."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ (Debian: apt install g++)")


@pytest.mark.parametrize("option", ["-include ", "-include", "-include ../project/", "-I{}/. -include "])
def test_an_object_is_known_by_the_precompiled_header_that_a_flag_names(kept_user: User, option: str) -> None:
    """gcc reads a precompiled header that is older than its header without a word, as CMake names it: absolutely."""
    project = ForeignProject(kept_user, kept_user.folder / re.sub(r"\W+", "-", f"by {option}") / "project")
    place = "" if "../" in option else f"{project.folder}/"
    precompile = f"g++ -x c++-header -c {project.folder}/p.h -o {project.folder}/p.h.gch".split()
    compile = f"g++ {option.format(project.folder)}{place}p.h -c {project.folder}/a.cpp -o".split()
    project.write("a.cpp", "int value() { return VALUE; }\n")

    def both() -> bytes:
        project.good(*compile, "a.o")
        assert project.plainly(*compile, "plain.o").returncode == 0
        assert (project.folder / "a.o").read_bytes() == (project.folder / "plain.o").read_bytes()
        return (project.folder / "a.o").read_bytes()

    project.write("p.h", "#define VALUE 1\n")
    project.good(*precompile)
    first = both()
    project.write("p.h", "#define VALUE 2\n")
    assert both() == first, "the precompiled header still says 1"
    project.good(*precompile)
    assert both() != first
    hits, _ = project.counts()
    assert both() != first
    assert project.counts()[0] == hits + 1
    (project.folder / "p.h.gch").unlink()
    both()
