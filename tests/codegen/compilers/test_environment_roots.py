"""Compiles for several virtual environments: one result serves all whose path cannot reach it, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.compilers.environment_roots import read_in, roots_of
from codegen.compilers.temporary_roots import Roots
from codegen.foreign.command_line import parse
from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User


def found(folder: Path, *arguments: str, others: Roots = (), tool: str = "/usr/bin/gcc") -> list[str]:
    """The environments that a compile names, as paths below their folder."""
    compile = parse((tool, "-c", *(word.replace("@", str(folder)) for word in arguments)), f"{folder}/project")
    roots = roots_of(compile, f"{folder}/project", compile.flags, others, (f"{folder}/tool",))
    assert [name for name, _ in roots] == [f"checkout-environment-{number}" for number in range(len(roots))]
    return [path.removeprefix(f"{folder}/") for _, path in roots]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "project",
        "env/include",
        "conda/conda-meta",
        "conda/include",
        "plain/include",
        "project/.venv/include",
        "cuda/bin",
        "env/cuda/bin",
    ):
        (tmp_path / name).mkdir(parents=True)
    for name in ("env/pyvenv.cfg", "project/.venv/pyvenv.cfg", "cuda/bin/nvcc", "env/cuda/bin/nvcc"):
        (tmp_path / name).touch()
    return tmp_path


def test_an_environment_is_known_by_what_stands_in_it(folder: Path) -> None:
    assert found(folder, "a.c", "-I@/env/include", "-I@/plain/include", "-I@/env/lib/none") == ["env"]
    assert found(folder, "a.c", "-I@/conda/include", "-isystem", "@/env/lib") == ["conda", "env"]
    assert found(folder, "a.c", "-I@/plain/include", "-I/usr/include", "-Iinclude") == []
    # A host compile names a toolkit.
    assert found(folder, "a.c", "-I@/cuda/include", "-I@/env/cuda/include", "-I@/env/include") == [
        "cuda",
        "env/cuda",
        "env",
    ]


def test_an_environment_is_no_root_where_its_path_says_more(folder: Path) -> None:
    checkout = (("checkout", f"{folder}/project"),)
    assert found(folder, "a.c", "-I@/project/.venv/include", others=checkout) == []
    assert found(folder, "@/env/src/a.c", "-I@/env/include") == []
    assert found(folder, "a.c", "-o", "@/env/a.o", "-I@/env/include") == []
    assert found(folder, "a.c", "-I@/env/include", "-ffile-prefix-map=@/env=/e") == []
    assert found(folder, "a.c", "-I@/env/include", "-Wmissing-include-dirs") == []
    assert found(folder, "a.c", "-I@/env/include", "-flto") == []
    # nvcc names a module after folders.
    assert found(folder, "a.cu", "-I@/env/include", tool="/cuda/bin/nvcc") == []
    assert found(folder, "a.cu", "-I@/env/include", tool="/cuda/bin/nvcc", others=checkout) == ["env"]
    assert found(folder, "a.cu", "-lineinfo", "-I@/env/include", tool="/cuda/bin/nvcc", others=checkout) == []


def test_the_environments_that_files_were_read_in() -> None:
    roots = (("checkout-environment-0", "/e"), ("checkout-environment-1", "/e2"), ("checkout", "/p"))
    assert read_in(roots, ["/e2/x.h", "/p/y.h", "e/z.h"]) == {"checkout-environment-1"}


# ---------------------------------------------------------------- real compiles


class Environments:
    """One project, and two environments with the same headers."""

    def __init__(self, foreign: ForeignProject, texts: dict[str, str], header: str) -> None:
        self.foreign, self.project = foreign, foreign.folder / "project"
        self.folders = [foreign.folder / "env", foreign.folder / "of/another/name"]
        for folder in self.folders:
            (folder / "include").mkdir(parents=True)
            (folder / "pyvenv.cfg").touch()
            (folder / "include/h.h").write_text(header)
        self.project.mkdir()
        for name, text in texts.items():
            (self.project / name).write_text(text)

    def compile(self, number: int, *command: str) -> bytes:
        """The object; it, the depfile and the messages are the plain compiler's."""
        words = [word.replace("@", str(self.folders[number])) for word in command]
        made = []
        for environ in (self.foreign.plain, self.foreign.environ):
            done = self.foreign.call(*words, "-MD", "-MF", "o.d", "-o", "o.o", environ=environ, cwd=self.project)
            assert done.returncode == 0, done.stderr
            places = [self.project / name for name in ("o.o", "o.d")]
            rules = places[1].read_text().replace("\\\n", "").split()
            made.append((b"" if command[0] == "nvcc" else places[0].read_bytes(), rules, done.stderr))
            for place in places:
                place.unlink()
        assert made[0] == made[1]
        return made[0][0]

    def twice(self, *command: str) -> tuple[int, int]:
        """Compile for both; hits and misses that this made."""
        before = self.foreign.counts()
        for number in (0, 1):
            self.compile(number, *command)
        now = self.foreign.counts()
        return now[0] - before[0], now[1] - before[1]


SOURCE = {
    "a.cpp": '#include "h.h"\nint of_environment() { return H; }\n',
    "b.cpp": "int beside_environment() { return 1; }\n",
}
HEADER = "#pragma once\n#define H 3\n"
COMPILE = ("-I@/include", "-c")


@pytest.mark.parametrize("tool", ["g++", "clang++"])
def test_another_environment_hits_where_its_path_reaches_nothing(kept_user: User, tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"no {tool}")
    both = Environments(ForeignProject(kept_user, kept_user.folder / f"environment-{tool[0]}"), SOURCE, HEADER)
    assert both.twice(tool, *COMPILE, "a.cpp") == (1, 1)
    # Debug information names the folders of files that were read.
    assert both.twice(tool, *COMPILE, "-g", "b.cpp") == (1, 1)
    assert both.twice(tool, *COMPILE, "-g", "a.cpp") == (0, 2)
    (both.folders[1] / "include/h.h").write_text("#pragma once\n#define H 4\n")
    assert both.twice(tool, *COMPILE, "-O1", "a.cpp") == (0, 2)


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
@pytest.mark.parametrize(
    "text",
    [
        "inline char const *h() { return __FILE__; }\ninline int use() { return h()[0]; }\n#define H use()\n",
        "inline int h() { return sizeof(__FILE__); }\n#define H h()\n",
        "#include <assert.h>\ninline int h(int x) { assert(x); return x; }\n#define H h(3)\n",
    ],
    ids=["text", "size", "assert"],
)
def test_the_environments_path_in_the_object_counts(kept_user: User, text: str, request: pytest.FixtureRequest) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / f"environment-{request.node.callspec.id}")
    assert Environments(foreign, SOURCE, text).twice("g++", *COMPILE, "a.cpp") == (0, 2)


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_warning_names_the_environment_that_it_is_of(kept_user: User) -> None:
    text = "#pragma once\nstatic inline int h() { int unused; return 3; }\n#define H h()\n"
    foreign = ForeignProject(kept_user, kept_user.folder / "environment-warned")
    assert Environments(foreign, SOURCE, text).twice("g++", "-Wall", *COMPILE, "a.cpp") == (1, 1)


@pytest.mark.cuda
def test_nvcc_for_another_environment(kept_user: User) -> None:
    foreign = ForeignProject.with_nvcc(kept_user, "environment-nvcc")
    text = '#include "h.h"\n__global__ void k_env(int *p) { *p = H; }\n'
    both = Environments(foreign, {"a.cu": text}, HEADER)
    assert both.twice("nvcc", "-arch=sm_80", *COMPILE, f"-I{both.project}", f"{both.project}/a.cu") == (1, 1)
