"""Which headers may have their lines moved: by their words, and if a run's texts show no line of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.line_sight import is_blind
from buildd.native.bare_text import BareText
from codegen.plan import Action, Discovery
from tests.support.own_programs import keep_programs, lend_programs
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install gcc)")
MACROS = "#define SHOWN_{0} __LINE__\n#define OTHER_{0} 1\n"


def blind(folder: Path, text: str, *, silent: bool, beside: Iterable[tuple[str, str]] = ()) -> bool:
    # The index of macros outlives a look-up: each test has words of its own.
    word = folder.name.upper()
    (folder / "macros.h").write_text(MACROS.format(word))
    (folder / "moved.h").write_text(text.format(word))
    (folder / "a.cpp").write_text('#include "macros.h"\n#include "moved.h"\n')
    action = Action("a.o", "g++", "g++", ("g++", "-c", "a.cpp"), ("a.cpp",), (), discovery=Discovery.GCC)
    snapshot = Snapshot(Files(), str(folder))
    for name, content in beside:
        (folder / name).write_text(content)
    used = ("a.cpp", "macros.h", "moved.h", *(name for name, _ in reversed(tuple(beside))))
    store = folder / "store"
    lend_programs(store)
    try:
        return is_blind(snapshot, BareText(store), action, used, ("moved.h",), {"moved.h"} if silent else ())
    finally:
        keep_programs(store)


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "#if SHOWN_{0} < 3\nint a;\n#endif\n",
        "#if OTHER_{0}\nint a = __builtin_LINE();\n#endif\n",
    ],
)
def test_conditions_and_functions_see_lines_in_any_case(tmp_path: Path, text: str, silent: bool) -> None:
    assert not blind(tmp_path, text, silent=silent)


@pytest.mark.parametrize(
    "text",
    [
        "int a = OTHER_{0};\n#define MINE_{0} SHOWN_{0}\n#if OTHER_{0}\n#endif\n",
        "#ifdef __GNUC__\nint b;\n#endif\n",
    ],
)
def test_without_such_a_word_lines_may_move(tmp_path: Path, text: str) -> None:
    assert blind(tmp_path, text, silent=False)


@pytest.mark.parametrize("text", ["int a = SHOWN_{0};\n", "#if 0\nint a = SHOWN_{0};\n#endif\n"])
def test_a_word_counts_only_where_the_texts_are_not_known(tmp_path: Path, text: str) -> None:
    assert not blind(tmp_path, text, silent=False)
    assert blind(tmp_path, text, silent=True)


@pytest.mark.parametrize("directive", ['#line 7 "other.h"', "# 7", "#  line 7"])
def test_lines_of_another_name_are_not_known_by_the_file(tmp_path: Path, directive: str) -> None:
    assert not blind(tmp_path, f"{directive}\nint a = SHOWN_{{0}};\n", silent=True)


@pytest.mark.parametrize("body", ["__builtin_LINE()", "__builtin_LINE", "PLACE_{0}()"])
def test_a_default_argument_sees_lines_through_a_macro(tmp_path: Path, body: str) -> None:
    """As with BOOST_CURRENT_LOCATION: the file that calls the function holds no word of it."""
    word = tmp_path.name.upper()
    text = f"#define HERE_{word} {body.format(word)}\n#define PLACE_{word}() __builtin_LINE()\n"
    (tmp_path / "here.h").write_text(text)
    assert blind(tmp_path, "int b = f();\n", silent=False), "nobody uses it"
    code = f'#include "here.h"\nconstexpr int f(int a = HERE_{word});\n'
    assert not blind(tmp_path, "int b = f();\n", silent=False, beside=(("here.h", text), ("f.h", code)))
