"""Comments that change: direct hits, hits of the daemon, and the compiles that comments or lines can reach."""

from __future__ import annotations

import shutil

import pytest

from tests.support.edited_texts import HEADER, assert_as_plain, edit, without_answers
from tests.support.foreign_project import ForeignProject
from tests.support.objects import anonymous
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no g++ (Debian: apt install g++)")
SOURCE = '#include "a.h"\nint g() { return f(); } // its end\n'
COMPILE = ("g++", "-c", "a.cpp", "-o", "a.o")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    name = "".join(letter for letter in request.node.name if letter.isalnum() or letter == "_")
    made = ForeignProject(user, user.folder / name)
    made.write("a.h", HEADER)
    # Not what another test has compiled.
    made.write("a.cpp", f"{SOURCE}int {name};\n")
    return made


@pytest.mark.parametrize("answered", [True, False], ids=["shim", "daemon"])
@pytest.mark.parametrize(("name", "old"), [("a.h", "a comment"), ("a.cpp", "its end")])
def test_a_changed_comment_is_a_hit(foreign: ForeignProject, name: str, old: str, answered: bool) -> None:
    foreign.good(*COMPILE)
    for number in range(2):
        if not answered:
            without_answers(foreign)
        edit(foreign, name, old, f"{old}, and more of it")
        (foreign.folder / "a.o").unlink()
        foreign.good(*COMPILE)
        assert foreign.counts() == (number + 1, 1)
    assert_as_plain(foreign, *COMPILE)
    edit(foreign, "a.h", "return 1", "return 2")
    foreign.good(*COMPILE)
    assert foreign.counts() == (2, 2)
    assert_as_plain(foreign, *COMPILE)


@pytest.mark.parametrize(
    "command", [("gcc", "-std=gnu17"), ("gcc", "-std=c99"), ("g++", "-std=c++11"), ("g++", "-std=c++98"), ("clang",)]
)
def test_comments_of_c_and_of_older_c_plus_plus(foreign: ForeignProject, command: tuple[str, ...]) -> None:
    compiler, *flags = command
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} (Debian: apt install {compiler})")
    source = "a.cpp" if compiler == "g++" else "a.c"
    foreign.write(source, f"{SOURCE}int now_{compiler.replace('+', 'p')}{len(''.join(flags))};\n")
    compile = (compiler, *flags, "-c", source, "-o", "a.o")
    foreign.good(*compile)
    for number, (name, old) in enumerate((("a.h", "a comment"), (source, "its end"))):
        edit(foreign, name, old, f"{old}, it's more")
        foreign.good(*compile)
        assert foreign.counts() == (number + 1, 1)
    assert_as_plain(foreign, *compile)
    edit(foreign, "a.h", "return 1", "return 2")
    foreign.good(*compile)
    assert foreign.counts() == (2, 2)
    assert_as_plain(foreign, *compile)


@pytest.mark.parametrize("compiler", ["gcc", "g++", "clang"])
def test_a_comment_that_a_warning_of_indentation_looks_at_counts(foreign: ForeignProject, compiler: str) -> None:
    """One that is less indented than the next statement tells gcc that it is meant."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} (Debian: apt install {compiler})")
    text = "void f(int);\nvoid {name}(int x)\n{{\n    if (x)\n        f(1);\n{comment}\n        f(2);\n}}\n"
    compile = (compiler, "-Wall", "-c", "a.c", "-o", "a.o")
    for comment in ("/* x */", "        /* x */", "", "// x", "    // x\n    // y", "/* x */"):
        foreign.write("a.c", text.format(name=f"by_{compiler.replace('+', 'p')}", comment=comment))
        said = foreign.good(*compile).stderr
        assert said == foreign.plainly(*compile).stderr, comment


@pytest.mark.parametrize(
    ("standard", "text"),
    [
        ("c99", '#define R\n#define S(x) x\nchar const *s = S(R"(a")" // one";\n'),
        ("c11", "#define S(x) #x\nchar const *s = S(1'2 // one');\n"),
    ],
)
def test_what_is_a_comment_in_later_versions_alone_counts(foreign: ForeignProject, standard: str, text: str) -> None:
    compile = ("gcc", "-w", f"-std={standard}", "-c", "a.c", "-o", "a.o")
    foreign.write("b.h", text)
    foreign.write("a.c", f'#include "b.h"\nint in_{standard};\n')
    foreign.good(*compile)
    edit(foreign, "b.h", "// one", "// two")
    foreign.good(*compile)
    assert foreign.counts() == (0, 2)
    assert_as_plain(foreign, *compile)


def test_with_debug_information_lines_count_and_comments_do_not(foreign: ForeignProject) -> None:
    command = (*COMPILE, "-g")
    foreign.good(*command)
    edit(foreign, "a.h", "a comment", "another")
    foreign.good(*command)
    assert foreign.counts() == (1, 1)
    assert_as_plain(foreign, *command)
    edit(foreign, "a.h", "// another", "// another\n// line")
    foreign.good(*command)
    assert foreign.counts() == (1, 2)
    assert_as_plain(foreign, *command)


def test_a_message_quotes_the_comments_of_today(foreign: ForeignProject) -> None:
    command = (*COMPILE, "-Wall")
    edit(foreign, "a.cpp", "return f(); }", "int unused; return f(); }")
    foreign.good(*command)
    for name, old in (("a.cpp", "its end"), ("a.h", "a comment")):
        edit(foreign, name, old, "another")
        done = foreign.good(*command)
        assert done.stderr == foreign.plainly(*command).stderr and b"unused" in done.stderr
    assert b"another" in done.stderr
    assert foreign.counts() == (0, 3)


def test_a_comment_that_a_warning_reads_counts(foreign: ForeignProject) -> None:
    command = (*COMPILE, "-Wextra", "-Werror")
    text = "int h(int x) { switch (x) { case 1: x = 2; // fall through\n case 2: return x; } return 0; }\n"
    foreign.write("a.h", HEADER + text)
    foreign.good(*command)
    edit(foreign, "a.h", "fall through", "and on")
    done = foreign.call(*command)
    assert done.returncode == foreign.plainly(*command).returncode != 0
    assert b"this statement may fall through" in done.stderr


@pytest.mark.parametrize("flag", ["-fverbose-asm", "-finput-charset=ISO-8859-1", "-Wimplicit-fallthrough=1"])
def test_a_flag_that_lets_comments_through_makes_them_count(foreign: ForeignProject, flag: str) -> None:
    foreign.good(*COMPILE, flag)
    edit(foreign, "a.h", "a comment", "another")
    foreign.good(*COMPILE, flag)
    assert foreign.counts() == (0, 2)


def test_what_only_looks_like_a_comment_counts(foreign: ForeignProject) -> None:
    edit(foreign, "a.cpp", "int g()", 'char const *s = "// text";\nint g()')
    foreign.good(*COMPILE)
    edit(foreign, "a.cpp", "// text", "// more")
    foreign.good(*COMPILE)
    assert foreign.counts() == (0, 2)
    assert_as_plain(foreign, *COMPILE)
    foreign.write("a/b", "int in_b;\n")
    edit(foreign, "a.cpp", "int g()", "#include <a//b>\nint g()")
    foreign.good(*COMPILE, "-I.")
    edit(foreign, "a.cpp", "<a//b>", "<a/b>")
    foreign.good(*COMPILE, "-I.")
    assert foreign.counts() == (0, 4)


def test_a_response_file_has_no_comments(foreign: ForeignProject) -> None:
    for number, folder in enumerate(("one", "two")):
        foreign.write(f"inc/{folder}/b.h", f"int b[{number + 1}];\n")
    edit(foreign, "a.cpp", "int g()", "#include <b.h>\nint g()")
    command = (*COMPILE, "@flags")
    for number, folder in enumerate(("one", "two", "one")):
        foreign.write("flags", f"-Iinc//{folder}\n")
        foreign.good(*command)
        assert_as_plain(foreign, *command)
        assert foreign.counts() == ((0, number + 1) if number < 2 else (1, 2))


def test_a_precompiled_header_has_no_comments(foreign: ForeignProject) -> None:
    make = ("g++", "-x", "c++-header", "a.h", "-o", "a.h.gch")
    foreign.good(*make)
    edit(foreign, "a.h", "a comment", "another")
    foreign.good(*make)
    assert foreign.counts() == (0, 2)


@pytest.mark.cuda
def test_a_changed_comment_of_a_kernel_is_a_direct_hit(user: User) -> None:
    foreign = ForeignProject.with_nvcc(user, "a kernel with comments")
    foreign.write("a.h", HEADER)
    foreign.write("a.cu", '#include "a.h"\n__global__ void k(int *x) { *x = 1; } // its end\nint g() { return f(); }\n')
    command = ("nvcc", "-c", "-arch=sm_80", "a.cu", "-o", "a.o")
    foreign.good(*command)
    edit(foreign, "a.h", "a comment", "another")
    edit(foreign, "a.cu", "its end", "end")
    foreign.good(*command)
    without_answers(foreign)
    edit(foreign, "a.h", "another", "a third")
    foreign.good(*command)
    assert foreign.counts() == (2, 1)
    noisy = (*command, "-Xcompiler=-Wall")
    edit(foreign, "a.cu", "int g()", "static int unused() { return 1; }\nint g()")
    foreign.good(*noisy)
    edit(foreign, "a.cu", "unused() { return 1; }", "unused() { return 1; } // quoted")
    said = anonymous(foreign.good(*noisy).stderr.decode())
    assert said == anonymous(foreign.plainly(*noisy).stderr.decode()) and "unused" in said
