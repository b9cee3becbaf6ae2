"""Odd commands, with and without the shims: the same status, words and files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")

FILES = {
    "good.cpp": '#include "a.h"\nint good() { return A; }\n',
    "bad.cpp": '#include "a.h"\nint bad() { return A }\n',
    "lost.cpp": '#include "a.h"\n#include "lost.h"\nint lost;\n',
    "a.h": "#define A 1\n",
    "flags": "-O1 -DX",
    "nested": "@flags",
}
COMMANDS = (
    "g++ -c good.cpp",
    "g++ -c good.cpp -o good.o -MD -MF -",
    "g++ -c good.cpp -o good.o -MMD -MF-",
    "g++ -c good.cpp -o good.o -MD -MF ''",
    "g++ -c good.cpp -o good.o -MD -MF /dev/null",
    "g++ -c good.cpp -o good.o -MD -MF none/good.d",
    "g++ -c good.cpp -o good.o -MD -MF .",
    "g++ -c good.cpp -o -",
    "g++ -c good.cpp -o-",
    "g++ -c good.cpp -o ''",
    "g++ -c good.cpp -o",
    "g++ -c good.cpp -o none/good.o",
    "g++ -c good.cpp -o .",
    "g++ -c good.cpp -o /dev/null",
    "g++ -c good.cpp -o good.cpp",
    "g++ -S good.cpp -o -",
    "g++ -c bad.cpp -o bad.o -MD",
    "g++ -c bad.cpp -o bad.o -MMD -MP -MT target -MF bad.deps",
    "g++ -c lost.cpp -o lost.o -MD",
    "g++ -c lost.cpp -o lost.o -MD -MG",
    "touch old.d; g++ -c bad.cpp -o bad.o -MD -MF old.d",
    "touch bad.o; g++ -c bad.cpp -o bad.o",
    "g++ -c none.cpp -o none.o -MD",
    "g++ @flags -c good.cpp",
    "g++ @nested -c good.cpp",
    "g++ @none -c good.cpp",
    "echo 'int f;' | g++ -x c++ -c - -o in.o",
    "umask 777; g++ -c good.cpp -o good.o",
    "umask 577; g++ -c good.cpp -o good.o -MD",
    "umask 277; g++ -c good.cpp -o good.o",
    "umask 077; g++ -c good.cpp -o good.o -MD",
    "ulimit -f 0; g++ -c good.cpp -o good.o",
    "ulimit -f 0; g++ -c good.cpp -o good.o -MD",
    "g++ -c good.cpp good.cpp",
    "g++ -c",
    "g++",
    "g++ --version",
    "g++ -MM lost.cpp",
    "echo '#error no' >> good.cpp; g++ -MM -MT it good.cpp",
    "echo '#error no' >> good.cpp; g++ -MM good.cpp -o good.d",
)
CLANG = next((name for name in ("clang++", "clang++-19", "clang++-15", "clang++-14") if shutil.which(name)), "")
OF_CLANG = (
    "g++ -c good.cpp -o good.o -MD",
    "g++ -c ./good.cpp -I. -o good.o -MMD -MP",
    "g++ -c $PWD/../odd/good.cpp -I../odd -include ../odd/a.h -o good.o -MMD -MP",
    "g++ -c bad.cpp -o bad.o -MD",
    "g++ -c bad.cpp -o bad.o -MMD -MP -MT target -MF bad.deps",
    "g++ -c good.cpp -Wall -Werror -DA=2 -o good.o -MD",
    "g++ -c lost.cpp -o lost.o -MD",
    "g++ -c none.cpp -o none.o -MD",
    "g++ -c good.cpp --such-option -o good.o -MD",
)


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


def outcome(foreign: ForeignProject, command: str, environ: dict[str, str]) -> tuple[object, ...]:
    """What a command comes to in the project's folder, made anew: status, words, and files with their modes."""
    for path in foreign.folder.iterdir():
        path.unlink()
    for name, text in FILES.items():
        path = foreign.write(name, text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=foreign.folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    found = {path.name: (path.stat().st_mode, _content(path)) for path in sorted(foreign.folder.iterdir())}
    return done.returncode, done.stdout, done.stderr, found


def _content(path: Path) -> bytes:
    path.chmod(0o600)
    content = path.read_bytes()
    if path.suffix in (".d", ".deps"):  # gcc fills lines and clang leaves one empty, buildd writes a line for each file
        return b"\n".join(b" ".join(rule.split()) for rule in content.replace(b"\\\n", b" ").splitlines() if rule)
    return content


@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_command_does_what_it_does_without_us(user: User, command: str, tmp_path: Path) -> None:
    """Three times: after a miss comes a hit of the daemon's, and then perhaps one of the shim's."""
    folder = user.folder / "odd"
    shutil.rmtree(folder, ignore_errors=True)
    foreign = ForeignProject(user, folder)
    right = outcome(foreign, command, foreign.plain)
    for _ in range(3):
        assert outcome(foreign, command, foreign.environ) == right


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("gcc -c m.c -o out", "int main("),
        ("gcc -c m.c -o out", 'asm("no such instruction");'),
        ("gcc -c m.c -o out", 'int main(void) { asm("no such instruction"); }'),
        ("gcc m.c -o out", "int main("),
        ("gcc m.c -o out", 'asm("no such instruction");'),
        ("gcc m.c -o out", "int f(void);\nint main(void) { return f(); }"),
        *(
            (f"{command} {to}", text)
            for command in ("gcc -S", "gcc -c -pipe", "gcc -MM", "gcc -x c-header -c", "clang -c -fno-integrated-as")
            for to in (("m.c -o out", "m.c -MF out") if "-MM" in command else ("m.c -o out",))
            for text in ('#include "gone.h"', "#error no", *(() if "-MM" in command else ("int main(",)))
        ),
        ("gcc -S -fno-such-option m.c -o out", ""),
        ("gcc -S -O-x m.c -o out", ""),
        ("gcc -S none.c -o out", ""),
        ("gcc m.c -pipe -o out", "int main("),
        ("clang -c m.c -o m.o -MD -MF out", '#include "gone.h"'),
        ("clang -c m.c -o m.o -MD -MF out", "#error no"),
        ("clang -c -std=c0 m.c -o m.o -MD -MF out", ""),
        ("hipcc --offload-arch=gfx90a -x hip -c m.c -o m.o -MD -MF out", '#include "gone.h"'),
        ("clang -c m.c -o out", "int main("),
        ("clang -c m.c -o out", '#include "gone.h"'),
        ("clang -c -std=c0 m.c -o out", ""),
        ("clang -c -fno-such-option m.c -o out", ""),
    ],
)
def test_what_a_failure_leaves_of_an_older_output(user: User, command: str, text: str, tmp_path: Path) -> None:
    if not shutil.which(command.split()[0]):
        pytest.skip(f"no {command.split()[0]}")
    foreign = ForeignProject(user, tmp_path / "older")
    foreign.write("m.c", text)
    left = []
    for environ in (foreign.plain, foreign.environ):
        foreign.write("out", "older")
        assert foreign.call(*command.split(), environ=environ).returncode == 1
        out = foreign.folder / "out"
        left.append(out.read_text().split() if out.exists() else None)
    assert left[0] == left[1]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("gcc -c m.c", 'asm(".warning \\"careful\\"");'),
        ("gcc -c m.c", 'asm("no such instruction");'),
        ("gcc -g m.c -o out", "int f(void);\nint main(void) { return f(); }"),
        ("gcc m.c -o out -Wl,-M", "int main(void) { return 0; }"),
        ("clang -fno-integrated-as -c m.c", 'asm("no such instruction");'),
    ],
)
def test_messages_name_no_folder_of_ours(user: User, command: str, text: str, tmp_path: Path) -> None:
    """The assembler and the linker name temporary files."""
    if not shutil.which(command.split()[0]):
        pytest.skip(f"no {command.split()[0]}")
    foreign = ForeignProject(user, tmp_path / "words")
    foreign.write("m.c", text)
    said = []
    for environ in (foreign.plain, foreign.environ, foreign.environ):
        done = foreign.call(*command.split(), environ=environ)
        said.append(re.sub(rb"/tmp/(cc\w{6}|m-\w+)", b"/tmp/m", done.stdout + done.stderr))
    assert b"/tmp/m" in said[0]
    assert said == [said[0]] * 3


@pytest.mark.parametrize("command", ["gcc -c m.c -o out", "gcc m.c -o out"])
def test_an_output_that_is_there_already_has_the_mode_of_a_new_one(user: User, command: str, tmp_path: Path) -> None:
    foreign = ForeignProject(user, tmp_path / "modes")
    foreign.write("m.c", "int main(void) { return 0; }\n")
    made = foreign.folder / "out"
    assert foreign.plainly(*command.split()).returncode == 0
    right = made.stat().st_mode
    for mode in (right, 0o400, 0o700, 0o777):
        for _ in range(2):  # by the daemon, then by the shim
            made.chmod(mode)
            assert foreign.call(*command.split()).returncode == 0
            assert made.stat().st_mode == right


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: hipcc brings clang++-15)")
@pytest.mark.parametrize("command", OF_CLANG)
def test_clangs_depfiles_are_as_clang_writes_them(user: User, command: str, tmp_path: Path) -> None:
    test_an_odd_command_does_what_it_does_without_us(user, command.replace("g++", CLANG), tmp_path)


CCACHE = shutil.which("ccache", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(not CCACHE, reason="no ccache (scripts/setup bench)")
def test_a_ccache_that_is_called_gcc_finds_the_compiler(user: User, tmp_path: Path) -> None:
    """As Fedora and Debian put it first on PATH. Both caches find the next gcc there, and it is not asked."""
    masked = tmp_path / "masked"
    masked.mkdir()
    (masked / "gcc").symlink_to(str(CCACHE))
    user.environ["CCACHE_DIR"] = str(tmp_path / "cache")
    try:
        project = ForeignProject(user, tmp_path / "p", str(masked))
    finally:
        del user.environ["CCACHE_DIR"]
    project.write("a.c", "int a;\n")
    for command in (("gcc", "-c", "a.c"), ("sh", "-c", f"{masked}/gcc -c a.c; true")):
        project.good(*command)
        (project.folder / "a.o").unlink()
    assert project.counts() == (1, 1) and project.figures().passed_through == {}
    assert not (tmp_path / "cache").exists()
    # It is passed through where it cannot be cached, and finds the compiler, which is not the shim that runs it.
    project.good("gcc", "-c", "a.c", "-save-temps=obj")
    assert (project.folder / "a.o").exists() and (tmp_path / "cache").exists()


def test_a_passed_through_tool_has_the_users_path(user: User, tmp_path: Path) -> None:
    project = ForeignProject(user, tmp_path / "p", str(tmp_path / "tools"))
    (tmp_path / "tools").mkdir()
    project.write("../tools/nvcc", '#!/bin/sh\necho "$PATH"\n').chmod(0o755)
    project.search(str(tmp_path / "tools"))
    for path in (project.plain["PATH"], f":{project.plain['PATH']}", f"{project.plain['PATH']}:"):
        environ = {**project.environ, "PATH": path}
        first = project.shims
        done = project.call(f"{first}/nvcc", "--version", environ={**environ, "PATH": f"{first}:{path}"})
        assert done.stdout.decode() == f"{path}\n"
