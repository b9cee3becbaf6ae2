"""A real CMake tree: it gets a launcher and no compiler of ours, and outlives the store and buildd itself."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.user import User

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("make") and shutil.which("g++")),
    reason="no cmake, make or g++ (Debian: apt install cmake make g++)",
)


@pytest.fixture
def user() -> Iterator[User]:
    with short_folder() as folder:
        made = User(folder)
        try:
            yield made
        finally:
            assert made.end() == []


@pytest.fixture
def project(user: User) -> ForeignProject:
    made = ForeignProject(user, user.folder / "project")
    made.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(p C CXX)\nadd_library(p a.c b.cpp)\n")
    made.write("a.c", "int a;\n")
    made.write("b.cpp", "int b;\n")
    return made


def cache(project: ForeignProject) -> dict[str, str]:
    text = (project.folder / "build" / "CMakeCache.txt").read_text()
    return dict(re.findall(r"^(CMAKE_CX*_COMPILER(?:_LAUNCHER)?):\w+=(.*)$", text, flags=re.MULTILINE))


def test_cmake_gets_a_launcher_and_no_compiler_of_ours(project: ForeignProject) -> None:
    project.good("cmake", "-S", ".", "-B", "build", "-G", "Unix Makefiles")
    found = cache(project)
    data = f"{project.user.folder}/home/.local/share/buildd/"
    assert found["CMAKE_C_COMPILER"] == shutil.which("cc", path=project.plain["PATH"])
    assert found["CMAKE_CXX_COMPILER"] == shutil.which("c++", path=project.plain["PATH"])
    for name in ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"):
        assert found[name].startswith(data) and found[name].endswith("/buildd-cc")
    hits, misses = project.counts()  # cmake tried the compilers
    project.good("cmake", "--build", "build")
    assert project.counts() == (hits, misses + 2)


def test_the_users_own_launcher_and_compiler_stay(project: ForeignProject) -> None:
    project.environ |= {"CMAKE_C_COMPILER_LAUNCHER": "/usr/bin/env", "CXX": "g++"}
    project.good("cmake", "-B", "build")
    found = cache(project)
    assert found["CMAKE_C_COMPILER_LAUNCHER"] == "/usr/bin/env"
    assert found["CMAKE_CXX_COMPILER"] == shutil.which("g++", path=project.plain["PATH"])


def test_with_buildd_switched_off_cmake_is_as_without_us(project: ForeignProject) -> None:
    environ = {name: value for name, value in project.environ.items() if not name.startswith("CMAKE_")}
    done = project.call("cmake", "-B", "build", environ={**environ, "BUILDD_DISABLE": "1"})
    assert done.returncode == 0 and "CMAKE_C_COMPILER_LAUNCHER" not in cache(project)


def test_installed_launchers_configure_a_tree_in_the_same_way(project: ForeignProject) -> None:
    folder = project.folder / "bin"
    assert project.user.buildd("install-launchers", str(folder))[0] == 0
    environ = {**project.plain, "PATH": f"{folder}:{project.plain['PATH']}"}
    assert project.call("cmake", "-B", "build", environ=environ).returncode == 0
    found = cache(project)
    assert found["CMAKE_C_COMPILER_LAUNCHER"] == f"{folder}/buildd-cc"
    assert not found["CMAKE_C_COMPILER"].startswith(str(folder))


def test_a_tree_outlives_the_store_and_buildd(project: ForeignProject) -> None:
    user, build = project.user, ("cmake", "--build", "build", "--clean-first")
    project.good("cmake", "-B", "build")
    project.good(*build)
    project.notes.close()
    user.end()
    shutil.rmtree(user.store)
    assert project.call(*build, environ=project.plain).returncode == 0, "it starts the daemon, which makes a store"
    assert user.daemon() is not None
    status, said = user.buildd("uninstall")
    assert status == 2 and "cannot ask for confirmation" in said and user.daemon() is not None
    assert f"would keep {user.folder}/home/.local/share/buildd/" in said and f"  {project.folder}/build\n" in said
    status, said = user.buildd("uninstall", "--yes")
    assert status == 0, said
    assert f"  {project.folder}/build\n" in said and "cmake TREE -DCMAKE_C_COMPILER_LAUNCHER= " in said
    assert project.call(*build, environ=project.plain).returncode == 0
    assert user.daemon() is None and not user.store.exists()
    mend = re.search(r"cmake TREE (.*)", said)
    assert mend is not None
    assert project.call("cmake", "build", *mend[1].split(), environ=project.plain).returncode == 0
    status, said = user.buildd("uninstall", "--yes")
    assert status == 0 and "trees" in said and "kept" not in said
    assert not (user.folder / "home" / ".local" / "share" / "buildd").exists()
    assert project.call(*build, environ=project.plain).returncode == 0


def test_a_tree_configured_without_us_is_told_at_the_end(project: ForeignProject) -> None:
    project.user.environ["BUILDD_INTERPOSE"] = "0"  # calls by path pass buildd
    assert project.plainly("cmake", "-B", "build").returncode == 0
    run = ("run", "--", "sh", "-c")
    status, said = project.user.buildd(*run, f"cd {project.folder}; exec cmake --build build")
    assert status == 0 and "configured" not in said, "the command is a shell's: nothing is known of its tree"
    shutil.rmtree(project.folder / "build")
    assert project.plainly("cmake", "-B", "build").returncode == 0
    status, said = project.user.buildd("run", "--", "cmake", "--build", f"{project.folder}/build")
    tree = "project/build"
    assert status == 0
    assert f"buildd: {tree} was configured without buildd; next: buildd run -- cmake {tree}" in said
    status, said = project.user.buildd("run", "--", "cmake", f"{project.folder}/build")
    assert status == 0 and "configured without" not in said
    status, said = project.user.buildd("run", "--", "cmake", "--build", f"{project.folder}/build", "--clean-first")
    assert status == 0 and "configured without" not in said and "buildd: 0 hits, 2 misses" in said
