"""Compilers that are called with nothing of buildd's in their environment: by SCons, `env -i`, a tree's launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.shims import shim_folders
from buildd.shims.interposition import LIBRARY
from codegen.foreign.called_tool import MARK
from tests.support.developer import Developer
from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
PATH = "/usr/local/bin:/usr/bin:/bin"
IN_PYTHON = f"import os, subprocess, sys; subprocess.run(sys.argv[1:], env={{'PATH': '{PATH}'}}, check=True)"


@pytest.fixture
def user() -> Iterator[User]:
    with short_folder() as folder:
        made = User(folder)
        yield made
        assert made.end() == []


@pytest.fixture
def foreign(user: User) -> ForeignProject:
    made = ForeignProject(user, user.folder / "project")
    made.write("a.c", "int a;\n")
    return made


def installed(user: User) -> Path:
    """A folder with shims of this user."""
    folder = user.folder / "bin"
    status, output = user.buildd("install-launchers", str(folder))
    assert status == 0, output
    return folder


def call_bare(folder: Path, cwd: Path, **more: str) -> None:
    environ = {"PATH": f"{folder}:{PATH}", **more}
    subprocess.run([folder / "gcc", "-c", "a.c"], cwd=cwd, env=environ, check=True, timeout=60)


# ---------------------------------------------------------------- below `buildd run`


@pytest.mark.parametrize(
    "command",
    [
        ("env", "-i", f"PATH={PATH}", "gcc", "-c", "a.c"),
        ("env", "-i", "/usr/bin/env", "sh", "-c", "/usr/bin/gcc -c a.c; true"),
        (sys.executable, "-c", IN_PYTHON, "sh", "-c", "gcc -c a.c; true"),
    ],
    ids=["env", "twice", "python"],
)
def test_the_run_counts_what_a_cleared_environment_compiles(foreign: ForeignProject, command: tuple[str, ...]) -> None:
    foreign.good(*command)
    foreign.good(*command)
    assert foreign.counts() == (1, 1)


@pytest.mark.skipif(not shutil.which("scons"), reason="no scons")
@pytest.mark.parametrize("environment", ["", "ENV={'PATH': os.environ['PATH']}"], ids=["usual", "path"])
def test_scons(foreign: ForeignProject, environment: str) -> None:
    foreign.write("SConstruct", f"import os\nEnvironment({environment}).Object('a.c')\n")
    foreign.good(str(shutil.which("scons")))
    assert foreign.counts() == (0, 1)


def test_a_cleared_environment_gets_what_is_buildds_and_no_more(foreign: ForeignProject) -> None:
    shown = foreign.good("env", "-i", "A=b", "env").stdout.decode().splitlines()
    ours = {f"{name}={value}" for name, value in foreign.environ.items() if name.startswith("BUILDD_")}
    assert {*shown} == {"A=b", f"LD_PRELOAD={foreign.shims / LIBRARY}", *ours}
    for word in ("BUILDD_DISABLE=1", "LD_PRELOAD="):
        assert foreign.good("env", "-i", word, "env").stdout.decode().splitlines() == [word]


def test_only_the_library_is_passed_on_to_where_it_can_load(foreign: ForeignProject) -> None:
    own = foreign.environ["LD_PRELOAD"]
    environ = {**foreign.environ, "LD_PRELOAD": f"{foreign.folder}/nowhere.so {own}"}
    shown = foreign.call("env", "-i", "env", environ=environ).stdout.decode()
    assert f"LD_PRELOAD={own}\n" in shown


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="not root, or no setpriv")
def test_another_user_gets_nothing(foreign: ForeignProject) -> None:
    words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--reset-env", "env")
    assert b"BUILDD_" not in foreign.call(*words, cwd=Path("/")).stdout


def test_a_build_in_its_own_process_calls_the_compilers_themselves(developer: Developer) -> None:
    """The jobs of `buildd build --no-daemon` run in a cleared environment, too."""
    own = f"{sys.executable} -P -m buildd build -C {developer.project} --no-daemon"
    status, output = developer.buildd("run", "--", "sh", "-c", f"{own}; true")
    assert status == 0 and "built 1 target" in output, output
    assert "buildd: " not in output, "no compiler went through a shim"


# ---------------------------------------------------------------- shims that know their store


def test_installed_shims_know_their_store(user: User, foreign: ForeignProject) -> None:
    call_bare(installed(user), foreign.folder, HOME=user.environ["HOME"])
    assert user.daemon() is not None and (user.store / "index.db").exists()
    assert not (Path(user.environ["HOME"]) / ".cache" / "buildd").exists()
    with_figures = ForeignProject(user, user.folder / "other")
    with_figures.build = "shims"  # type: ignore[assignment]
    assert with_figures.figures().misses == 1


def test_shims_in_front_of_path_know_their_store(user: User, foreign: ForeignProject) -> None:
    user.environ["BUILDD_INTERPOSE"] = "0"
    foreign.search("")
    foreign.good("env", "-i", f"PATH={foreign.environ['PATH']}", "gcc", "-c", "a.c")
    assert user.daemon() is not None and foreign.status().builds["shims"].misses == 1


def test_the_environments_own_store_wins(user: User, foreign: ForeignProject) -> None:
    other = user.folder / "other-store"
    call_bare(
        installed(user), foreign.folder, BUILDD_DIR=str(other), BUILDD_RUNTIME_DIR=user.environ["BUILDD_RUNTIME_DIR"]
    )
    assert (other / "index.db").exists() and not (user.store / "index.db").exists()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_place_that_others_could_have_written_is_not_believed(user: User, foreign: ForeignProject, mode: int) -> None:
    folder = installed(user)
    (folder / MARK / shim_folders.PLACE).chmod(mode)
    (folder / MARK / shim_folders.START).unlink()  # no shim may start the tester's own daemon
    assert user.buildd("up")[0] == 0
    call_bare(folder, foreign.folder, HOME=user.environ["HOME"], XDG_RUNTIME_DIR=str(user.folder))
    assert "shims" not in foreign.status().builds


def test_the_usual_store_is_not_named(user: User, tmp_path: Path) -> None:
    home = tmp_path / "home"
    usual = {"HOME": str(home), "PATH": PATH}
    store = home / ".cache" / "buildd"
    tools = {"gcc": str(host_compiler())}
    binary = shim_folders.program(user.store, PATH)
    one = shim_folders.stand_for(store, tools, usual, binary)
    same = shim_folders.stand_for(store, tools, {**usual, "BUILDD_DIR": str(store)}, binary)
    other = shim_folders.stand_for(user.store, tools, {**usual, "BUILDD_RUNTIME_DIR": "/run/mine"}, binary)
    assert one == same != other
    assert not (one.programs / MARK / shim_folders.PLACE).exists()
    place = other.programs / MARK / shim_folders.PLACE
    assert place.read_text() == f"BUILDD_DIR={user.store}\nBUILDD_RUNTIME_DIR=/run/mine\n"
