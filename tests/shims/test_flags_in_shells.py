"""Flags as nvcc's and hipcc's shells read them, and as nvcc reads them in a file: the same results as without us."""

from __future__ import annotations

import re

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import small_toolkit
from tests.support.user import User

_READ_BY_SHELLS = {
    "macro": ("-DA=$MINE",),
    "braces": ("-D", "A=${MINE}"),
    "backslash": (r"-DA=\$MINE",),
    "for the host compiler": ("-Xcompiler=-DA=$MINE",),
    "home": ("-Xcompiler", "-include,~/a.h"),
}


@pytest.fixture
def project(kept_user: User, request: pytest.FixtureRequest) -> ForeignProject:
    return ForeignProject(kept_user, kept_user.folder / re.sub(r"\W+", "-", request.node.name))


def without_and_with(project: ForeignProject, *command: str, **variables: str) -> tuple[bytes, bytes, bytes]:
    """What a command makes without us, then twice with us; empty where it fails."""
    output = project.folder / "out"

    def made(environ: dict[str, str]) -> bytes:
        output.unlink(missing_ok=True)
        done = project.call(*command, "-o", "out", environ={**environ, **variables})
        assert (done.returncode == 0) == output.exists()
        return output.read_bytes() if output.exists() else b""

    return made(project.plain), made(project.environ), made(project.environ)


def follows_variables(project: ForeignProject, *command: str, **variables: str) -> None:
    """The result is the plain compiler's, and another one with other variables. @ stands for a number in them."""
    found = set()
    for number in ("1", "2"):
        given = {name: value.replace("@", number) for name, value in variables.items()}
        plain, first, second = without_and_with(project, *command, **given)
        assert plain and first == second == plain
        found.add(plain)
    assert len(found) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("flags", _READ_BY_SHELLS.values(), ids=_READ_BY_SHELLS)
def test_nvccs_shell_replaces_variables(project: ForeignProject, flags: tuple[str, ...]) -> None:
    project.write("k.cu", "__global__ void k(int *p) { *p = A + 0; }\n")
    for number in ("1", "2"):
        project.write(f"{number}/a.h", f"#define A {number}\n")
    nvcc = str(small_toolkit() / "bin/nvcc")
    follows_variables(project, nvcc, "-ptx", "k.cu", *flags, MINE="@", HOME=f"{project.folder}/@")


@pytest.mark.hip
def test_hipccs_shell_replaces_variables(project: ForeignProject) -> None:
    project.write("a.cpp", "__attribute__((global)) void k(int *p) { *p = A + 0; }\n")
    command = ("hipcc", "--genco", "--offload-arch=gfx90a", "-nogpuinc", "-x", "hip", "a.cpp")
    follows_variables(project, *command, HIP_PLATFORM="amd", HIPCC_COMPILE_FLAGS_APPEND="-DA=$MINE", MINE="@")


@pytest.mark.cuda
def test_flags_in_a_variable_that_write_another_file(project: ForeignProject) -> None:
    project.write("k.cu", "int host() { return 1; }\n")
    report = project.folder / "k.su"
    for environ in (project.plain, project.environ, project.environ):
        report.unlink(missing_ok=True)
        variables = {"NVCC_APPEND_FLAGS": "-Xcompiler=-fstack-usage"}
        command = (str(small_toolkit() / "bin/nvcc"), "-c", "k.cu", "-o", "k.o")
        assert project.call(*command, environ={**environ, **variables}).returncode == 0
        assert report.exists()


@pytest.mark.cuda
@pytest.mark.parametrize("options", ["-DA=1'0", '-D"A=2"', "'-DA=3'", "-DA='4'", "-D'A=5'", '"-DA=6"'])
def test_quotes_in_an_options_file(project: ForeignProject, options: str) -> None:
    project.write("k.cu", "__global__ void k(int *p) { *p = A; }\n")
    project.write("options", options)
    nvcc = str(small_toolkit() / "bin/nvcc")
    plain, first, second = without_and_with(project, nvcc, "-ptx", "k.cu", "--options-file", "options")
    assert first == second == plain
