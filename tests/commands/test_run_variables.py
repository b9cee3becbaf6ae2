"""Variables of a `buildd run`: its command has those of the shell, of buildd.toml and of config.toml."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.trees.tree_tools import with_compilers
from tests.support.aitemplate_program import program, rows, write_package
from tests.support.serving import short_folder
from tests.support.toolkit import make_toolkit
from tests.support.user import User

PLACES = pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])
# That config.toml reaches the command as buildd.toml does has a test of its own.
ACTING_FROM = pytest.mark.parametrize(
    "place", ["shell", "buildd.toml", pytest.param("config.toml", marks=pytest.mark.slow)]
)
MAKES = """
import sys
from aitemplate.backend.builder import Builder
builder = Builder()
builder.make_profilers([["nvcc", "-c", "-o", "profiler.obj", "profiler.cu"]])
builder.make([["nvcc", "-c", "-o", "model.obj", "model.cu"]])
"""


class Project:
    """A folder of a user in which commands run, with a fake nvcc and a package like AITemplate."""

    def __init__(self, user: User, folder: Path) -> None:
        folder.mkdir()
        self.user, self.folder = user, folder
        self.environ = {
            **user.environ,
            "PATH": f"{make_toolkit(folder / 'toolkit').parent}:{user.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        packages = write_package(folder / "packages")
        self.environ["PYTHONPATH"] = f"{packages}:{user.environ['PYTHONPATH']}"
        (folder / "config/buildd").mkdir(parents=True)

    def set_in(self, place: str, **values: str) -> None:
        if place == "shell":
            self.environ |= values
            return
        file = self.folder / ("buildd.toml" if place == "buildd.toml" else "config/buildd/config.toml")
        file.write_text(
            "[environment]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
        )

    def run(self, *command: str) -> tuple[str, str]:
        """Output and messages of `buildd run -- COMMAND`."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "buildd", "run", "--", *command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        made = User(folder)
        try:
            yield made
        finally:
            assert made.end() == []


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> Project:
    return Project(user, user.folder / re.sub(r"\W+", "-", request.node.name)[-24:])


@PLACES
def test_the_command_has_the_variables_of_each_place(project: Project, place: str) -> None:
    project.set_in(place, NUM_BUILDERS="3", LOGLEVEL="DEBUG")
    assert project.run("sh", "-c", "echo $NUM_BUILDERS $LOGLEVEL") == ("3 DEBUG", "")


def test_the_shell_wins_and_the_project_goes_before_the_user(project: Project) -> None:
    project.set_in("config.toml", NUM_BUILDERS="3", CACHE_DIR="/u", BUILDD_MEMORY="8GiB")
    project.set_in("buildd.toml", NUM_BUILDERS="4", LOGLEVEL="DEBUG")
    project.set_in("shell", LOGLEVEL="")
    said, _ = project.run("sh", "-c", "echo $NUM_BUILDERS $CACHE_DIR [$LOGLEVEL] [$BUILDD_MEMORY]")
    assert said == "4 /u [] []", "BUILDD_MEMORY is the daemon's"


def test_wrong_files_and_values_are_said_once_and_the_command_runs(project: Project) -> None:
    project.set_in("buildd.toml", NUM_BULDERS="3")
    said, told = project.run("echo", "ran")
    assert said == "ran" and told.count("NUM_BULDERS") == 1 and 'did you mean "NUM_BUILDERS"?' in told
    project.set_in("buildd.toml", NUM_BUILDERS="0")
    project.set_in("shell", AIT_NDEBG="1")
    # Also a run within the run.
    said, told = project.run(sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", "echo $NUM_BUILDERS")
    assert said == "0" and told.count("did you mean AIT_NDEBUG?") == 1
    assert told.count("NUM_BUILDERS=") == 1
    assert 'NUM_BUILDERS="0" (from buildd.toml) cannot be read; accepted: a whole number, 1 or more' in told
    project.set_in("buildd.toml", TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE="bogus")
    told = project.run("true")[1]
    assert told.count('SEARCH_SPACE="bogus" is none of DEFAULT, EXHAUSTIVE') == 1
    (project.folder / "buildd.toml").write_text("[environment\n")
    said, told = project.run("echo", "ran")
    assert said == "ran" and told.count("buildd.toml: it cannot be read") == 1


@ACTING_FROM
def test_a_watched_tree_has_them_too(project: Project, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project.set_in(place, NUM_BUILDERS="3", LOGLEVEL="LOUD")
    monkeypatch.chdir(project.folder)
    notes: list[str] = []
    with with_compilers(project.environ, None, notes.append) as inside:
        assert inside["NUM_BUILDERS"] == "3"
    assert len(notes) == 1 and "LOGLEVEL" in notes[0]


@ACTING_FROM
def test_aitemplates_profiles_are_merged_and_flushed(project: Project, place: str) -> None:
    project.set_in(place, CACHE_DIR=str(project.folder / "cache"))
    shared = project.folder / "cache/cuda.db"
    assert project.run(*program("a=1", "b=2"))[0] == "1 2"
    assert rows(shared) == [("a", "1"), ("b", "2")]
    project.set_in(place, CACHE_DIR=str(project.folder / "cache"), FLUSH_PROFILE_CACHE="1")
    assert project.run(*program("b", "c=3"))[0] == "- 3"
    assert rows(shared) == [("c", "3")]


@ACTING_FROM
def test_aitemplates_compiles_are_timed_with_their_steps(project: Project, place: str) -> None:
    (project.folder / "model.cu").write_text("m\n")
    project.set_in(place, AIT_TIME_COMPILATION="1")
    said, told = project.run("sh", "-c", "echo $AIT_TIME_COMPILATION; nvcc -c -o model.obj model.cu")
    assert said == "0", "AITemplate would need GNU time, and leave objcopy out"
    (line,) = [line for line in told.splitlines() if line.startswith("exit_status=0 elapsed_sec=")]
    assert "nvcc" in line and "model.cu" in line and "peak_rss_kib=" in line
    _, log = project.user.buildd("log", "last")
    assert line in log
    assert "exit_status" not in project.run("sh", "-c", "rm model.obj; nvcc -c -o model.obj model.cu")[1], "a hit"


@ACTING_FROM
def test_the_log_of_a_run_names_the_traces_of_torch(project: Project, place: str) -> None:
    folder = project.folder / "traces"
    folder.mkdir()
    (folder / "dedicated_log_torch_trace_old.log").write_text("")
    os.utime(folder / "dedicated_log_torch_trace_old.log", (1, 1))
    project.set_in(place, TORCH_TRACE=str(folder))
    project.run("sh", "-c", "touch $TORCH_TRACE/dedicated_log_torch_trace_rank_0_x.log $TORCH_TRACE/other")
    _, log = project.user.buildd("log", "last")
    assert log.count("TORCH_TRACE: ") == 1 and f"{folder}/dedicated_log_torch_trace_rank_0_x.log" in log


@ACTING_FROM
def test_recompile_runs_the_models_compiles_again_and_no_profilers(project: Project, place: str) -> None:
    for name in ("model", "profiler"):
        (project.folder / f"{name}.cu").write_text(f"{name} of {place}\n")
    command = (sys.executable, "-c", MAKES)
    assert "0 hits, 2 misses" in project.run(*command)[1]
    assert "2 hits, 0 misses" in project.run(*command)[1]
    project.set_in(place, AIT_RECOMPILE="1")
    assert "1 hit, 1 miss (asked 1)" in project.run(*command)[1]
    project.set_in(place, AIT_RECOMPILE="0")
    assert "2 hits, 0 misses" in project.run(*command)[1]
