"""Compilers that are called by their path, below the library of `buildd run`: real programs, gcc and daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.shims.interposition import LIBRARY, with_library, without_library
from codegen.foreign.command_line import TOOLS, family_of
from tests.support.foreign_project import ForeignProject
from tests.support.paths import ROOT
from tests.support.user import User

GCC = shutil.which("gcc") or ""
pytestmark = pytest.mark.skipif(not GCC, reason="no gcc (Debian: apt install gcc)")
BY_HAND = ROOT / "tests" / "data" / "calls_by_path.c"
FUNCTIONS = (
    *("execv", "execve", "execvp", "execvpe", "execl", "execlp", "execle"),
    *("posix_spawn", "posix_spawnp", "vfork", "system", "syscall"),
)


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / re.sub(r"\W+", "-", request.node.name))
    made.write("a.c", f'char const *name = "{request.node.name}";\n')
    return made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls gcc by one of libc's functions."""
    place = tmp_path_factory.mktemp("program") / "calls"
    subprocess.run([GCC, "-O1", "-o", str(place), str(BY_HAND)], check=True)
    return place


def in_usual_path(project: ForeignProject) -> dict[str, str]:
    """Under `buildd run`, in a build that has set PATH itself."""
    return {**project.environ, "PATH": project.plain["PATH"]}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_way_to_call_a_program(project: ForeignProject, program: Path, function: str) -> None:
    environ = in_usual_path(project)
    for _ in range(2):
        done = project.call(str(program), function, GCC, environ=environ)
        assert done.returncode == 0, done.stderr
    assert project.counts() == (1, 1)
    assert (project.folder / "a.o").exists()


@pytest.mark.parametrize("function", ["execv", "vfork", "posix_spawnp"])
def test_a_program_that_is_linked_statically(project: ForeignProject, tmp_path: Path, function: str) -> None:
    static = tmp_path / "calls"
    subprocess.run([GCC, "-static", "-o", str(static), str(BY_HAND)], check=True)
    environ = in_usual_path(project)
    plain = project.plainly(str(static), function, GCC)
    assert plain.returncode == 0, plain.stderr
    content = (project.folder / "a.o").read_bytes()
    for _ in range(2):
        (project.folder / "a.o").unlink()
        done = project.call(str(static), function, GCC, environ=environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
        assert (project.folder / "a.o").read_bytes() == content
    assert project.counts() == (1, 1)
    done = project.call(str(static), function, GCC, environ={**environ, "BUILDD_DISABLE": "1"})
    assert done.returncode == 0 and project.counts() == (1, 1)


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", f"{GCC} -c a.c -o a.o"),
        ("sh", "-c", "PATH=/usr/bin:/bin; gcc -c a.c -o a.o; true"),
        ("bash", "-c", f"exec {GCC} -c a.c -o a.o"),
        (sys.executable, "-c", f"import subprocess; subprocess.run(['{GCC}', '-c', 'a.c', '-o', 'a.o'], check=True)"),
        (sys.executable, "-c", f"import os; os.execv('{GCC}', ['gcc', '-c', 'a.c', '-o', 'a.o'])"),
        ("make", "-f", "by_path.mk"),
    ],
    ids=["sh", "path", "bash", "subprocess", "exec", "make"],
)
def test_from_the_programs_that_builds_are_made_of(project: ForeignProject, command: tuple[str, ...]) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]}")
    project.write("by_path.mk", f"a.o: a.c\n\t{GCC} -c a.c -o a.o\n")
    project.good(*command)
    (project.folder / "a.o").unlink()
    project.good(*command)
    assert project.counts() == (1, 1)


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ninja")), reason="no cmake, ninja")
def test_a_tree_that_cmake_configured_without_us(project: ForeignProject) -> None:
    project.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nadd_library(p STATIC a.c)\n")
    assert project.plainly("cmake", "-B", "build", "-G", "Ninja", "-S", ".").returncode == 0
    project.good("cmake", "--build", "build")
    project.good("ninja", "-C", "build", "-t", "clean")
    project.good("cmake", "--build", "build")
    assert project.counts() == (1, 1)
    # What cmake has written down is as it was: plain ninja finds nothing to do.
    assert b"no work to do" in project.plainly("ninja", "-C", "build").stdout


@pytest.mark.parametrize(
    "change",
    [{"LD_PRELOAD": None}, {"BUILDD_DISABLE": "1"}, {"BUILDD_INTERPOSE": "0"}],
    ids=["no preload", "disabled", "switched off"],
)
def test_a_build_can_do_without(user: User, project: ForeignProject, change: dict[str, str | None]) -> None:
    if "BUILDD_INTERPOSE" in change:
        user.environ["BUILDD_INTERPOSE"] = "0"
        try:
            project.search("")
        finally:
            del user.environ["BUILDD_INTERPOSE"]
        environ = in_usual_path(project)
    else:
        merged = {**in_usual_path(project), **change}
        environ = {name: value for name, value in merged.items() if value is not None}
    assert project.call(GCC, "-c", "a.c", "-o", "a.o", environ=environ).returncode == 0
    assert project.call("sh", "-c", f"{GCC} -c a.c -o a.o; true", environ=environ).returncode == 0
    assert project.counts() == (0, 0)


def test_programs_that_are_not_there_are_not_there(project: ForeignProject, program: Path) -> None:
    environ = in_usual_path(project)
    for function in FUNCTIONS:
        done = project.call(str(program), function, "/nowhere/gcc", environ=environ)
        plain = project.call(str(program), function, "/nowhere/gcc", environ=project.plain)
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr), function
    assert plain.returncode != 0


def test_a_script_without_its_first_line_runs_as_libc_runs_it(project: ForeignProject, program: Path) -> None:
    script = project.write("gcc", 'echo "$@" > a.o\n')
    script.chmod(0o755)
    environ = {**in_usual_path(project), "PATH": f"{project.folder}:/usr/bin:/bin", "BUILDD_DISABLE": "1"}
    for function in ("execvp", "execvpe", "execlp", "posix_spawnp"):
        (project.folder / "a.o").unlink(missing_ok=True)
        plain = project.call(str(program), function, "gcc", environ={**project.plain, "PATH": environ["PATH"]})
        (project.folder / "a.o").unlink(missing_ok=True)
        done = project.call(str(program), function, "gcc", environ=environ)
        assert done.returncode == plain.returncode, function


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls a program as it is told, and says how libc answered."""
    place = tmp_path_factory.mktemp("caller") / "calls"
    subprocess.run(
        [GCC, "-O1", "-pthread", "-o", str(place), str(ROOT / "tests" / "data" / "calls_with.c")], check=True
    )
    return place


def odd_programs(project: ForeignProject) -> None:
    """Programs under compilers' names that cannot run, or run otherwise than a compiler."""
    for place, text in {
        "first/ls": "#!/bin/sh\necho the one here\n",
        "here/gcc": "#!/bin/sh\necho ours here $*\n",
        "lost/gcc": "#!/nowhere/sh\n",
        "bare/gcc": "echo no first line $*\n",
        "foreign/gcc": "\x7fELF\x01 is no program\n",
    }.items():
        project.write(place, text).chmod(0o755)
    (project.folder / "dir" / "gcc").mkdir(parents=True)
    project.write("closed/gcc", "#!/bin/sh\n").chmod(0o644)


@pytest.mark.parametrize("function", ["execv", "execvp", "posix_spawn", "posix_spawnp"])
@pytest.mark.parametrize("program", ["dir/gcc", "lost/gcc", "bare/gcc", "foreign/gcc", "closed/gcc", "here/gcc/"])
def test_calls_that_fail_fail_as_without_us(project: ForeignProject, caller: Path, function: str, program: str) -> None:
    odd_programs(project)
    words = (function, ".", "1000000", "1", str(project.folder / program), "gcc")
    done, plain = (project.call(str(caller), *words, environ=each) for each in (in_usual_path(project), project.plain))
    assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    assert plain.stdout


@pytest.mark.parametrize("function", ["execvp", "posix_spawnp"])
@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        (":/usr/bin:/bin", "first", "ls"),
        ("/nowhere::/usr/bin:/bin", "first", "ls"),
        (".:/usr/bin:/bin", "first", "ls"),
        ("", "first", "ls"),
        (".:/usr/bin", "here", "gcc"),
        ("{folder}/lost:{folder}/here", ".", "gcc"),
        ("{folder}/dir:{folder}/here", ".", "gcc"),
        ("{folder}/dir", ".", "gcc"),
    ],
    ids=["empty", "empty later", "dot", "none", "relative", "no interpreter", "a folder", "only a folder"],
)
def test_a_name_is_searched_as_without_us(
    project: ForeignProject, caller: Path, function: str, path: str, folder: str, name: str
) -> None:
    odd_programs(project)
    path = path.format(folder=project.folder)
    words = (function, folder, "1000000", "1", name, name)
    found = [
        subprocess.run(
            [caller, *words], cwd=project.folder, env={**each, "PATH": path}, capture_output=True, timeout=60
        )
        for each in (project.environ, project.plain)
    ]
    assert (found[0].stdout, found[0].stderr) == (found[1].stdout, found[1].stderr) and found[1].stdout


def test_a_program_keeps_the_name_that_it_is_called_by(project: ForeignProject, caller: Path) -> None:
    words = ("execv", ".", "1000000", "1", GCC, "g++")
    done, plain = (project.call(str(caller), *words, environ=each) for each in (in_usual_path(project), project.plain))
    assert done.stderr == plain.stderr and b"COLLECT_GCC=g++" in plain.stderr


@pytest.mark.parametrize("function", ["execv", "posix_spawn"])
def test_a_long_command_needs_no_stack(project: ForeignProject, caller: Path, function: str) -> None:
    words = (function, ".", "65536", "60000", GCC, "gcc")
    done = project.call(str(caller), *words, environ=in_usual_path(project))
    assert (done.returncode, done.stdout) == (0, b"Success, 0\n")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="not root, or no setpriv")
def test_another_user_who_cannot_read_it_does_without(project: ForeignProject) -> None:
    words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "sh -c 'id -u'")
    done = project.call(*words, environ=in_usual_path(project), cwd=Path("/"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"65534\n", b"")


def test_a_program_with_a_sanitizer_is_loaded_without_it(project: ForeignProject) -> None:
    """It ends at once if its runtime is not the first library."""
    project.write("checked.c", '#include <stdlib.h>\n#include <stdio.h>\nint main(void)\n{ puts(getenv("HOME")); }\n')
    if project.plainly(GCC, "-fsanitize=address", "checked.c", "-o", "checked").returncode != 0:
        pytest.skip("no AddressSanitizer")
    assert project.plainly(str(project.folder / "checked")).returncode == 0
    done = project.call("sh", "-c", "./checked; true", environ=in_usual_path(project))
    assert done.stdout.decode().strip() == project.environ["HOME"] and not done.stderr


def test_libraries_of_the_users_stay_and_stay_first(user: User, project: ForeignProject) -> None:
    own = project.folder / "own.so"
    project.write("own.c", "int ours;\n")
    assert project.plainly(GCC, "-shared", "-fPIC", "own.c", "-o", str(own)).returncode == 0
    programs = project.shims
    found = with_library({"LD_PRELOAD": f"{own}:{programs / LIBRARY}"}, programs)
    assert found.split() == [str(own), str(programs / LIBRARY)]
    assert without_library({"LD_PRELOAD": found}) == str(own)
    environ = {**in_usual_path(project), "LD_PRELOAD": found}
    shown = project.call("sh", "-c", f'{GCC} -c a.c -o a.o; echo "$LD_PRELOAD"', environ=environ)
    assert shown.stdout.decode().strip() == found
    # A compile with libraries preloaded runs as without us.
    assert project.figures().passed_through == {"environment": 1}


def test_without_the_store_compilers_run(project: ForeignProject) -> None:
    programs = project.shims
    elsewhere = project.folder / "gone"
    elsewhere.mkdir()
    shutil.copy(programs / LIBRARY, elsewhere / LIBRARY)
    environ = {**in_usual_path(project), "LD_PRELOAD": str(elsewhere / LIBRARY)}
    done = project.call("sh", "-c", f"{GCC} -c a.c -o a.o; true", environ=environ)
    assert done.returncode == 0 and not done.stderr and (project.folder / "a.o").exists()
    assert project.counts() == (0, 0)


@pytest.mark.parametrize(
    "name", ["gcc-12", "x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc-14", "x86_64-conda-linux-gnu-cc", "clang-15.0"]
)
def test_names_with_a_version_or_a_target(project: ForeignProject, name: str) -> None:
    (project.folder / name).symlink_to(GCC)
    project.good("sh", "-c", f"./{name} -c a.c -o a.o; true")
    project.good("sh", "-c", f"./{name} -c a.c -o a.o; true")
    assert project.counts() == (1, 1)


@pytest.mark.parametrize("name", ["gcc-ar", "gcc-ar-12", "clang-format-15", "c++filt", "nvcc_wrapper", "g++-"])
def test_other_names_are_other_programs(project: ForeignProject, name: str) -> None:
    project.write(name, '#!/bin/sh\necho "$0 $*"\n').chmod(0o755)
    assert family_of(name) is None
    assert project.good("sh", "-c", f"./{name} -c a.c -o a.o; true").stdout == f"./{name} -c a.c -o a.o\n".encode()
    assert project.counts() == (0, 0) and not project.figures().passed_through


def test_the_command_of_buildd_run_itself(user: User, project: ForeignProject) -> None:
    for words in ("0 hits, 1 miss", "1 hit, 0 misses"):
        command = [sys.executable, "-P", "-m", "buildd", "run", "--", GCC, "-c", "a.c", "-o", "a.o"]
        done = subprocess.run(command, cwd=project.folder, env=user.environ, capture_output=True, text=True, check=True)
        assert words in done.stderr


def test_the_library_knows_the_tools_that_have_shims() -> None:
    source = (ROOT / "buildd" / "shims" / "program_name.c").read_text(encoding="utf-8")
    found = re.search(r"plain\[\] = \{(.*?)\};", source, re.DOTALL)
    assert found and set(re.findall(r'"(.*?)"', found[1])) == set(TOOLS)
