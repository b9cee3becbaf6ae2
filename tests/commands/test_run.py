"""`buildd run` on a terminal and in a pipe: what is seen of it, and what is not."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.terminal import Terminal
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import User
from tests.support.waiting import until

BUILDD = (sys.executable, "-P", "-m", "buildd")
SAME = "test $(readlink /proc/$$/fd/1) = $(readlink /proc/$$/fd/0) && echo direct || echo relayed"


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        made = User(folder)
        made.buildd("up")  # a terminal is told of a daemon that takes long to start
        try:
            yield made
        finally:
            assert made.end() == []


def on_terminal(user: User, *arguments: str, environ: dict[str, str] | None = None) -> Terminal:
    variables = {**user.environ, "TERM": "xterm", **(environ or {})}
    return Terminal(*BUILDD, *arguments, environ=variables, columns=100, cwd=str(user.folder))


def test_a_terminal_shows_what_runs_until_it_has_run(user: User, tmp_path_factory: pytest.TempPathFactory) -> None:
    toolkit = make_toolkit(tmp_path_factory.mktemp("toolkit"))
    fake = ForeignProject(user, user.folder / "project", str(toolkit.parent))
    fake.write("kernel.cu", "//! wait go\n")
    path = {"PATH": fake.plain["PATH"]}
    with on_terminal(user, "run", "--", "nvcc", "-c", str(fake.folder / "kernel.cu"), environ=path) as terminal:
        terminal.has_shown(b"buildd: kernel.cu ")
        (user.folder / "go").touch()
        assert terminal.ended() == 0
        assert b"buildd: 0 hits, 1 miss (new 1)\r\n" in terminal.output.rpartition(b"\x1b")[2]


@pytest.mark.parametrize(
    ("arguments", "environ", "how"),
    [
        (("run",), {}, b"relayed"),
        (("run",), {"NO_COLOR": "1"}, b"relayed"),
        (("run", "--quiet"), {}, b"direct"),
        (("run", "-q"), {}, b"direct"),
        (("run",), {"TERM": "dumb"}, b"direct"),
        (("run",), {"CI": "true"}, b"direct"),
        (("run",), {"BUILDD_PROGRESS": "0"}, b"direct"),
        (("run",), {"BUILDD_DISABLE": "1"}, b"direct"),
    ],
)
def test_who_wants_no_line_has_the_terminal_itself(
    user: User, arguments: tuple[str, ...], environ: dict[str, str], how: bytes
) -> None:
    with on_terminal(user, *arguments, "--", "sh", "-c", SAME, environ=environ) as terminal:
        assert terminal.ended() == 0
        assert how in terminal.output and b"\x1b" not in terminal.output


def test_a_shell_to_type_into_has_the_terminal_itself(user: User) -> None:
    with on_terminal(user, "run", "--", "sh") as terminal:
        terminal.type(f"{SAME}; exit 5\n".encode())
        assert terminal.ended() == 5
        assert b"direct\r\n" in terminal.output and b"relayed\r\n" not in terminal.output


def until_there(go: Path) -> str:
    return f"while [ ! -e {go} ]; do sleep 0.05; done"


def test_a_first_run_whose_shims_take_long_says_so_on_a_terminal_only() -> None:
    with short_folder() as folder:
        user = User(folder)
        try:
            assert user.buildd("up")[0] == 0
            slow = folder / "slow"
            slow.mkdir()
            (slow / "gcc").write_text(f'#!/bin/sh\n{until_there(folder / "go")}\nexec /usr/bin/gcc "$@"\n')
            (slow / "gcc").chmod(0o755)
            with on_terminal(user, "run", "--", "true", environ={"PATH": f"{slow}:/usr/bin:/bin"}) as terminal:
                terminal.has_shown(b"buildd is compiling its shims, which later commands use again")
                (folder / "go").touch()
                assert terminal.ended() == 0
            with on_terminal(user, "run", "--", "true", environ={"PATH": f"{slow}:/usr/bin:/bin"}) as terminal:
                assert terminal.ended() == 0 and b"buildd" not in terminal.output
        finally:
            assert user.end() == []


def test_a_daemon_that_takes_long_to_start_is_spoken_of_on_a_terminal_only() -> None:
    with short_folder() as folder:
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import os, sys, time\n"
            f"while 'serve' in sys.orig_argv and not os.path.exists({str(folder / 'go')!r}): time.sleep(0.05)\n"
        )
        user = User(folder)
        user.environ["PYTHONPATH"] = f"{site}:{user.environ['PYTHONPATH']}"
        words = "buildd is starting its daemon"
        try:
            with on_terminal(user, "up") as terminal:
                terminal.has_shown(words.encode())
                piped = user.start("up")
                (folder / "go").touch()
                assert terminal.ended() == 0 and words not in piped.communicate()[0]
            # Each of the two has started a daemon; the one that came second ends when it finds the first one's lock.
            until(lambda: sum("buildd serve" in each.command for each in user.processes()) == 1, "one daemon is left")
        finally:
            assert user.end() == []


def test_a_run_within_a_run_has_one_line(user: User) -> None:
    inner = " ".join(BUILDD)
    with on_terminal(
        user, "run", "--", "sh", "-c", f"{inner} run -- sh -c '{SAME}'; readlink /proc/self/fd/1"
    ) as shown:
        assert shown.ended() == 0
        assert b"relayed" in shown.output


def test_a_pipe_gets_the_output_and_the_summary(user: User, tmp_path: Path) -> None:
    status, output = user.buildd("run", "--", "sh", "-c", "echo said; exit 4")
    assert (status, output) == (4, "said\n"), "nothing was compiled, so there is nothing to say"


def test_a_shared_cache_whose_url_is_wrong_is_said_though_all_was_found(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    toolkit = make_toolkit(tmp_path_factory.mktemp("toolkit"))
    with short_folder() as folder:
        user = User(folder, {"BUILDD_TIER": "htp://foo"})
        fake = ForeignProject(user, folder / "project", str(toolkit.parent))
        fake.write("first.cu", "int first;\n")
        user.environ["PATH"] = fake.plain["PATH"]
        command = ("run", "--", "sh", "-c", f"cd {fake.folder}; nvcc -c first.cu")
        try:
            said = [user.buildd(*command)[1] for _ in range(2)]
            of_nothing = user.buildd("run", "--", "true")[1]
            said_without = user.buildd("run", "--quiet", *command[1:])[1]
        finally:
            assert user.end() == []
    assert "1 miss" in said[0] and "1 hit, 0 misses" in said[1]
    for each in (*said, of_nothing):
        assert each.count("the shared cache is not used: the tier's URL cannot be read: 'htp://foo'") == 1, each
    assert "htp" not in said_without


def test_a_status_that_is_watched_goes_on_until_ctrl_c(user: User) -> None:
    assert user.buildd("up")[0] == 0
    with on_terminal(user, "status", "--watch") as terminal:
        terminal.has_shown(b"nothing is being built")
        until(lambda: terminal.output.count(b"nothing is being built") > 2, "it is shown again")
        terminal.type(b"\x03")
        assert terminal.ended() == 0


def test_a_daemon_that_ends_in_between_takes_no_figures_along(tmp_path_factory: pytest.TempPathFactory) -> None:
    toolkit = make_toolkit(tmp_path_factory.mktemp("toolkit"))
    with short_folder() as folder:
        user = User(folder)
        fake = ForeignProject(user, folder / "project", str(toolkit.parent))
        fake.write("first.cu", "int first;\n")
        fake.write("second.cu", "int second;\n")
        user.environ["PATH"] = fake.plain["PATH"]
        inner = " ".join(BUILDD)
        script = f"cd {fake.folder}; nvcc -c first.cu; {inner} down; nvcc -c second.cu; {inner} down; nvcc -c first.cu"
        try:
            status, output = user.buildd("run", "--", "sh", "-c", script)
        finally:
            assert user.end() == []
        assert status == 0
        assert "buildd: 1 hit, 2 misses (new 2)" in output


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_compile_that_an_interrupted_command_leaves_is_spoken_of() -> None:
    """ninja's children are no members of its group: if it is killed, as Python's subprocess does, they go on."""
    source = (
        "constexpr long sum(long n) { long s = 0; while (n) s += n--; return s; }\nstatic_assert(sum(8000000) != 0);\n"
    )
    limits = "-std=c++20 -fconstexpr-loop-limit=1000000000 -fconstexpr-ops-limit=10000000000"
    with short_folder() as folder:
        user = User(folder)
        (folder / "slow.cpp").write_text(source)
        inner = " ".join(BUILDD)
        shown = f"{inner} status | grep -q '^  slow.cpp'"
        script = f"setsid g++ {limits} -c slow.cpp >out 2>&1 & until {shown}; do sleep 0.1; done; kill -INT $$"
        try:
            assert user.buildd("up")[0] == 0
            status, output = user.buildd("run", "--", "sh", "-c", f"cd {folder}; {script}")
        finally:
            user.end()
    assert status == -signal.SIGINT, "a shell's loop ends only for a program that the signal ended"
    assert "1 compile that COMMAND left goes on; `buildd status` shows them" in output
