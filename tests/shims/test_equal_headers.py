"""Headers of one text of which the compiler reads one alone, and lists no other."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.edited_texts import without_answers
from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.states import check
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc (Debian: apt install g++)")
TEXT = '#pragma once\n#undef V\n#include "v.h"\n'


@pytest.fixture
def project(kept_user: User, request: pytest.FixtureRequest) -> ForeignProject:
    return ForeignProject(kept_user, kept_user.folder / re.sub(r"\W+", "-", request.node.name))


def furnished(project: ForeignProject, *, time_s: int = 7) -> tuple[Path, Path]:
    """Two equal headers, each beside another definition of V."""
    for number, folder in enumerate(("one", "two")):
        project.write(f"{folder}/v.h", f"#define V {number}\n")
        os.utime(project.write(f"{folder}/h.h", TEXT), (time_s, time_s))
    return project.folder / "one/h.h", project.folder / "two/h.h"


def edited(path: Path, more: str, time_s: float = 7) -> None:
    path.write_text(TEXT + more)
    os.utime(path, (time_s, time_s))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", ["a.c", "a.cpp"])
@pytest.mark.parametrize(("directive", "first"), [("include", "#pragma once\n"), ("import", "")])
def test_headers_of_one_text_of_which_one_alone_is_read(
    project: ForeignProject, compiler: str, name: str, directive: str, first: str
) -> None:
    """gcc compares their times, and lists the first alone; clang compares their inodes."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    symbol = f"{compiler}_{name[2:]}_{directive}"
    project.write(name, f'#{directive} "one/h.h"\n#{directive} <two/k.h>\nint {symbol} = V;\n')
    text = f'{first}#undef V\n#include "v.h"\n'
    for number, folder in enumerate(("one", "i/two")):
        project.write(f"{folder}/v.h", f"#define V {number}\n")
    one, two = project.write("one/h.h", text), project.folder / "i/two/k.h"

    def copied(time_s: float, more: str = "", again: float = 7) -> None:
        two.unlink(missing_ok=True)
        two.write_text(text + more)
        os.utime(two, (time_s, time_s))
        os.utime(one, (again, again))

    def linked() -> None:
        two.unlink()
        two.symlink_to("../../one/h.h")

    command = f"{compiler} -w -Ii -c {name}"
    made = check(project, command, lambda: copied(8), linked)
    assert made[0] != made[1]
    if compiler == "gcc":
        check(project, command, lambda: copied(7.9), lambda: copied(7, "#undef V\n#define V 3\n"), lambda: copied(8))
        # A comment makes another text; the same comment in both does not.
        check(project, command, lambda: copied(7), lambda: copied(7, "// other\n"))
    began = project.counts()
    copied(5, again=3)
    assert project.call(*command.split(), "-o", "a.o").returncode == 0
    copied(9, again=4)
    assert project.call(*command.split(), "-o", "a.o").returncode == 0
    assert project.counts()[0] == began[0] + 2, "other times, of which the compiler makes the same"


def test_a_skipped_header_whose_name_a_macro_gives(project: ForeignProject) -> None:
    _, two = furnished(project)
    project.write("a.c", '#include "one/h.h"\n#define AT(x) <two/x>\n#include AT(h.h)\nint computed = V;\n')
    project.write("b.h", '#include "two/v.h"\n')
    states = (lambda: edited(two, ""), lambda: edited(two, "#undef V\n#define V 3\n"))
    check(project, "gcc -I. -include b.h -c a.c", *states)


def test_a_header_that_is_in_a_precompiled_one_under_another_name(project: ForeignProject) -> None:
    """gcc compares contents alone: it skips the header whatever its time is."""
    _, two = furnished(project)
    project.write("p.h", '#include "one/h.h"\n')
    project.write("a.c", '#include "p.h"\n#include "two/h.h"\nint x = V;\n')
    project.good("gcc", "-x", "c-header", "p.h", "-o", "p.h.gch")
    check(project, "gcc -c a.c", lambda: edited(two, "", 8), lambda: edited(two, "#undef V\n#define V 3\n", 8))


def test_a_tree_with_many_equal_headers_is_found_again(project: ForeignProject) -> None:
    """As CCCL, which has 25 groups of them."""
    includes = []
    for number in range(25):
        project.write(f"lib/real{number}.h", f"#pragma once\nint real{number};\n")
        for system in ("omp", "tbb"):
            text = f"// {system if number % 2 else 'it'} inherits\n#pragma once\n#include <lib/real{number}.h>\n"
            os.utime(
                project.write(f"lib/{system}/h{number}.h", text), (number, number + (system == "omp") * number % 3)
            )
            includes.append(f"#include <lib/{system}/h{number}.h>\n")
    for number in range(4):
        project.write(f"s{number}.cpp", f"{''.join(includes)}int source{number};\n")
    began = project.counts()
    for hits, misses in ((0, 4), (4, 4)):
        for number in range(4):
            listed = []
            for environ in (project.environ, project.plain):
                command = ("g++", "-I.", "-MMD", "-MF", "s.d", "-c", f"s{number}.cpp", "-o", f"s{number}.o")
                assert project.call(*command, environ=environ).returncode == 0
                listed.append(prerequisites((project.folder / "s.d").read_bytes()))
            assert listed[0] == listed[1]
        assert project.counts() == (began[0] + hits, began[1] + misses)
    twin = project.folder / "lib/tbb/h0.h"
    text, seen = twin.read_text(), os.stat(twin)
    twin.write_text(text + "#define MORE 1\n")
    for number in range(4):
        assert project.call("g++", "-I.", "-c", f"s{number}.cpp", "-o", f"s{number}.o").returncode == 0
    assert project.counts() == (began[0] + 4, began[1] + 8)
    twin.write_text(text)
    os.utime(twin, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert project.call("g++", "-I.", "-c", "s0.cpp", "-o", "s0.o").returncode == 0
    assert project.counts() == (began[0] + 5, began[1] + 8)


def test_another_checkout_hits_if_its_times_are_as_equal(project: ForeignProject) -> None:
    began = project.counts()
    for name, times, (hits, misses) in (
        ("first", (7, 7), (0, 1)),
        ("second", (7, 8), (0, 2)),
        ("third", (9, 9), (1, 2)),
        ("fourth", (9, 3), (2, 2)),
    ):
        top = project.write(f"{name}/.git/HEAD", "").parent.parent
        project.write(f"{name}/a.c", '#include "one/h.h"\n#include "two/h.h"\nint x = V;\n')
        for number, folder in enumerate(("one", "two")):
            project.write(f"{name}/{folder}/v.h", f"#define V {number}\n")
            edited(project.write(f"{name}/{folder}/h.h", ""), "", times[number])
        made = []
        for environ in (project.environ, project.plain):
            assert project.call("gcc", "-c", "a.c", "-o", "a.o", cwd=top, environ=environ).returncode == 0
            made.append((top / "a.o").read_bytes())
        assert made[0] == made[1]
        assert project.counts() == (began[0] + hits, began[1] + misses)


@pytest.mark.parametrize("answered", [True, False], ids=["shim", "daemon"])
def test_a_touched_header(project: ForeignProject, answered: bool) -> None:
    _, two = furnished(project)
    project.write("a.c", f'#include "one/h.h"\n#include "two/h.h"\nint touched{answered} = V;\n')

    def touched(time_s: float) -> None:
        os.utime(two, (time_s, time_s))
        if not answered:
            without_answers(project)

    check(project, "gcc -c a.c", lambda: touched(7.5), lambda: touched(8))
    began = project.counts()
    for _ in range(2):
        assert project.call("gcc", "-c", "a.c", "-o", "a.o").returncode == 0
    assert project.counts() == (began[0] + 2, began[1])


@pytest.mark.cuda
def test_equal_headers_of_a_kernel(kept_user: User) -> None:
    """The host pass and the device pass each preprocess the source."""
    project = ForeignProject.with_nvcc(kept_user, "equal headers of a kernel")
    _, two = furnished(project)
    text = "#define IN(x) value_in_##x\n#define NAME(x) IN(x)\n__global__ void k(int *p) { *p = V; }\nint NAME(V);\n"
    project.write("a.cu", f'#include "one/h.h"\n#include "two/h.h"\n{text}')
    states = (
        (0, lambda: edited(two, "")),
        (1, lambda: edited(two, "", 8)),
        (3, lambda: edited(two, "#undef V\n#define V 3\n")),
    )
    check(project, "nvcc -arch=sm_80 -cubin a.cu", *(state for _, state in states))
    began = project.counts()
    for hits in (0, 3):
        for value, state in states:
            state()
            project.good("nvcc", "-arch=sm_80", "-c", "a.cu", "-o", "a.o")
            made = (project.folder / "a.o").read_bytes()
            assert set(re.findall(rb"value_in_(\d)", made)) == {str(value).encode()}
        assert project.counts() == (began[0] + hits, began[1] + 3)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
def test_equal_headers_of_a_hip_kernel(project: ForeignProject) -> None:
    _, two = furnished(project)
    project.write("a.hip", '#include "one/h.h"\n#include "two/h.h"\nint hip = V;\n')

    def copied(more: str) -> None:
        two.unlink()
        edited(two, more)

    def linked() -> None:
        two.unlink()
        os.link(project.folder / "one/h.h", two)

    check(
        project,
        "hipcc --offload-arch=gfx90a -c a.hip",
        lambda: copied(""),
        linked,
        lambda: copied("#undef V\n#define V 3\n"),
    )
