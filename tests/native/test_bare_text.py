"""Bare forms of texts: which edits leave them as they are, and which texts have none (see also campaign/comments)."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.native.bare_text import BareText
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install gcc)")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> BareText:
    return BareText(tmp_path_factory.mktemp("store"))


SAME = (
    ("int a; // one\n", "int a; // another, longer\n"),
    ("int a; // one\n", "int a;\n"),
    ("int a; // one\n", "int a; /* one */  \t\n"),
    ("/* a */ int a;\n", "/* b */ int a;\n"),
    ("/* a\n b */ int a;\n", "/* c d e\n f */ int a;\n"),
    ('char const *s = "// no"; // a\n', 'char const *s = "// no"; // "\n'),
    ("int a = 1'000; // it's\n", "int a = 1'000; // its\n"),
    ("char c = '\"'; // a\n", "char c = '\"'; // b\n"),
    ("char c = '\\''; // a\n", "char c = '\\''; // b\n"),
    ('auto s = R"x(// )" )x"; // a\n', 'auto s = R"x(// )" )x"; // b\n'),
    ("#include <a/b> // a\n", "#include <a/b> // <b>\n"),
    ('#define A "x" \\\n  "y" // a\n', '#define A "x" \\\n  "y" // b\n'),
    ("#error don't // all of it is one word\nint a; // a\n", "#error don't // all of it is one word\nint a; // b\n"),
    ("int a; // a\r\n", "int a; // b\n"),
    ("int a; // what ??! is\n", "int a; // what\n"),
    ("a */* x */ b;\n", "a */* y */ b;\n"),
    ("  // a\n  int a;\n", "  /* b */\n  int a;\n"),
    ("int a; // a", "int a; // b"),
    ('char const *s = "%"PRIu64"d"; // a\n', 'char const *s = "%"PRIu64"d"; // b\n'),
)
MOVED = (
    ("int a;\n", "// a line more\nint a;\n"),
    ("int a;\nint b;\n", "int a;\n\n\n  /* so many\n lines */\n\nint b;\n"),
    ("int a; /* x */\n", "int a; /* x\n y */\n"),
    ("#define A \\\n  1\nint a;\n", "#define A \\\n  1\n\nint a;\n"),
    ("  f();\n  g();\n", "  f();\n  // as far to the right\n\t/* and\n    farther */\n  g();\n"),
    ("// a\nint a;\n", "  // a\nint a;\n"),
)
OTHER = (
    ("int a;\n", "int  a;\n"),
    # gcc's -Wmisleading-indentation looks at the lines between two statements.
    ("  f();\n  g();\n", "  f();\n// less to the right\n  g();\n"),
    ("  f();\n  /* a\n     b */\n  g();\n", "  f();\n  /* a\n b */\n  g();\n"),
    ("  f();\n  g();\n", "  f(); /* a\n b */\n  g();\n"),
    ("\tf();\n\tg();\n", "\tf();\n    // four of eight\n\tg();\n"),
    ("/* a */ g();\n", "        g();\n"),
    # clang's -Wnewline-eof.
    ("int a;\n", "int a;\n// no newline"),
    ("int a; // a\n", "int a; // a"),
    ("int a;\n", " int a;\n"),
    ("int a/**/b;\n", "int ab;\n"),
    ("/* a */ int a;\n", "/* ab */ int a;\n"),
    ('char const *s = "// a";\n', 'char const *s = "// b";\n'),
    ('char const *s = R"(// a)";\n', 'char const *s = R"(// b)";\n'),
    ('char const *s = R"(\n)";\n', 'char const *s = R"(\n\n)";\n'),
    ("int a; // fall through\n", "int a; // falls through\n"),
    ("int a; /* FALLTHRU */\n", "int a;\n"),
    ("int a; // \u202e\n", "int a; //\n"),
    ("int a; // a \\\nint b;\n", "int a; // a\nint b;\n"),
    ("int a; /* /* */\n", "int a; /* */\n"),
    ("#define A \\\n  1\nint a;\n", "#define A \\\n\n  1\nint a;\n"),
    ("#define F(x) x\n", "#define F/**/(x) x\n"),
    ("int a; /* x\n */ #define A\n", "int a;\n #define A\n"),
    ("#error don't // a\n", "#error don't // b\n"),
    ("int a;\n", "int a; // a\nint b;\n"),
)
NONE = (
    "#warning a /* b\nint a; // */\n",
    "#error a /* b\nint a; // */\n",
    'char const *s = S("a"R"(b" f()"x // y");\n',
    '#pragma clang diagnostic error "-Wdocumentation"\nint a;\n',
    "#pragma mark a /* b\nint a; // */\n",
    "#include <a//b>\n",
    "#include <a/*b>\n",
    "#if __has_include(<a//b>)\n#endif\n",
    "/\\\n/ text\n",
    "/* text *\\\n/ int a;\n",
    'u8\\\nR"(// )"\n',
    'char const *s = "\\\\\nn";\n',
    "// text ??/\nmore\n",
    "??=include <a>\n",
    "/* never ends\n",
    'auto s = R"x(never ends)y";\n',
    "#inc\\\nlude <a>\n",
    "#pragma GCC dependency <a//b>\n",
    "int a = 1'000' + 1;\n",
    "int a;\rint b;\n",
    "int a; // \0\n",
    "\\u00e4'a'\n",
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_comments_and_blanks_at_the_end_of_a_line_are_no_part_of_it(bare: BareText, one: str, other: str) -> None:
    assert bare.form(one.encode()) == bare.form(other.encode()) is not None


@pytest.mark.parametrize(("one", "other"), MOVED)
def test_lines_without_a_token_are_left_out_of_the_second_form(bare: BareText, one: str, other: str) -> None:
    first, second = bare.digests(one.encode()), bare.digests(other.encode())
    assert (len(first), len(second)) == (64, 64)
    assert first[:32] != second[:32] and first[32:] == second[32:]


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_a_compiler_may_see_is_part_of_both(bare: BareText, one: str, other: str) -> None:
    first, second = bare.digests(one.encode()), bare.digests(other.encode())
    assert first and second and first[:32] != second[:32]
    if one.count("\n") == other.count("\n"):
        assert first[32:] != second[32:]


@pytest.mark.parametrize("text", NONE)
def test_a_text_that_compilers_could_read_in_two_ways_has_none(bare: BareText, text: str) -> None:
    assert bare.form(text.encode()) is None and bare.digests(text.encode()) == b""


def test_a_byte_order_mark_is_no_token(bare: BareText) -> None:
    text = b"\xef\xbb\xbf#include <a//b>\n"
    assert bare.form(text) is None
    assert bare.form(b"\xef\xbb\xbfint a; // a\n") == b"\xef\xbb\xbfint a;\n"


def test_without_a_compiler_no_text_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert BareText(tmp_path / "store").form(b"int a; // a\n") is None


@pytest.mark.parametrize(
    ("text", "versioned"),
    [
        ("int a = 1'000;\n", True),
        ('char const *s = R"(x)";\n', True),
        ('auto s = u8R"x(// )" )x"; // a\n', True),
        ("char a = '1', b = 'R'; // it's 1'000\n", False),
        ('#define R 1\nchar const *s = "R" "x", *t = FOOR "x"; /* R"(x)" */\n', False),
        ("", False),
    ],
)
def test_texts_that_older_languages_read_otherwise(bare: BareText, text: str, versioned: bool) -> None:
    assert (len(bare.digests(text.encode())) > 64) is versioned
