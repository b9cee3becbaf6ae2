"""Which headers may have their lines moved: by their words, and if a run's texts show no line of theirs."""

from __future__ import annotations

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


def blind(folder: Path, text: str, *, silent: bool) -> bool:
    # The index of macros outlives a look-up: each test has words of its own.
    word = folder.name.upper()
    (folder / "macros.h").write_text(MACROS.format(word))
    (folder / "moved.h").write_text(text.format(word))
    (folder / "a.cpp").write_text('#include "macros.h"\n#include "moved.h"\n')
    action = Action("a.o", "g++", "g++", ("g++", "-c", "a.cpp"), ("a.cpp",), (), discovery=Discovery.GCC)
    snapshot = Snapshot(Files(), str(folder))
    used = ("a.cpp", "macros.h", "moved.h")
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
