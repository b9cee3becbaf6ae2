"""Files of preprocessed texts that show a line, and random headers: one that shows none may have its lines moved."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from buildd.native.bare_text import BareText
from tests.support.line_programs import MACROS, SYSTEM, random_header
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install gcc)")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> BareText:
    return BareText(tmp_path_factory.mktemp("store"))


def shown(bare: BareText, *lines: str) -> dict[bytes, bool] | None:
    return bare.shown_lines("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize(
    "lines",
    [
        ('# 100 "h.h"', "int a = 100;"),
        ('# 100 "h.h"', "int a_100x;"),
        ('# 100 "h.h"', "int a = 31000;"),
        ('# 100 "h.h"', 'char *a = "at 100";'),
        ('# 100 "h.h"', "int a = 107;", "", "", "", "", "", "", "", "int b;"),
        ('# 100 "h.h"', "int a = 150;"),
        ('# 100 "h.h"', "int a = 107;", '# 1 "g.h" 1', "int b;", '# 102 "h.h" 2', "int c;"),
        ('# 100 "h.h"', "int a = 95;"),
        ('# 100 "h.h"', 'char *a = R"(', ')";', "int b;"),
        # A call of a system header's macro is written in parts, and ends behind the last one.
        ('# 100 "h.h"', "int a =", '# 100 "h.h" 3 4', "(110", '# 100 "h.h"', ")", '# 112 "h.h"', "int b;"),
        ('# 100 "h.h"', "int a = 110,", '# 100 "h.h"', "#pragma GCC poison q", '# 100 "h.h"', "b;", "int c;"),
    ],
)
def test_a_number_that_could_be_a_line_shows_one(bare: BareText, lines: tuple[str, ...]) -> None:
    found = shown(bare, *lines)
    assert found is not None and found[b"h.h"]


@pytest.mark.parametrize(
    "lines",
    [
        ('# 100 "h.h"', "int a = 7;", "int b;"),
        ('# 100 "h.h"', "int a = 150;", "int b;"),
        ('# 100 "h.h"', "int a = 42;"),
        ('# 1 "h.h" 1', '# 7 "g.h"', "int a = 7;"),
    ],
)
def test_other_numbers_show_none(bare: BareText, lines: tuple[str, ...]) -> None:
    found = shown(bare, *lines)
    assert found is not None and not found[b"h.h"]


@pytest.mark.parametrize("lines", [("int a;",), ("# nonsense", "int a;"), ('# 1 "h.h', "int a;")])
def test_a_text_without_sound_markers_is_not_known(bare: BareText, lines: tuple[str, ...]) -> None:
    assert shown(bare, *lines) is None


def test_more_files_than_there_is_room_for_are_not_known(bare: BareText) -> None:
    assert shown(bare, *(f'# 1 "h{number}.h"' for number in range(7000))) is None


def test_a_header_that_shows_no_line_is_the_same_elsewhere(bare: BareText, tmp_path: Path) -> None:
    """Beside gcc: whatever its macros do, such a header has the same tokens when its lines have moved."""
    rng = random.Random(7)
    (tmp_path / "system").mkdir()
    (tmp_path / "system/s.h").write_text(SYSTEM)
    (tmp_path / "a.cpp").write_text(f'#include <s.h>\n{MACROS}#include "h.h"\nint c = __LINE__;\n')
    silent = moved = 0
    for _ in range(60):
        lines = random_header(rng, shows=rng.random() < 0.5).split("\n")
        before = preprocessed(tmp_path, lines)
        found = before and bare.shown_lines(before)
        if not before or not found:
            continue
        at = rng.randrange(len(lines))
        after = preprocessed(tmp_path, [*lines[:at], *[""] * rng.choice((1, 2, 30)), *lines[at:]])
        changed = tokens(before) != tokens(after)
        moved += changed
        if not found.get(b"h.h", False):
            silent += 1
            assert not changed, "\n".join(lines)
    assert silent > 5 and moved > 5


def preprocessed(folder: Path, header: list[str]) -> bytes:
    """What gcc writes; empty where the header is not in order."""
    (folder / "h.h").write_text("\n".join(header))
    argv = [host_compiler(), "-E", "-isystem", "system", "a.cpp"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else b""


def tokens(text: bytes) -> list[bytes]:
    return re.sub(rb'(?m)^# \d+ "[^\n]*$', b"", text).split()
