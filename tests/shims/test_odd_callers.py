"""Programs that call compilers in odd ways under `buildd run`: each does what it does without us."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.shims.interposition import LAUNCHER, LIBRARY
from tests.support.foreign_project import ForeignProject, kept_up
from tests.support.paths import ROOT
from tests.support.serving import short_folder
from tests.support.user import User

GCC = shutil.which("gcc") or ""
pytestmark = pytest.mark.skipif(not GCC, reason="no gcc (Debian: apt install gcc)")
CALLS = ROOT / "tests" / "data" / "calls_oddly.c"
COMPILE = (GCC, "-c", "a.c", "-o", "a.o")
SMALL = 'void begin(void) { %s }\n__asm__(".globl _start\\n_start: call begin\\n");\n'
ENDS = '__asm__ volatile("syscall" :: "a"(60), "D"(0));'
SHOWS = r"""
static int call(int number, int a, const void *b, int c)
{
	int result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return result;
}
void __attribute__((used)) begin(char **at)
{
	while (*++at)
		;
	while (*++at) {
		int length = 0;
		while ((*at)[length])
			length++;
		call(4, 1, *at, length);
		call(4, 1, "\n", 1);
	}
	call(1, 0, 0, 0);
}
__asm__(".globl _start\n_start: mov %esp, %eax\n push %eax\n call begin\n");
"""
"""A 32-bit program that prints its environment, without a libc, which is not installed everywhere."""
BARE = ("-O1", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie", "-fno-stack-protector")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / re.sub(r"\W+", "-", request.node.name))
    made.write("a.c", f'char const *name = "{request.node.name}";\nint main(void) {{ int unused; return 0; }}\n')
    os.utime(made.folder / "a.c", (1_700_000_000, 1_700_000_000))
    return made


def made(folder: Path, *options: str, source: Path = CALLS) -> str:
    """Path of a program; the test is skipped where it cannot be linked."""
    place = folder / "program"
    done = subprocess.run([GCC, "-O1", "-o", str(place), str(source), *options], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"gcc {' '.join(options)} cannot link here: {done.stderr[-200:]}")
    return str(place)


def test_a_static_program_is_left_alone_and_what_it_calls_is_not(project: ForeignProject, tmp_path: Path) -> None:
    program = made(tmp_path, "-static")
    done = project.good(program, "plain", *COMPILE)
    assert not done.stderr and (project.folder / "a.o").exists() and project.counts() == (0, 1)
    project.good(program, "plain", "/bin/sh", "-c", f"{' '.join(COMPILE)}; true")
    assert project.counts() == (1, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_setuid_program_runs_without_the_library_and_says_nothing(project: ForeignProject, tmp_path: Path) -> None:
    program = made(tmp_path)
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("this file system takes no setuid programs")
    done = project.good(program, "plain", "/bin/sh", "-c", "id -un; echo [$LD_PRELOAD]")
    plain = project.plainly(program, "plain", "/bin/sh", "-c", "id -un; echo [$LD_PRELOAD]")
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr) and b"[]" in done.stdout
    done = project.good("/bin/sh", "-c", f"{program} plain /bin/true; {' '.join(COMPILE)}; true")
    assert done.stderr == b"" and project.counts() == (0, 1)


def test_a_32_bit_program_is_loaded_without_the_library(project: ForeignProject, tmp_path: Path) -> None:
    """The loader of the other architecture would print a line each time."""
    program = made(tmp_path, "-m32", *BARE, source=project.write("shows.c", SHOWS))
    done, plain = (
        project.call("/bin/sh", "-c", f"{program}; true", environ=each) for each in (project.environ, project.plain)
    )
    if plain.stderr or not plain.stdout:
        pytest.skip("the kernel runs no 32-bit programs")
    shown = done.stdout.decode().splitlines()
    assert not done.stderr and f"HOME={project.plain['HOME']}" in shown
    assert not any(LIBRARY in line for line in shown)


def test_ten_thousand_forks_leave_nothing_behind(project: ForeignProject, tmp_path: Path) -> None:
    program = made(tmp_path)
    place = tmp_path / "small"
    small = project.write("small.c", SMALL % ENDS)
    done = subprocess.run([GCC, *BARE, "-o", str(place), str(small)], capture_output=True)
    if done.returncode != 0 or subprocess.run([place]).returncode != 0:
        pytest.skip("no small program here")
    count = "ls /proc/self/fd | wc -l"
    done = project.good("/bin/sh", "-c", f"{count}; {program} 10000 {place} && {count}; {' '.join(COMPILE)}; true")
    before, after = done.stdout.split()
    assert before == after and not done.stderr and project.counts() == (0, 1)


def test_many_compiles_at_once_are_one(project: ForeignProject, tmp_path: Path) -> None:
    program = made(tmp_path)
    assert project.call(program, "100", *COMPILE).returncode == 0
    assert project.counts() == (99, 1)


@pytest.mark.parametrize("closed", ["0", "1", "2", "12", "012", "all"])
@pytest.mark.parametrize("warning", ["-Wall", "-Wall -Werror"])
def test_a_caller_without_descriptors(project: ForeignProject, tmp_path: Path, closed: str, warning: str) -> None:
    """What the shim opens must not take the place of a stream: the compiler's warnings would go there.

    gcc itself has this fault: without a standard error its warnings become part of the assembler's text.
    """
    command = f"{GCC} {warning} -MD -c a.c -o a.o"
    right = project.plainly("sh", "-c", command).returncode, content(project.folder / "a.o")
    if closed == "all":
        command = f"{made(tmp_path)} closed {command}"
    else:
        command = f"exec {' '.join(f'{each}>&-' for each in closed)}; {command}"
    for _ in range(3):
        for name in ("a.o", "a.d"):
            (project.folder / name).unlink(missing_ok=True)
        done = project.call("sh", "-c", command)
        assert (done.returncode, content(project.folder / "a.o")) == right
    assert project.counts() == ((2, 1) if right[0] == 0 else (0, 3))


def content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def test_a_cleared_environment_belongs_to_the_run(project: ForeignProject, tmp_path: Path) -> None:
    done = project.good(made(tmp_path), "cleared", *COMPILE)
    assert not done.stderr and (project.folder / "a.o").exists() and project.counts() == (0, 1)
    done = project.good("sh", "-c", f"exec env -i {' '.join(COMPILE)}")
    assert not done.stderr and project.counts() == (1, 1)
    done = project.good("sh", "-c", f"exec env -i BUILDD_DISABLE=1 {' '.join(COMPILE)}")
    assert not done.stderr and project.counts() == (1, 1)


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[User]:
    """A second daemon with a store of its own."""
    with short_folder() as folder:
        user = User(folder)
        try:
            with kept_up(user):
                yield user
        finally:
            assert user.end() == []


def test_wrappers_of_two_daemons_in_one_build(project: ForeignProject, other: User) -> None:
    """A tree that was configured for one daemon is built below another: the outer build's daemon compiles, and once."""
    theirs = ForeignProject(other, other.folder / "theirs")
    own, launcher, words = project.shims / LAUNCHER, theirs.shims / LAUNCHER, " ".join(COMPILE)
    commands = (
        *(f"{launcher} {words}", f"{own} {launcher} {words}", f"{launcher} {own} {words}", f"{own} {own} {words}"),
        f"PATH={theirs.shims}:{project.shims}:$PATH; gcc {words.partition(' ')[2]}",
        f"{theirs.shims}/gcc {words.partition(' ')[2]}",
    )
    both = {**project.environ, "LD_PRELOAD": f"{theirs.shims / LIBRARY} {project.shims / LIBRARY}"}
    for environ in (project.environ, both):
        for command in commands:
            (project.folder / "a.o").unlink(missing_ok=True)
            done = project.call("sh", "-c", f"{command}; exit $?", environ=environ)
            assert (done.returncode, done.stderr) == (0, b"") and (project.folder / "a.o").exists(), command
    assert project.counts() == (2 * len(commands) - 1, 1) and theirs.counts() == (0, 0)


def test_a_run_below_a_run_of_another_daemon(project: ForeignProject, other: User) -> None:
    theirs = ForeignProject(other, other.folder / "inner")
    inner = {**project.environ, **{name: other.environ[name] for name in ("BUILDD_DIR", "BUILDD_RUNTIME_DIR")}}
    command = (sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", f"{' '.join(COMPILE)}; true")
    for expected in ("0 hits, 1 miss", "1 hit, 0 misses"):
        done = project.call(*command, environ={k: v for k, v in inner.items() if k != "BUILDD_BUILD_ID"})
        assert expected in done.stderr.decode(), done.stderr
    assert project.counts() == (0, 0) and theirs.counts() == (0, 0)


@pytest.mark.parametrize("name", [".one", "..two"])
def test_debug_information_names_the_folder_as_the_caller_does(project: ForeignProject, name: str) -> None:
    """gcc takes its working folder's name from PWD: a home is often a link, and builds lie in hidden folders of it."""
    project.write(f"real/{name}/a.c", "int a;\n")
    (project.folder / "link").symlink_to("real")
    folder = project.folder / "link" / name
    objects = []
    for environ in (project.plain, project.environ):
        done = project.call("gcc", "-g", "-c", "a.c", "-o", "a.o", environ={**environ, "PWD": str(folder)}, cwd=folder)
        assert done.returncode == 0, done.stderr
        objects.append((folder / "a.o").read_bytes())
    assert objects[0] == objects[1] and os.fsencode(folder) in objects[0]
    assert project.counts() == (0, 1)
