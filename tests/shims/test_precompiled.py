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


FIRST_COMPUTED = """#ifdef CUSTOM
#define TEXT_(f) #f
#define TEXT(f) TEXT_(f)
#include TEXT(CUSTOM)
#endif
#include "p.h"
int value() { return VALUE; }
"""


def test_a_source_whose_first_include_is_computed_where_nobody_asks_for_it_is_found_again(kept_user: User) -> None:
    """As SQLite's. Where a flag defines the name, no compiler tells which precompiled header it reads."""
    project = ForeignProject(kept_user, kept_user.folder / "computed")
    project.write("p.h", "#ifndef VALUE\n#define VALUE 1\n#endif\n")
    project.write("a.cpp", f"{FIRST_COMPUTED}int computed;\n")
    project.write("q.h", "#define VALUE 3\n")

    def both(*flags: str) -> tuple[bytes, tuple[int, int]]:
        before = project.counts()
        command = ("g++", *flags, "-c", "a.cpp", "-o")
        project.good(*command, "a.o")
        assert project.plainly(*command, "plain.o").returncode == 0
        made = (project.folder / "a.o").read_bytes()
        assert made == (project.folder / "plain.o").read_bytes()
        after = project.counts()
        return made, (after[0] - before[0], after[1] - before[1])

    first = both()
    assert (first[1], both()[1]) == ((0, 1), (1, 0))
    assert [both("-DCUSTOM=q.h")[1] for _ in range(2)] == [(0, 1)] * 2
    project.write("two/q.h", "#define VALUE 2\n")
    for name, flags in (("p.h", ()), ("q.h", ("-DCUSTOM=q.h",))):
        made = both(*flags)[0]
        place = f"{name}.gch"
        assert project.plainly("g++", *flags, "-x", "c++-header", "two/q.h", "-o", place).returncode == 0
        for _ in range(2):
            assert both(*flags)[0] != made, "gcc reads the precompiled header"
        (project.folder / place).unlink()
        assert both(*flags)[0] == made


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("defined", "#define CUSTOM q.h\n"),
        ("spliced", "#define\\\n CUSTOM q.h\n"),
        ("other branch", "#ifdef OTHER\n#else\n"),
        ("by a header", '#ifndef NO_SETTINGS\n#include "settings.h"\n#endif\n'),
    ],
)
def test_a_name_that_the_text_defines_or_a_branch_that_is_taken_is_computed(
    kept_user: User, name: str, before: str
) -> None:
    project = ForeignProject(kept_user, kept_user.folder / name)
    after = "#endif\n" if "#else" in before else ""
    project.write("p.h", "#ifndef VALUE\n#define VALUE 1\n#endif\n")
    project.write("q.h", "")
    project.write("settings.h", "#  define CUSTOM q.h\n")
    text = FIRST_COMPUTED.replace("#ifdef CUSTOM\n", "#define CUSTOM q.h\n#if 1\n") if after else FIRST_COMPUTED
    project.write("a.cpp", f"{before}{text}{after}int taken;\n")
    counts = project.counts()
    for _ in range(2):
        project.good("g++", "-c", "a.cpp", "-o", "a.o")
    assert project.counts() == (counts[0], counts[1] + 2)


def test_a_computed_include_behind_another_one_is_never_the_first(kept_user: User) -> None:
    """As libpng's mips_init.c: the first header defines what the later include stands behind."""
    project = ForeignProject(kept_user, kept_user.folder / "later")
    project.write("first.h", "#define SUPPORTED\n")
    project.write("q.h", "int value;\n")
    project.write("a.c", '#include "first.h"\n#ifdef SUPPORTED\n#define FILE "q.h"\n#include FILE\n#endif\n')
    counts = project.counts()
    for _ in range(2):
        project.good("gcc", "-c", "a.c", "-o", "a.o")
    assert project.counts() == (counts[0] + 1, counts[1] + 1)


@pytest.mark.parametrize("named", ["name", "path"])
def test_a_precompiled_header_is_no_input_of_its_own_compile(kept_user: User, named: str) -> None:
    """CMake includes the header in an empty source, by its path. A change that is taken back finds what was made
    before."""
    project = ForeignProject(kept_user, kept_user.folder / f"back-and-forth-by-{named}")
    place = f"{project.folder}/" if named == "path" else ""
    precompile = ["g++", "-x", "c++-header", "-include", f"{place}p.hxx", "-o", "p.hxx.gch", "-c", f"{place}p.hxx.cxx"]
    compile = ["g++", "-include", f"{place}p.hxx", "-c", "a.cpp", "-o", "a.o"]
    project.write("p.hxx.cxx", "/* made by a build system */\n")
    project.write("p.hxx", '#include "in.h"\n')
    project.write("a.cpp", f"int value() {{ return VALUE; }}\nint back_and_forth_by_{named};\n")
    before = project.counts()
    objects = []
    for value in (6, 7, 6, 7):
        project.write("in.h", f"#define VALUE {value}\n")
        project.good(*precompile)
        project.good(*compile)
        objects.append((project.folder / "a.o").read_bytes())
    assert objects[:2] == objects[2:] and objects[0] != objects[1]
    assert project.counts() == (before[0] + 4, before[1] + 4)
