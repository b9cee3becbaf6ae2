"""Shims that find no daemon start one: once, for all compiles that wait, and without a word."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.shims.interposition import LAUNCHER
from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
SAID = b"buildd: the daemon cannot be started (try: buildd up); compilers run without the cache\n"


@pytest.fixture
def user() -> Iterator[User]:
    with short_folder() as folder:
        made = User(folder)
        try:
            yield made
        finally:
            assert made.end() == []


@pytest.fixture
def foreign(user: User) -> ForeignProject:
    made = ForeignProject(user, user.folder / "project")
    for name in "abcd":
        made.write(f"{name}.c", f"int {name};\n")
    return made


def start_file(foreign: ForeignProject) -> Path:
    return foreign.shims / ".buildd-launchers" / "start"


def spoil_start(foreign: ForeignProject) -> Path:
    """Have every start fail, and leave a trace."""
    tries = foreign.folder / "tries"
    program = foreign.write("start-nothing", f"#!/bin/sh\necho >> {tries}\nexit 1\n")
    program.chmod(0o755)
    Path(os.path.realpath(start_file(foreign))).write_text(f"{program}\n")
    return tries


def test_a_compile_starts_the_daemon_that_caches_it(foreign: ForeignProject) -> None:
    assert foreign.user.daemon() is None
    assert foreign.good("gcc", "-c", "a.c").stderr == b""
    assert foreign.user.daemon() is not None
    assert foreign.counts() == (0, 1)
    foreign.good("gcc", "-c", "a.c")
    assert foreign.counts() == (1, 1)


def test_installed_launchers_start_the_daemon(foreign: ForeignProject) -> None:
    folder = foreign.folder / "bin"
    status, output = foreign.user.buildd("install-launchers", str(folder))
    assert status == 0 and foreign.user.daemon() is None, output
    environ = {**foreign.plain, "PATH": f"{folder}:{foreign.plain['PATH']}", "BUILDD_BUILD_ID": foreign.build}
    assert foreign.call("gcc", "-c", "a.c", environ=environ).returncode == 0
    assert foreign.counts() == (0, 1)


def test_a_daemon_that_was_killed_is_followed_by_another(foreign: ForeignProject) -> None:
    foreign.good("gcc", "-c", "a.c")
    first = foreign.user.daemon()
    assert first is not None
    first.kill()
    assert foreign.user.leftovers(within_s=30) == []
    foreign.good("gcc", "-c", "b.c")
    second = foreign.user.daemon()
    assert second is not None and second.pid != first.pid


def test_many_at_once_start_one(foreign: ForeignProject) -> None:
    processes = [foreign.start("gcc", "-c", f"{name}.c") for name in "abcd"]
    for process in processes:
        assert process.communicate(timeout=60) == (b"", b"") and process.returncode == 0
    assert foreign.counts() == (0, 4)
    (log,) = foreign.user.run_folder.rglob("daemon.log")
    assert log.read_text().count("serving in") == 1
    assert "another daemon" not in log.read_text(), "no second one was started"


def test_no_daemon_is_started_if_buildd_is_switched_off(foreign: ForeignProject) -> None:
    assert foreign.call("gcc", "-c", "a.c", environ={**foreign.environ, "BUILDD_DISABLE": "1"}).returncode == 0
    assert foreign.user.daemon() is None and not list(foreign.user.run_folder.rglob("starting"))


def test_a_start_that_fails_is_told_once_and_not_tried_by_each_compile(foreign: ForeignProject) -> None:
    tries = spoil_start(foreign)
    assert [foreign.good("gcc", "-c", f"{name}.c").stderr for name in "abcd"] == [SAID, b"", b"", b""]
    assert tries.read_text() == "\n"
    (mark,) = foreign.user.run_folder.rglob("starting")
    os.utime(mark, (time.time() - 3600, time.time() - 3600))
    assert foreign.good("gcc", "-c", "a.c").stderr == SAID
    assert tries.read_text() == "\n\n"


def test_several_that_wait_for_a_start_that_fails_say_so_once(foreign: ForeignProject) -> None:
    tries = spoil_start(foreign)
    processes = [foreign.start("gcc", "-c", f"{name}.c") for name in "abcd"]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert sorted(said) == [b"", b"", b"", SAID] and tries.read_text() == "\n"


def test_a_start_that_others_could_have_written_is_not_run(foreign: ForeignProject) -> None:
    tries = spoil_start(foreign)
    Path(os.path.realpath(start_file(foreign))).chmod(0o666)
    assert foreign.good("gcc", "-c", "a.c").stderr == b"" and not tries.exists()


def test_without_a_way_to_start_the_tool_runs(foreign: ForeignProject) -> None:
    Path(os.path.realpath(start_file(foreign))).unlink()
    assert foreign.good("gcc", "-c", "a.c").stderr == b""
    assert foreign.user.daemon() is None


def test_the_store_can_be_removed_while_trees_call_the_shims(foreign: ForeignProject) -> None:
    launcher = str(foreign.shims / LAUNCHER)
    assert not launcher.startswith(f"{foreign.user.store}/")
    os.rename(foreign.user.store, foreign.user.folder / "moved")
    foreign.good(launcher, "gcc", "-c", "a.c")
    assert foreign.counts() == (0, 1)
