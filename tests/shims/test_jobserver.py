"""The jobserver of `buildd run -j`: make, ninja and what they call share its jobs, and tokens of the dead come back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.client.budget_share import share
from buildd.errors import BuilddError
from buildd.shims.jobserver import Jobserver, find_builders
from protocol.messages import BuildId, Mode, RequestId, RequestStatus
from tests.support.foreign_project import ForeignProject
from tests.support.paths import ROOT
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import User
from tests.support.waiting import until

JOBS = 3
HOLDER = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR); os.read(f, int(sys.argv[2])); print(flush=True); input()"
# Runs until three of its kind have run at the same time, and writes down how many did: as it begins, and as it sees
# that many. When the third one counts, the others may have seen it already and be gone.
RECIPE = """#!/bin/sh
mkdir running/$1
ls running | wc -l >> seen
while [ ! -e reached ]; do
  count=$(ls running | wc -l)
  [ $count -lt 3 ] || { echo $count >> most; touch reached; }
done
rmdir running/$1
"""


@pytest.fixture
def server() -> Iterator[Jobserver]:
    with short_folder() as folder, Jobserver(folder, JOBS) as server:
        yield server
        assert server.path.exists()
    assert not server.path.exists()


def hold(server: Jobserver, count: int) -> subprocess.Popen[str]:
    """A process that has tokens."""
    command = [sys.executable, "-I", "-S", "-c", HOLDER, str(server.path), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "\n"
    return process


def test_tokens_of_a_client_that_was_killed_come_back(server: Jobserver) -> None:
    with hold(server, 2) as client:
        assert server.available == 0
        client.kill()
    assert server.restore() in (0, 2)
    until(lambda: server.restore() or server.available, "they are back")
    assert server.available == 2
    assert server.restore() == 0 and server.available == 2


def test_tokens_of_the_living_stay_theirs() -> None:
    with short_folder() as folder, Jobserver(folder, 2) as server, hold(server, 1) as client:
        assert [server.restore() for _ in range(3)] == [0, 0, 0]
        assert server.available == 0
        client.communicate("\n")


def test_some_of_several_lost_ones_come_back_while_others_live(server: Jobserver) -> None:
    """One thread lives: it can have no more than one of the two."""
    with hold(server, 2) as client:
        server.restore()
        until(lambda: server.restore() or server.available, "one is back")
        assert server.available == 1
        client.communicate("\n")


def test_a_place_that_no_flag_can_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    with pytest.raises(BuilddError):
        Jobserver(tmp_path / "a b", 2)


# ---------------------------------------------------------------- real tools


class Project:
    """Recipes that need three at once to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "running").mkdir(parents=True)
        (folder / "recipe").write_text(RECIPE)
        (folder / "recipe").chmod(0o700)

    def seen(self) -> list[int]:
        """How many ran as each began."""
        return [int(line) for line in (self.folder / "seen").read_text().split()]

    def most(self) -> int:
        """The most that anybody saw at once."""
        return max(*self.seen(), *(int(line) for line in (self.folder / "most").read_text().split()))


def run(
    user: User, folder: Path, *command: str, path: str = "", asked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command under `buildd run -j`, or without -j where the budget has as many places."""
    options = ("-j", str(JOBS)) if asked else ()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "run", *options, "--", *command],
        cwd=folder,
        env={**user.environ, "BUILDD_JOBS": str(JOBS), **({"PATH": path} if path else {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done


needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make (Debian: make)")


@needs_gcc
@needs_make
def test_nested_makes_share_the_jobs(user: User) -> None:
    project = Project(user.folder / "nested")
    inner = "all: a b c d\na b c d:\n\t@./recipe $(NAME)$@\n.PHONY: a b c d all\n"
    (project.folder / "inner.mk").write_text(inner)
    (project.folder / "Makefile").write_text(
        "all: x y z\nx y z:\n\t@$(MAKE) --no-print-directory -f inner.mk NAME=$@\n.PHONY: x y z all\n"
    )
    said = run(user, project.folder, "make").stdout
    assert "jobserver" not in said and "-j" not in said
    assert len(project.seen()) == 12 and project.most() == JOBS


def newer_make(user: User) -> Path:
    """A folder with a make that takes a fifo: what ninja may be told depends on the makes that it could call. It only
    says what it was told."""
    tools = user.folder / "tools"
    tools.mkdir(exist_ok=True)
    script = '#!/bin/sh\n[ "$1" != --version ] || exec echo \'GNU Make 4.4.1\'\necho "$MAKEFLAGS|$*"\n'
    for name in ("make", "gmake"):
        (tools / name).write_text(script)
        (tools / name).chmod(0o700)
    return tools


@needs_gcc
@pytest.mark.parametrize("asked", [True, False])
def test_two_ninjas_share_the_jobs(user: User, asked: bool) -> None:
    ninja = Path(pytest.importorskip("ninja").BIN_DIR)
    project = Project(user.folder / f"ninja-{asked}")
    tools = newer_make(user)
    rule = "rule own\n  command = ./recipe $out\n"
    for name in ("a", "b"):
        builds = "".join(f"build {name}{n}: own\n" for n in range(8))
        (project.folder / f"{name}.ninja").write_text(f"builddir = {name}\n{rule}{builds}")
    script = "ninja -f a.ninja & ninja -f b.ninja && wait"
    said = run(
        user, project.folder, "sh", "-c", script, path=f"{ninja}:{tools}:{user.environ['PATH']}", asked=asked
    ).stdout
    assert said.count("Jobserver mode detected") == 2 and "warning" not in said
    # Each has one job without a token.
    assert len(project.seen()) == 16 and 3 <= project.most() <= JOBS + 1


@needs_gcc
@needs_make
def test_a_make_that_ninja_calls_understands_what_it_is_told(user: User) -> None:
    ninja = Path(pytest.importorskip("ninja").BIN_DIR)
    project = Project(user.folder / "both")
    (project.folder / "Makefile").write_text("all: a b c\na b c:\n\t@./recipe $(NAME)$@\n.PHONY: a b c all\n")
    rules = f"rule make\n  command = make NAME=$out\nrule path\n  command = {shutil.which('make')} NAME=$out\n"
    (project.folder / "build.ninja").write_text(f"{rules}build m: make\nbuild p: path\n")
    said = run(user, project.folder, "ninja", path=f"{ninja}:{user.environ['PATH']}").stdout
    assert "warning" not in said and len(project.seen()) == 6


@needs_gcc
@needs_make
def test_a_width_of_ones_own_is_kept(user: User) -> None:
    project = Project(user.folder / "wide")
    (project.folder / "Makefile").write_text("all: a b c d\na b c d:\n\t@./recipe $@\n.PHONY: a b c d all\n")
    said = run(user, project.folder, "make", "-j4").stdout
    assert "warning" not in said
    assert len(project.seen()) == 4 and project.most() >= 3
    for name in ("reached", "seen", "most"):
        (project.folder / name).unlink()
    path = shutil.which("make")
    assert path is not None
    said = run(user, project.folder, path).stdout  # by its path: not ours, and told in words
    assert "warning" not in said and project.most() == JOBS


@needs_gcc
def test_without_a_number_of_jobs_make_does_as_it_was_asked(user: User) -> None:
    path = f"{newer_make(user)}:{user.environ['PATH']}"

    def told(*words: str) -> tuple[bool, str]:
        flags, _, arguments = (
            run(user, user.folder, "make", *words, path=path, asked=False).stdout.strip().partition("|")
        )
        return "--jobserver-auth=fifo:" in flags, arguments

    assert told("all") == (False, "all"), "not every makefile can bear two jobs at once"
    assert told("-j8", "all") == (False, "-j8 all")
    assert told("-j", "8", "all") == (False, "-j 8 all")
    assert told("-k", "-j", "all") == (True, "-k all"), "as many as there are: those of the budget"
    assert told("all", "--jobs") == (True, "all")


@needs_gcc
def test_without_a_number_of_jobs_an_old_make_is_left_alone(user: User) -> None:
    tools = user.folder / "old"
    tools.mkdir()
    (tools / "make").write_text("#!/bin/sh\necho 'GNU Make 4.3'\n")
    (tools / "make").chmod(0o700)
    said = run(
        user, user.folder, "sh", "-c", "echo [$BUILDD_JOBSERVER]", path=f"{tools}:{user.environ['PATH']}", asked=False
    )
    assert said.stdout == "[]\n"


@needs_gcc
def test_builders_are_not_found_among_shims(user: User) -> None:
    found = find_builders(user.environ)
    script = 'echo "$PATH" && echo "$BUILDD_JOBSERVER" && command -v make || true'
    lines = run(user, user.folder, "sh", "-c", script).stdout.splitlines()
    assert lines[1].removeprefix("pipe:").startswith(str(user.run_folder))
    assert find_builders({**user.environ, "PATH": lines[0]}) == found
    assert os.listdir(user.run_folder) and not list(user.run_folder.rglob("jobs-*"))


@needs_gcc
def test_a_build_that_is_ended_leaves_no_fifo(user: User) -> None:
    command = [sys.executable, "-P", "-m", "buildd", "run", "-j", "2", "--", "sh", "-c", "echo && exec cat"]
    with subprocess.Popen(
        command, cwd=ROOT, env=user.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "\n"
        assert list(user.run_folder.rglob("jobs-*"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert not list(user.run_folder.rglob("jobs-*"))


# ---------------------------------------------------------------- the daemon's processors


def test_a_jobserver_grows_and_shrinks(server: Jobserver) -> None:
    assert server.resize(5, 0) == 5 and server.available == 4
    assert server.resize(2, 1) == 2 and server.available == 1
    with hold(server, 1) as client:
        assert server.resize(1, 0.2) == 2, "a token that a tool holds stays with it"
        assert [server.restore() for _ in range(3)] == [0, 0, 0]
        client.kill()
    until(lambda: server.restore() or server.available, "it is back")
    assert server.resize(0, 5) == 1 and server.available == 0
    assert server.restore() == 0 and server.available == 0, "what was taken away is not lost"


def test_a_token_is_taken_away_from_tools_that_never_leave_one_free() -> None:
    """Two tools that take a token again as soon as they have given it back."""
    busy = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR)\nwhile True: os.write(f, os.read(f, 1))"
    with short_folder() as folder, Jobserver(folder, 2) as server:
        tools = [subprocess.Popen([sys.executable, "-I", "-S", "-c", busy, str(server.path)]) for _ in range(2)]
        try:
            assert server.resize(1, 60) == 1 and server.available == 0
            assert server.resize(2, 0) == 2
        finally:
            for tool in tools:
                tool.kill()
                tool.wait()


def test_the_share_is_asked_for_while_a_build_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buildd.shims.jobserver._LOOK_S", 0.05)
    shares = iter([1, 3])
    with short_folder() as folder, Jobserver(folder, 2, lambda: next(shares, 4)) as server:
        until(lambda: server.available == 3, "the last share is there")


@pytest.mark.parametrize(
    ("cpus", "others", "expected"),
    [
        (8, {}, 8),
        (8, {"a": [1]}, 7),
        (8, {"a": [1, 1, 1], "b": [2]}, 3),
        (8, {"a": [8]}, 4),
        (8, {"a": [4], "b": [4]}, 2),
        (2, {"a": [2]}, 1),
        (1, {"a": [1], "b": [1]}, 1),
        (8, {"a": [0, 0]}, 8),
        (2, {"a": [9]}, 1),
    ],
)
def test_a_build_has_what_others_leave_and_never_less_than_its_part(
    cpus: int, others: dict[str, list[int]], expected: int
) -> None:
    requests = [
        RequestStatus(
            request_id=RequestId("r"), build_id=BuildId(build), mode=Mode.COMPILE, project="/", jobs_running=jobs
        )
        for build, each in others.items()
        for jobs in each
    ]
    assert share(cpus, requests) == expected


def tokens(user: User) -> int:
    """Free tokens of the one build of this user that has a jobserver."""
    (fifo,) = user.run_folder.rglob("jobs-*")
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    finally:
        os.close(descriptor)


@needs_gcc
def test_a_build_makes_room_for_another_builds_jobs(tmp_path: Path) -> None:
    """The number is the daemon's, whatever this process's variables say, and follows what runs for others."""
    with short_folder() as folder:
        user = User(folder, {"BUILDD_JOBS": "4"})
        toolkit = make_toolkit(tmp_path)
        try:
            assert user.buildd("up")[0] == 0
            other = ForeignProject(user, user.folder / "other", str(toolkit.parent))
            environ = {**user.environ, "BUILDD_JOBS": "9", "PATH": f"{newer_make(user)}:{user.environ['PATH']}"}
            command = [sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", "echo && exec cat"]
            with subprocess.Popen(
                command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None and process.stdout.readline() == "\n"
                assert tokens(user) == 3
                for name in "ab":
                    other.write(f"{name}.cu", f"//! wait go\nint {name};\n")
                running = [other.start("nvcc", "-c", f"{name}.cu", "-o", f"{name}.o") for name in "ab"]
                until(lambda: tokens(user) == 1, "two processors are another build's")
                other.write("go", "")
                for each in running:
                    each.communicate(timeout=60)
                until(lambda: tokens(user) == 3, "they are back")
                process.communicate("", timeout=60)
        finally:
            assert user.end() == []
