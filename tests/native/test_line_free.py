"""Parts of preprocessed texts without line numbers, and the files that they enter: the library against Python."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from buildd.artifacts.entered_files import entered
from buildd.artifacts.line_free_text import fingerprint, read_part
from buildd.native.bare_text import BareText
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
PIECES = [
    *(b"\n# ", b"\n#", b"# ", b"\n", b"\n\n", b"\n \n", b" ", b"\t", b"\r", b"\v", b"\f", b"\0", b"\xff"),
    *(b"1", b"2", b" 3", b" 3 4", b" 1", b" 2", b" 1 3 4", b"12", b"0012", b"1234567890123456"),
    *(b'"', b'"k.cu"', b'"/usr/s.h"', b'"a\\"b"', b'"<built-in>"', b'""', b'"\\303\\244.h"', b'"n"m"'),
    *(b"int a;", b"x", b"{ }", b'"text"', b"R", b"u8", b"u8R", b"LR", b"xR", b'R"(', b"_LINE", b"__LINE__"),
    *(b'R"(', b')"', b'LR"d(', b')d"', b"(", b")", b'R"\n(', b'R"sixteen-letters--(', b'R"seventeen-letters(', b")d"),
    *(b"__builtin_LINE", b"__builtin_COLUMN", b"source_location"),
    *(b'\n# 7 "k.cu"\nint b;', b'\n# 8 "k.cu" 3 4\n', b'\n# 1 "s.h" 1 3\nint s;', b'\n# 9 "k.cu" 2\n'),
]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> BareText:
    made = BareText(tmp_path_factory.mktemp("store"))
    assert made.entering(b"") == [], "the library is there"
    return made


def nobody(part: bytes) -> bytes | None:
    raise AssertionError("the library reads it")


def compare(native: BareText, text: bytes) -> None:
    assert native.line_free(text, nobody) == read_part(text), text
    assert entered(text, native.entering(text)) == entered(text), text


def test_random_texts_are_read_alike(native: BareText) -> None:
    rng = random.Random(20)
    markers = [piece for piece in PIECES if piece.startswith(b"\n# ") and len(piece) > 3]
    for _ in range(20_000):
        pieces = PIECES if rng.random() < 0.5 else [*markers, *PIECES[:24]]
        text = b"".join(rng.choices(pieces, k=rng.randrange(14)))
        compare(native, text)
        compare(native, b'\n# 5 "k.cu"\n' + text)
    assert native.line_free(b"\n# 5 ", nobody) is None and read_part(b"\n# 5 ") is None


@pytest.mark.parametrize("header", ["vector", "stdio.h", "map"])
def test_real_texts_are_read_alike(native: BareText, header: str) -> None:
    text = subprocess.run(
        [shutil.which("g++") or "g++", "-E", "-x", "c++", "-"],
        input=f"#include <{header}>\n#include <string.h>\n\nint a;\n\n\nint b = NULL == 0;\n".encode(),
        capture_output=True,
        check=True,
    ).stdout
    compare(native, b"\n" + text)
    plain = fingerprint(text)
    assert plain == fingerprint(text, lambda part: native.line_free(part, nobody))
    assert plain.startswith(b"bare "), "it is read, and not left as it is"
    for each in (text[1000:], text[:-7], text.replace(b'"', b""), text.replace(b"\n", b"\n\n")):
        compare(native, each)


def test_without_the_library_python_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = BareText(tmp_path)
    text = b'\n# 5 "k.cu" 1\nint a;'
    assert alone.entering(text) is None
    assert alone.line_free(text, read_part) == read_part(text) == b'# "k.cu"\nint a;'
