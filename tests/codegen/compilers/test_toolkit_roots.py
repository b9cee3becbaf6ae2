"""nvcc of one toolkit at several places: one result serves all whose path cannot reach it, and no others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from codegen.compilers.environment_roots import TOOLKIT, roots_of
from codegen.foreign.command_line import parse
from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.toolkit import small_toolkit, toolkit_apart
from tests.support.user import User

CHECKOUT = (("checkout", "/p"),)


def of_toolkit(toolkit: str, *arguments: str, installed: tuple[str, ...] = ()) -> bool:
    """Whether the toolkit is a root of this compile in /p."""
    compile = parse((f"{toolkit}/bin/nvcc", "-c", "a.cu", *arguments), "/p")
    return (TOOLKIT, toolkit) in roots_of(compile, "/p", compile.flags, CHECKOUT, installed, toolkit=toolkit)


def test_a_toolkit_is_a_root_where_its_path_says_no_more() -> None:
    assert of_toolkit("/usr/local/cuda-13.0")
    assert of_toolkit("/p/.venv/nvidia/cu13")
    assert not of_toolkit("/usr")  # Debian's nvcc: /usr holds other things
    assert not of_toolkit("/e", installed=("/e/lib/gcc/13",))  # conda's, with its own gcc
    assert not of_toolkit("/e a")  # objects may spell it otherwise
    assert not of_toolkit("/e", "-lineinfo")
    assert not of_toolkit("/e", "-Xcompiler=-ffile-prefix-map=/e=/x")


# ---------------------------------------------------------------- real compiles

KERNEL = '#include "of_toolkit.h"\n__global__ void {name}(int *p) {{ *p = OF_TOOLKIT; }}\n'
HEADER = '#pragma once\n#define OF_TOOLKIT 3\n__attribute__((used)) static char const says[] = "says 3";\n'


class Toolkits:
    """A project, and its nvcc in several folders."""

    def __init__(self, user: User, name: str, *folders: str, header: str = HEADER) -> None:
        self.foreign = ForeignProject(user, user.folder / f"toolkits-{name}" / "project")
        self.folders = [self.foreign.folder.parent / folder for folder in folders]
        for folder in self.folders:
            toolkit_apart(small_toolkit(), folder)
            (folder / "include/of_toolkit.h").write_text(header)
        self.source = self.foreign.write("k.cu", KERNEL.format(name=f"k_{name}"))

    def compile(self, toolkit: Path, *flags: str, cwd: Path | None = None) -> tuple[int, int]:
        """Compile; hits and misses that this made. The depfile, the messages and what the header says are plain nvcc's,
        and so is whether the object contains the toolkit's path."""
        self.foreign.search(f"{toolkit}/bin")
        before, made = self.foreign.counts(), []
        project = cwd or self.foreign.folder
        for environ in (self.foreign.plain, self.foreign.environ):
            words = ("nvcc", "-arch=sm_80", *flags, "-MD", "-MF", "k.d", "-o", "k.o", "-c", "k.cu")
            done = self.foreign.call(*words, environ=environ, cwd=project)
            assert done.returncode == 0, done.stderr
            content = (project / "k.o").read_bytes()
            named = {folder for folder in self.folders if bytes(folder) in content}
            listed = prerequisites((project / "k.d").read_bytes())
            made.append((listed, done.stderr, named, re.findall(rb"says \d", content)))
            assert named <= {toolkit}
        assert made[0] == made[1]
        now = self.foreign.counts()
        return now[0] - before[0], now[1] - before[1]


@pytest.mark.cuda
def test_the_same_toolkit_elsewhere_hits(kept_user: User) -> None:
    both = Toolkits(kept_user, "elsewhere", "cu13", "of/another/prefix")
    one, other = both.folders
    link = one.with_name("link")
    link.symlink_to(one)
    assert both.compile(one) == (0, 1)
    assert both.compile(other) == both.compile(link) == (1, 0)
    # Called by a link, nvcc may write either path: the real one counts.
    assert both.compile(link, "-O1") == (0, 1)
    assert both.compile(one, "-O1") == (1, 0)
    assert both.compile(other, "-O1") == (0, 1)


@pytest.mark.cuda
def test_another_toolkit_elsewhere_misses(kept_user: User) -> None:
    both = Toolkits(kept_user, "another", "cu13", "other")
    one, other = both.folders
    (other / "include/of_toolkit.h").write_text(HEADER.replace("3", "4"))
    link = one.with_name("link")
    link.symlink_to(one)
    assert both.compile(one) == both.compile(other) == (0, 1)
    assert both.compile(link) == (1, 0)
    link.unlink()
    link.symlink_to(other)
    assert both.compile(link) == (1, 0)
    # A header that one prefix has in front of the other's.
    (other / "include/crt/of_toolkit_too.h").write_text("")
    both.source.write_text(
        both.source.read_text() + '#if __has_include("crt/of_toolkit_too.h")\nint have_it;\n#endif\n'
    )
    assert both.compile(one) == both.compile(other) == (0, 1)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "header",
    [
        "#include <assert.h>\nint of(int x) { assert(x); return x; }\n#define OF_TOOLKIT 3\n",
        pytest.param(
            "__host__ __device__ inline char const *of() { return __FILE__; }\n#define OF_TOOLKIT of()[0]\n",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "__device__ inline int of() { return sizeof(__FILE__); }\n#define OF_TOOLKIT of()\n",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["assert", "text", "size"],
)
def test_the_toolkits_path_in_the_object_counts(kept_user: User, header: str, request: pytest.FixtureRequest) -> None:
    name = f"shows_{request.node.callspec.id}"
    both = Toolkits(kept_user, name, "cu13", "of/another/prefix", header=header)
    assert both.compile(both.folders[0]) == both.compile(both.folders[1]) == (0, 1)
    assert both.compile(both.folders[0]) == (1, 0)


@pytest.mark.cuda
def test_a_warning_names_the_toolkit_that_it_is_of(kept_user: User) -> None:
    both = Toolkits(kept_user, "warns", "cu13", "of/another/prefix", header="#warning beware\n#define OF_TOOLKIT 3\n")
    assert both.compile(both.folders[0]) == (0, 1)
    assert both.compile(both.folders[1]) == (1, 0)


@pytest.mark.cuda
def test_each_checkout_has_an_environment_with_the_toolkit_in_it(kept_user: User) -> None:
    both = Toolkits(kept_user, "environments", "project/.venv/nvidia/cu13", "second/.venv/nvidia/cu13")
    projects = [folder.parents[2] for folder in both.folders]
    for project in projects:
        (project / ".venv/pyvenv.cfg").touch()
    shutil.copy2(both.source, projects[1])
    places = zip(both.folders, projects, strict=True)
    made = [both.compile(folder, f"-I{folder}/include", "-I.venv/include", cwd=project) for folder, project in places]
    assert made == [(0, 1), (1, 0)]
