"""A ccache or sccache that a project has found runs nothing under `buildd run`: its compiles go through the shim."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

GCC = shutil.which("gcc") or ""
pytestmark = pytest.mark.skipif(not GCC, reason="no gcc (Debian: apt install gcc)")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    """With a ccache and a sccache on its PATH, which write down what they are called with."""
    folder = user.folder / re.sub(r"\W+", "-", request.node.name)
    tools = folder.with_name(f"{folder.name}-tools")
    tools.mkdir()
    made = ForeignProject(user, folder, str(tools))
    for name in ("ccache", "sccache"):
        (tools / name).write_text(f'#!/bin/sh\necho "$*" >> {folder}/called\nexec "$@"\n')
        (tools / name).chmod(0o755)
    made.write("a.c", f'char const *name = "{request.node.name}";\n')
    return made


def called(project: ForeignProject) -> list[str]:
    file = project.folder / "called"
    return file.read_text().splitlines() if file.exists() else []


def shell(project: ForeignProject, script: str) -> str:
    done = project.call("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("command", ["ccache gcc", "sccache gcc", f"ccache {GCC}", "ccache sloppiness=locale gcc"])
def test_its_compiles_go_through_the_shim(project: ForeignProject, command: str) -> None:
    for _ in range(2):
        shell(project, f"{command} -c a.c -o a.o")
    assert project.counts() == (1, 1) and called(project) == []


def test_by_its_path_too(project: ForeignProject) -> None:
    place = shutil.which("ccache", path=project.plain["PATH"])
    for _ in range(2):
        shell(project, f"{place} gcc -c a.c -o a.o")
    assert project.counts() == (1, 1) and called(project) == []


def test_a_link_runs_the_compiler_alone(project: ForeignProject) -> None:
    project.write("main.c", "int main(void) { return 0; }\n")
    shell(project, "ccache gcc main.c -o main && ./main")
    assert called(project) == []


@pytest.mark.parametrize(
    "command", ["ccache --set-config=max_size=1G", "sccache --zero-stats", "sccache rustc --version"]
)
def test_what_only_that_cache_can_do_it_does(project: ForeignProject, command: str) -> None:
    project.call("sh", "-c", command)
    assert called(project) == [command.partition(" ")[2]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ccache -s", r"Cacheable calls: +\d+ / \d+ .*\n  Hits: +\d+ / \d+"),
        ("ccache --show-stats", r"  Misses: +\d+ / \d+"),
        ("sccache --show-stats", r"Compile requests +\d+\n(.*\n)*Cache hits +\d+\nCache misses +\d+"),
    ],
)
def test_its_figures_are_buildds(project: ForeignProject, command: str, words: str) -> None:
    shell(project, "ccache gcc -c a.c -o a.o")
    assert re.search(words, shell(project, command)) and called(project) == []


def test_without_us_nothing_is_changed(project: ForeignProject) -> None:
    assert project.call("sh", "-c", "ccache gcc -c a.c -o a.o", environ=project.plain).returncode == 0
    disabled = {**project.environ, "BUILDD_DISABLE": "1"}
    assert project.call("sh", "-c", "ccache gcc -c a.c -o a.o", environ=disabled).returncode == 0
    assert called(project) == ["gcc -c a.c -o a.o"] * 2


def test_a_launcher_in_a_cmake_tree_is_taken(project: ForeignProject) -> None:
    if shutil.which("cmake") is None or shutil.which("make") is None:
        pytest.skip("no cmake or make")
    project.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nadd_library(a a.c)\n")
    place = Path(shutil.which("sccache", path=project.plain["PATH"]) or "")
    options = f"-S . -B build -DCMAKE_C_COMPILER_LAUNCHER={place}"
    shell(project, f"cmake {options} > log 2>&1 && cmake --build build >> log")
    assert str(place) in (project.folder / "build" / "CMakeCache.txt").read_text()
    (project.folder / "called").unlink(missing_ok=True)
    shell(project, "cmake --build build --clean-first >> log")
    assert called(project) == [] and project.counts()[0] == 1
