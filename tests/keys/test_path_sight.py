"""An object whose sources only mention `__FILE__` is found from another checkout; one that uses it is not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
HEADER = """#pragma once
extern "C" int failed(unsigned long);
#define CHECK(x) ((x) ? 0 : failed(sizeof(__FILE__)))
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define GLUED(a, b) a##b
"""


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


def found(user: User, name: str, code: str, *flags: str, way: Path | None = None) -> bool:
    """Whether another checkout finds the object. It must be the plain compiler's in any case.

    Args:
        way: where a link in the checkout leads.
    """
    folder = re.sub(r"\W+", "_", name)
    for at, place in enumerate((user.folder / folder, user.folder / f"{folder}_with_a_longer_name")):
        made = ForeignProject(user, place)
        made.write("check.h", HEADER)
        made.write("CHECK.h", "// named as a macro is\n")
        if way is not None:
            (place / "way").symlink_to(way)
        made.write("a.cpp", f'#include "check.h"\n{code}')
        command = ("g++", "-O1", *flags, "-c", f"{place}/a.cpp", "-o")
        made.good(*command, "a.o")
        assert made.plainly(*command, "plain.o").returncode == 0
        assert (place / "a.o").read_bytes() == (place / "plain.o").read_bytes()
        if not at:
            assert made.counts() == (0, 1)
    return made.counts() == (1, 0)


@pytest.mark.parametrize(
    "code",
    [
        "int f(int x) { return x; }",
        "#define CHECK_GT(a, b) CHECK((a) > (b))\nint g(int x) { return x; }",
        "// __FILE__ and CHECK\nint h(int x) { return x; }",
        '#include "CHECK.h"\nint i(int x) { return x; }',
    ],
)
def test_a_macro_that_nobody_uses_ties_no_object_to_its_folder(user: User, code: str) -> None:
    assert found(user, f"unused {code}", code)


@pytest.mark.parametrize(
    "code",
    [
        "int f(int x) { return CHECK(x); }",
        "int f(int x) { return CHECK_EQ(x, 1); }",
        "#define MINE CHECK_EQ\nint f(int x) { return MINE(x, 2); }",
        "int f(int x) { return GLUED(CHE, CK)(x); }",
        "int f(int x) { return x + sizeof(GLUED(__FI, LE__)); }",
        "int f(int x) { return GLUED(CHECK, _EQ)(x, 3); }",
        "#if 0\n#else\nint f(int x) { return x + sizeof(__FILE__); }\n#endif",
        'int f(int x) { return x + sizeof(R"(\n#define NONE )" __FILE__); }',
        "#define CHE\\\nCK_IT CHECK\nint f(int x) { return CHECK\\\n_IT(x); }",
        "%:define DIGRAPH(x) CHECK(x)\nint f(int x) { return DIGRAPH(x); }",
        "/* a */ # /* b */ define COMMENTED(x) /* c */ CHECK(x)\nint f(int x) { return COMMENTED(x); }",
    ],
)
def test_a_use_of_the_path_ties_the_object_to_its_folder(user: User, code: str) -> None:
    """The object holds the length of the path alone, so no search of the object would find it."""
    assert not found(user, f"used {code}", code)


HASH = """#pragma once
template <class T> constexpr unsigned hash() {
  unsigned sum = 5;
  for (const char* p = __PRETTY_FUNCTION__; *p; ++p) sum = sum * 31 + *p;
  return sum;
}
template <class T> unsigned hashed(T) { return hash<T>(); }
"""


@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++")
@pytest.mark.parametrize("flag", ["-O1", "-ffile-prefix-map={}=/x"])
def test_clang_names_a_lambda_by_its_file_and_line(user: User, flag: str) -> None:
    """The result holds a number that was computed from the name, in a text that a header outside has."""
    outside = user.folder / f"hash{flag[:3]}"
    outside.mkdir()
    (outside / "hash.h").write_text(HASH)
    for place in (user.folder / f"lambda{flag[:3]}", user.folder / f"lambda_elsewhere{flag[:3]}"):
        made = ForeignProject(user, place)
        for above in ("", "// a line\n", "/* another\n */\n\n"):
            made.write("a.cpp", f'#include "hash.h"\n{above}auto l = [] {{}};\nunsigned f() {{ return hashed(l); }}\n')
            flags = (flag.format(place), "-std=c++17", f"-I{outside}")
            command = ("clang++", *flags, "-c", f"{place}/a.cpp", "-o")
            made.good(*command, "a.o")
            assert made.plainly(*command, "plain.o").returncode == 0
            assert (place / "a.o").read_bytes() == (place / "plain.o").read_bytes()


@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++")
def test_macros_that_could_write_any_name_tie_no_object_to_its_folder(user: User) -> None:
    """Those of <math.h> join words behind `__`. <assert.h> has __PRETTY_FUNCTION__, and no file the rest of it."""
    hits = []
    for place in (user.folder / "pasting", user.folder / "pasting_elsewhere"):
        made = ForeignProject(user, place)
        made.write("a.cpp", "#include <assert.h>\n#include <math.h>\ndouble pasted(double x) { return x + log(x); }\n")
        command = ("clang++", "-O2", "-DNDEBUG", "-c", f"{place}/a.cpp", "-o")
        made.good(*command, "a.o")
        assert made.plainly(*command, "plain.o").returncode == 0
        assert (place / "a.o").read_bytes() == (place / "plain.o").read_bytes()
        hits.append(made.counts())
    assert hits == [(0, 1), (1, 0)]


LIBRARY = """#pragma once
extern "C" int failed(unsigned long);
#define CHECK(x) ((x) ? 0 : failed(sizeof(__FILE__)))
inline int checked(int x) { return CHECK(x); }
"""


@pytest.fixture(scope="module")
def library(user: User) -> Path:
    """Headers outside of the checkouts."""
    folder = user.folder / "outside"
    folder.mkdir()
    (folder / "library.h").write_text(LIBRARY)
    (folder / "source.h").write_text("inline unsigned long length() { return sizeof(__BASE_FILE__); }\n")
    return folder


def test_a_header_outside_of_the_checkout_shows_its_own_path(user: User, library: Path) -> None:
    assert found(user, "library", "#include <library.h>\nint f(int x) { return checked(x); }", f"-I{library}")


@pytest.mark.parametrize(
    "code",
    [
        "#include <library.h>\nint f(int x) { return CHECK(x); }",
        "#include <source.h>\nint f(int x) { return x + length(); }",
    ],
)
def test_a_header_outside_of_the_checkout_may_make_the_checkouts_path_seen(
    user: User, library: Path, code: str
) -> None:
    assert not found(user, f"made seen {code}", code, f"-I{library}")


def test_a_header_that_is_reached_through_the_checkout_shows_the_checkouts_path(user: User, library: Path) -> None:
    code = '#include "way/library.h"\nint f(int x) { return checked(x); }'
    assert not found(user, "linked", code, way=library)
