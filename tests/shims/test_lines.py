"""A line more in a header: a hit where nothing in the header can see its line, and a compile where something may."""

from __future__ import annotations

import pytest

from protocol.client import Client
from tests.support.edited_texts import HEADER, assert_as_plain, edit, without_answers
from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no g++ (Debian: apt install g++)")
COMPILE = ("g++", "-c", "a.cpp", "-o", "a.o", "-MD")
BLIND = {
    "macros": ("#define CHECK(x) (x + __LINE__)\n", ""),
    "a function": ("", "int g() { return f(); }\n"),
    "a macro of macros": ("#define ONE 1\n#define TWO ONE + ONE\n", "inline int g() { return TWO; }\n"),
    "a feature test": (
        "#if __has_builtin(__builtin_LINE)\n#define HAS 1\n#endif\n",
        "inline int g() { return HAS; }\n",
    ),
    "a word made of others": ("#define MAKE(x) made_##x\n", "inline int MAKE(it)() { return 1; }\nint g();\n"),
}
"""Definitions in another header, and the text of the one that moves."""
SEEING = {
    "its line": ("", "inline int g() { return __LINE__; }\n"),
    "a macro": ("#define CHECK(x) (x + __LINE__)\n", "inline int g() { return CHECK(1); }\n"),
    "a macro of a macro": (
        "#define CHECK(x) OTHER(x)\n#define OTHER(x) (x + __LINE__)\n",
        "inline int g() { return CHECK(1); }\n",
    ),
    "a macro in two lines": ("#define CHECK \\\n  __LI\\\nNE__\n", "inline int g() { return CHECK; }\n"),
    "a macro behind a comment": (
        "/* x */ # /* y */ define /* z */ CHECK __LINE__\n",
        "inline int g() { return CHECK; }\n",
    ),
    "a macro with a digraph": ("%:define CHECK __LINE__\n", "inline int g() { return CHECK; }\n"),
    "a pasted word": (
        "#define CHECK(x) CHECK_##x()\n#define CHECK_LOUD() __LINE__\n",
        "inline int g() { return CHECK(LOUD); }\n",
    ),
    "a word pasted of arguments": ("#define MAKE(x, y) x##y\n", "inline int g() { return MAKE(__LI, NE__); }\n"),
    "a condition": (
        "#define LONG (__LINE__ > 4)\n",
        "inline int g() {\n#if LONG\nreturn 1;\n#else\nreturn 2;\n#endif\n}\n",
    ),
    "an argument": (
        "inline int caller(int line = __builtin_LINE()) { return line; }\n",
        "inline int g() { return caller(); }\n",
    ),
    "an assertion": ("#include <cassert>\n", "inline int g(int x = 0) { assert(x == 1); return x; }\n"),
    "a raw string": ("", 'inline char const *g() { return R"(\n)"; }\n'),
}


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    name = "".join(letter for letter in request.node.name if letter.isalnum() or letter == "_")
    made = ForeignProject(user, user.folder / name)
    made.write("a.cpp", f'#include "macros.h"\n#include "a.h"\nint {name} = sizeof g();\n')
    return made


@pytest.mark.parametrize("name", BLIND)
def test_a_line_more_is_a_hit_where_nothing_sees_it(foreign: ForeignProject, name: str) -> None:
    macros, text = BLIND[name]
    foreign.write("macros.h", macros)
    foreign.write("a.h", f"{HEADER}{text or 'int g();'}\n")
    foreign.good(*COMPILE)
    edit(foreign, "a.h", "// a comment\n", "// a comment\n\n/* and\n more */\n")
    edit(foreign, "a.h", "#pragma once\n", "// first\n#pragma once\n")
    foreign.good(*COMPILE)
    assert foreign.counts() == (1, 1)
    assert_as_plain(foreign, *COMPILE)
    foreign.good(*COMPILE)
    assert foreign.counts() == (2, 1)
    edit(foreign, "a.h", "return 1", "return 2")
    foreign.good(*COMPILE)
    assert foreign.counts() == (2, 2)
    assert_as_plain(foreign, *COMPILE)


def is_asked(foreign: ForeignProject) -> bool:
    """Whether the compile asks the daemon."""
    with Client.connect(environ=foreign.user.environ) as client:
        before = client.status().counters["requests"]
        foreign.good(*COMPILE)
        return client.status().counters["requests"] > before


def until_answered(foreign: ForeignProject) -> None:
    """Have the shim know the answer: files that are too young to trust make none."""
    until(lambda: not is_asked(foreign), "an answer")


def test_the_shim_answers_if_nothing_sees_the_line(foreign: ForeignProject) -> None:
    foreign.write("macros.h", SEEING["a macro"][0] + "inline int sees() { return CHECK(1); }\n")
    foreign.write("a.h", f"{HEADER}int g();\n")
    until_answered(foreign)
    for _ in range(2):
        edit(foreign, "a.h", "// a comment\n", "// a comment\n// and more\n")
        assert not is_asked(foreign)
    assert foreign.counts()[1] == 1
    assert_as_plain(foreign, *COMPILE)
    for number, (name, old, new) in enumerate((("a.h", "int g", "long g"), ("macros.h", "inline", "\ninline"))):
        edit(foreign, name, old, new)
        foreign.good(*COMPILE)
        assert foreign.counts()[1] == number + 2
        assert_as_plain(foreign, *COMPILE)


@pytest.mark.parametrize("name", SEEING)
def test_a_line_more_compiles_where_something_may_see_it(foreign: ForeignProject, name: str) -> None:
    macros, text = SEEING[name]
    foreign.write("macros.h", macros)
    foreign.write("a.h", HEADER + text)
    foreign.good(*COMPILE)
    if name == "a raw string":
        edit(foreign, "a.h", 'R"(\n)', 'R"(\n\n)')
    else:
        edit(foreign, "a.h", "// a comment\n", "// a comment\n\n\n")
    foreign.good(*COMPILE)
    assert foreign.counts() == (0, 2)
    assert_as_plain(foreign, *COMPILE)


def test_macros_of_the_command_line_count(foreign: ForeignProject) -> None:
    command = (*COMPILE, "-DCHECK=OTHER")
    foreign.write("macros.h", "#define OTHER __LINE__\n")
    foreign.write("a.h", HEADER + "inline int g() { return CHECK; }\n")
    foreign.good(*command)
    edit(foreign, "a.h", "// a comment\n", "// a comment\n\n")
    foreign.good(*command)
    assert foreign.counts() == (0, 2)
    assert_as_plain(foreign, *command)


def test_a_source_with_a_line_more_compiles(foreign: ForeignProject) -> None:
    foreign.write("macros.h", "")
    foreign.write("a.h", HEADER + "int g();\n")
    foreign.good(*COMPILE)
    edit(foreign, "a.cpp", '#include "a.h"\n', '#include "a.h"\n\n')
    foreign.good(*COMPILE)
    assert foreign.counts() == (0, 2)


@pytest.mark.cuda
def test_a_line_more_in_a_header_compiles_no_kernel_again_whatever_ptxas_said(user: User) -> None:
    foreign = ForeignProject.with_nvcc(user, "kernels with lines")
    foreign.write("macros.h", "#define CHECK(x) (x + __LINE__)\n")
    foreign.write("a.h", f"{HEADER}int g();\n")
    foreign.write("a.cu", '#include "macros.h"\n#include "a.h"\n__global__ void k(int *x) { *x = CHECK(1); }\n')
    command = ("nvcc", "-c", "-arch=sm_80", "-Xptxas=-v", "a.cu", "-o", "a.o")
    said = foreign.good(*command).stderr
    for _ in range(2):
        edit(foreign, "a.h", "// a comment\n", "// a comment\n\n")
        without_answers(foreign)
        assert foreign.good(*command).stderr == said and b"registers" in said
    assert foreign.counts() == (2, 1)
