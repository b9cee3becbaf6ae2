"""Messages of gcc and clang in a terminal look as without buildd, and what is kept of them has no colours."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import threading
from collections.abc import Mapping

import pytest

from buildd.builds import colours
from buildd.processes.launch import Launch, out_of_memory
from tests.support.foreign_project import DEADLINE_S, ForeignProject, declaration
from tests.support.user import User

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
pytestmark = pytest.mark.skipif(not COMPILERS, reason="no gcc and no clang")
WARNING = 'int f(void) { return "text"; }\n'
ERROR = "int f(void) { return missing; }\n"
SETTINGS = [
    {},
    {"TERM": "dumb"},
    {"GCC_COLORS": ""},
    {"GCC_COLORS": "error=01;35:warning=01;36"},
    {"CLICOLOR_FORCE": "1"},
]


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    return ForeignProject(user, user.folder / request.node.name.translate(str.maketrans("[]-=:; /", "________")))


def in_terminal(foreign: ForeignProject, environ: Mapping[str, str], *command: str) -> bytes:
    """What a command says to a terminal that is its standard error alone."""
    ours, theirs = pty.openpty()
    said = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 4096):
                said.extend(piece)
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=read)
    reader.start()
    try:
        subprocess.run(
            ["/usr/bin/env", *command],
            cwd=foreign.folder,
            env={"TERM": "xterm", **environ},
            stdin=subprocess.DEVNULL,
            stderr=theirs,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join(DEADLINE_S)
        os.close(ours)
    return bytes(said)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("setting", SETTINGS, ids=["usual", "dumb", "none", "chosen", "forced"])
def test_a_terminal_shows_what_it_shows_without_us(
    foreign: ForeignProject, compiler: str, setting: dict[str, str]
) -> None:
    for source, text in (("warning.c", WARNING), ("error.c", ERROR)):
        foreign.write(source, text + declaration(foreign.folder.name))
        command = (compiler, "-c", source)
        plain = in_terminal(foreign, {**foreign.plain, **setting}, *command)
        assert plain and in_terminal(foreign, {**foreign.environ, **setting}, *command) == plain
    figures = foreign.figures()
    assert (figures.hits, figures.failures, figures.passed_through) == (0, 1, {})


def test_where_no_terminal_is_there_are_no_colours(foreign: ForeignProject) -> None:
    """The one with colours and the one without have one key, and leave one object."""
    foreign.write("warning.c", WARNING + declaration(foreign.folder.name))
    command = ("gcc", "-g", "-c", "warning.c")
    plain = foreign.plainly(*command)
    made = (foreign.folder / "warning.o").read_bytes()
    assert b"\x1b[" in in_terminal(foreign, foreign.environ, *command)
    assert (foreign.folder / "warning.o").read_bytes() == made
    assert foreign.good(*command).stderr == plain.stderr and b"\x1b" not in plain.stderr
    assert foreign.counts() == (1, 1)
    kept = in_terminal(foreign, foreign.environ, *command)
    assert kept.replace(b"\r\n", b"\n") == plain.stderr, "what is kept has no colours"


def test_options_that_write_the_command_down_get_no_other() -> None:
    assert colours.may_ask(("-O2", "-g")) and not colours.may_ask(("-frecord-gcc-switches",))
    launch = Launch(argv=("gcc", "-c", "a.c"), cwd="/")
    assert colours.asking(launch, None) is launch
    asked = colours.asking(launch, "error=01")
    assert asked.argv == ("gcc", "-fdiagnostics-color=always", "-c", "a.c")
    assert asked.environment == (("GCC_COLORS", "error=01"),)


@pytest.mark.parametrize("mark", [b"", b"\x1b[01;31m\x1b[K", b"\x1b[0;1;31m"])
def test_a_coloured_error_is_no_lack_of_memory(mark: bytes) -> None:
    """Also where another job's process was killed for it meanwhile."""
    assert not out_of_memory(1, [b"a.c:1: " + mark + b"error: " + b"nothing of that name"], 1)
    assert out_of_memory(1, [b"nothing to say"], 1)
