"""g++ that compiles and links in one step, and its precompiled headers: what counts, beside the plain compiler."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.compilers import processor
from codegen.compilers.command_parser import PassThrough
from codegen.plan import Answer, Knowledge, ProbesNeeded
from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.states import until_answered
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(
    not host_compiler() or not shutil.which("g++"), reason="no g++ (Debian: apt install g++)"
)
MAIN = 'extern "C" int one();\nint main() { return one(); }\n'


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        user.buildd("up")
        yield user
        assert user.end() == []


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / request.node.name)
    made.write("main.cpp", f"{MAIN}// {request.node.name}\n")
    return made


def library(foreign: ForeignProject, folder: str, value: int, *, shared: bool = False) -> Path:
    """A library `one` whose function returns `value`, with the plain compiler."""
    place = foreign.folder / folder
    place.mkdir(exist_ok=True)
    foreign.write(f"{folder}/one.c", f"int one(void) {{ return {value}; }}\n")
    if shared:
        assert foreign.plainly("gcc", "-shared", "-fPIC", "one.c", "-o", "libone.so", cwd=place).returncode == 0
        return place / "libone.so"
    assert foreign.plainly("gcc", "-c", "one.c", "-o", "one.o", cwd=place).returncode == 0
    (place / "libone.a").unlink(missing_ok=True)
    subprocess.run(["ar", "rcsD", "libone.a", "one.o"], cwd=place, check=True)
    return place / "libone.a"


def check(foreign: ForeignProject, *command: str, output: str = "made") -> bytes:
    """Through us and plainly: the same bytes, which are returned."""
    made = foreign.folder / output
    made.unlink(missing_ok=True)
    foreign.good(*command, "-o", output)
    ours, mode = made.read_bytes(), stat.S_IMODE(made.stat().st_mode)
    made.unlink()
    assert foreign.plainly(*command, "-o", output).returncode == 0
    assert made.read_bytes() == ours and stat.S_IMODE(made.stat().st_mode) == mode, command
    return ours


def returns(foreign: ForeignProject, output: str = "made") -> int:
    return subprocess.run([foreign.folder / output], check=False).returncode


def test_a_program_in_one_step_is_found_again_and_runs(foreign: ForeignProject) -> None:
    library(foreign, "lib", 3)
    command = ("g++", "-O1", "main.cpp", "-Llib", "-lone")
    check(foreign, *command)
    assert foreign.counts() == (0, 1) and returns(foreign) == 3
    check(foreign, *command)
    assert foreign.counts() == (1, 1) and returns(foreign) == 3
    # Known to the shim alone by now, with another mask.
    until_answered(foreign, " ".join((*command, "-o", "made")))
    (foreign.folder / "made").unlink()
    foreign.call(*command, "-o", "made", umask=0o077)
    assert stat.S_IMODE((foreign.folder / "made").stat().st_mode) == 0o700
    assert foreign.counts()[1] == 1 and foreign.figures().passed_through == {}


def test_what_the_linker_reads_and_finds_first_counts(foreign: ForeignProject) -> None:
    command = ("g++", "main.cpp", "-Lnear", "-L.", "-Lfar", "-lone", "-Wl,-rpath,$ORIGIN")
    library(foreign, "far", 1)
    (foreign.folder / "near").mkdir()
    check(foreign, *command)
    check(foreign, *command)
    assert foreign.counts() == (1, 1) and returns(foreign) == 1
    library(foreign, "far", 2)
    check(foreign, *command)
    assert returns(foreign) == 2, "a library that changed"
    library(foreign, "far", 4, shared=True)
    assert b"libone.so" in check(foreign, *command), "a shared one beside it comes first"
    shutil.copy(library(foreign, "other", 5), foreign.folder / "libone.a")
    check(foreign, *command)
    assert returns(foreign) == 5, "one in an earlier folder, which is where the output is, too"
    foreign.write("near/libone.so", f"INPUT({foreign.folder}/third/libone.a)\n")
    library(foreign, "third", 6)
    check(foreign, *command)
    assert returns(foreign) == 6, "a script that names another"
    library(foreign, "third", 7)
    check(foreign, *command)
    assert returns(foreign) == 7, "what the script names changed"
    hits, misses = foreign.counts()
    check(foreign, *command)
    assert foreign.counts() == (hits + 1, misses) == (2, 6)


def test_a_link_that_fails_says_what_the_tool_says(foreign: ForeignProject) -> None:
    command = ("g++", "main.cpp", "-o", "made", "-L.", "-lnone")
    for _ in range(2):
        ours, plain = foreign.call(*command), foreign.plainly(*command)
        assert ours.returncode == plain.returncode == 1
        assert b"cannot find -lnone" in ours.stderr and not (foreign.folder / "made").exists()


# ---------------------------------------------------------------- precompiled headers


def header(foreign: ForeignProject, text: str = "") -> None:
    foreign.write("pch.h", f"// {foreign.folder}\n#include <cstddef>\n#define ONE 1\n{text}")
    text = "int one() { return ONE + (int)std::size_t(0); }\n"
    foreign.write("use.cpp", f"// {foreign.folder}\n{text}")


PRECOMPILE = ("g++", "-x", "c++-header", "pch.h", "-o", "pch.h.gch")
USE = ("g++", "-c", "use.cpp", "-include", "pch.h", "-Winvalid-pch", "-o", "use.o")


def test_a_precompiled_header_is_found_again_and_is_an_input(foreign: ForeignProject) -> None:
    header(foreign)
    foreign.good(*PRECOMPILE)
    gch = foreign.folder / "pch.h.gch"
    content = gch.read_bytes()
    foreign.good(*USE)
    gch.unlink()
    foreign.good(*PRECOMPILE)
    assert gch.read_bytes() == content
    foreign.good(*USE)
    assert foreign.counts() == (2, 2)
    # The compiler takes it as it is, whatever became of the header: only what it holds counts.
    header(foreign, "#define TWO 2\n")
    foreign.good(*USE)
    assert foreign.counts() == (3, 2)
    foreign.good(*PRECOMPILE)
    foreign.good(*USE)
    assert foreign.counts() == (3, 4)
    gch.unlink()
    foreign.good(*USE)
    assert foreign.counts() == (3, 5), "without it the header itself is read"
    foreign.good(*USE)
    assert foreign.counts() == (4, 5)


def test_a_precompiled_header_that_comes_later_is_noticed(foreign: ForeignProject) -> None:
    header(foreign)
    for _ in range(2):
        foreign.good(*USE)
    assert foreign.counts() == (1, 1)
    # What is in it is not what is in the header: the compiler takes it.
    header(foreign, "#undef ONE\n#define ONE 7\n")
    assert foreign.plainly(*PRECOMPILE).returncode == 0
    header(foreign)
    for _ in range(2):
        foreign.good(*USE)
        ours = (foreign.folder / "use.o").read_bytes()
        assert foreign.plainly(*USE).returncode == 0
        assert (foreign.folder / "use.o").read_bytes() == ours
    assert foreign.counts() == (1, 3), "nobody knows what it was made of: nothing of it is kept"


def test_a_clock_hidden_in_a_precompiled_header_is_not_kept(foreign: ForeignProject) -> None:
    header(foreign, "#define WHEN __TIME__\n")
    foreign.write("use.cpp", "char const *when() { return WHEN; }\n")
    for _ in range(2):
        foreign.good(*PRECOMPILE)
        foreign.good(*USE)
    assert foreign.counts() == (0, 4)
    # Made while the clock stood still it can be kept; what is made with it while the clock runs cannot.
    still = {**foreign.environ, "SOURCE_DATE_EPOCH": "1"}
    for _ in range(2):
        foreign.call(*PRECOMPILE, environ=still)
        foreign.good(*USE)
    assert foreign.counts() == (1, 7)


def test_a_folder_of_precompiled_headers_is_not_kept_and_one_that_does_not_fit_is(foreign: ForeignProject) -> None:
    header(foreign)
    (foreign.folder / "pch.h.gch").mkdir()
    foreign.good(*PRECOMPILE[:-1], "pch.h.gch/c++")
    for _ in range(2):
        foreign.good(*USE)
    assert foreign.counts() == (0, 3)
    shutil.rmtree(foreign.folder / "pch.h.gch")
    foreign.good(*PRECOMPILE)
    for _ in range(2):
        check(foreign, *USE[:-2], "-DX", "-O2", output="use.o")
    assert foreign.counts() == (2, 4), "it was made through us: what it holds is known, whether it was used or not"


def test_a_header_that_comes_before_a_precompiled_one_is_noticed(foreign: ForeignProject) -> None:
    header(foreign)
    (foreign.folder / "late").mkdir()
    shutil.move(foreign.folder / "pch.h", foreign.folder / "late" / "pch.h")
    (foreign.folder / "early").mkdir()
    foreign.good("g++", "-x", "c++-header", "late/pch.h", "-o", "late/pch.h.gch")
    use = ("g++", "-c", "use.cpp", "-Iearly", "-Ilate", "-include", "pch.h")
    before = check(foreign, *use, output="use.o")
    foreign.write("early/pch.h", "#include <cstddef>\n#define ONE 4\n")
    assert check(foreign, *use, output="use.o") != before
    assert foreign.counts() == (0, 3)


# ---------------------------------------------------------------- this processor


def test_a_compile_for_this_processor_is_found_by_its_daemon_only(foreign: ForeignProject) -> None:
    command = ("g++", "-O2", "-march=native", "-c", "main.cpp")
    known = set(foreign.user.store.glob("answers/*"))
    for _ in range(3):
        check(foreign, *command, output="main.o")
    if len(processor.processors()) == 1:
        assert foreign.counts() == (2, 1) and foreign.figures().passed_through == {}
    assert set(foreign.user.store.glob("answers/*[0-9a-f]")) <= known


def test_what_this_processor_is_called_decides() -> None:
    if len(processor.processors()) != 1:
        pytest.skip("the processor's cores differ")
    knowledge = Knowledge()
    with pytest.raises(ProbesNeeded) as needed:
        processor.meaning(knowledge, "/usr/bin/g++", (), ("-march=native",))
    (probe,) = needed.value.probes
    assert os.fsencode(processor.processors()[0]) in probe.payload
    knowledge.learn(probe, Answer(status=0, stdout="", stderr=' /x/cc1plus "-march=znver5"\n'))
    assert "znver5" in processor.meaning(knowledge, "/usr/bin/g++", (), ("-march=native",))
    knowledge.learn(probe, Answer(status=0, stdout="", stderr="cc1plus -march=native\n"))
    with pytest.raises(PassThrough):
        processor.meaning(knowledge, "/usr/bin/g++", (), ("-march=native",))
