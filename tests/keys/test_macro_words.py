"""Which macros lead to a word that is looked for: `##` makes a word only of those that stand in some file."""

from __future__ import annotations

import pytest

from buildd.keys.macro_words import Definitions, Macros

LOOKED_FOR = b"__PRETTY_FUNCTION__"
EVERY = "CAT IN OUT THREE"
PASTES = "#define CAT(a, b) a##b\n#define IN(a) __##a\n#define OUT(a) a##__\n#define THREE(a) __##a##_FUNCTION__\n"


def seeing(text: str, *later: str) -> set[str]:
    """Those of the macros of PASTES, and of the texts, that are seeing, once all texts were read."""
    words = set[bytes]()
    macros = Macros((LOOKED_FOR,), words)
    names = set[bytes]()
    for each in (PASTES, text, *later):
        read = Definitions(each.encode())
        macros.add(read.macros)
        words |= read.words().union(*(macro.words for macro in read.macros))
        names |= {macro.name for macro in read.macros}
        macros.is_seeing(())  # whatever was asked before
    return {name.decode() for name in names if macros.is_seeing({name})}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("CAT(x, y) IN(log) OUT(FUNCTION) FUNCTION__ PRETTY1 RETTY", ""),
        ("PRETTY_FUNCTION", EVERY),
        ("PRETTY_FUNCTION__", EVERY),
        ("FUNCTION __PRETTY_", EVERY),
        ("FUNCTION__ __PRETTY_", EVERY),
        ("__ PRETTY_FUNCTION __", EVERY),
        ("PRETTY", EVERY),
        ("__PRETTY_FUNCTION__", ""),
        ("#define SHOWS f(__PRETTY_FUNCTION__)\n", "SHOWS"),
        ("#define SHOWS f(__PRETTY_FUNCTION__)\nSHO", "SHOWS"),
        ("#define SHOWS f(__PRETTY_FUNCTION__)\nSHO WS", "CAT SHOWS"),
        ("#define SHOWS f(__PRETTY_FUNCTION__)\n#define MINE SHOWS\nMI NE", "CAT MINE SHOWS"),
        ("#define SHOWS4 f(__PRETTY_FUNCTION__)\nSHOWS", "CAT SHOWS4"),
        ("#define S4x f(__PRETTY_FUNCTION__)\nS", "CAT S4x"),
        ("#define __LOG f(__PRETTY_FUNCTION__)\nLOG", "CAT IN THREE __LOG"),
        ("#define LOG__ f(__PRETTY_FUNCTION__)\n#define PIECE LOG\n", "CAT OUT LOG__"),
    ],
)
def test_words_are_made_of_those_that_stand_somewhere(text: str, found: str) -> None:
    assert seeing(text) == {*found.split()}


def test_a_later_file_brings_a_missing_piece() -> None:
    text = "#define SHOWS f(__PRETTY_FUNCTION__)\nSHO"
    assert seeing(text) == {"SHOWS"}
    assert seeing(text, "WS") == {"SHOWS", "CAT"}
    assert seeing("SHO", "WS", "#define SHOWS f(__PRETTY_FUNCTION__)\n") == {"SHOWS", "CAT"}
    assert seeing(text, "#define G(a) SHO##a\n") == {"SHOWS"}
    assert seeing(text, "#define G(a) SHO##a\n", "WS") == {"SHOWS", "CAT", "G"}
    assert seeing(text, "WS", "#define G(a) SHO##a\n") == {"SHOWS", "CAT", "G"}


def test_of_very_many_words_each_counts_as_made() -> None:
    many = "".join(f"#define SHOWS_{number}_x f(__PRETTY_FUNCTION__)\n" for number in range(100))
    assert "CAT" in seeing(many)


def test_without_the_words_any_word_may_be_made() -> None:
    macros = Macros((LOOKED_FOR,))
    macros.add(Definitions(PASTES.encode()).macros)
    assert all(macros.is_seeing({name}) for name in (b"CAT", b"IN", b"OUT", b"THREE"))
