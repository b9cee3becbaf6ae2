"""Names of calls that were not understood, for people. Knows command lines by their looks alone."""

from __future__ import annotations

import os
from collections.abc import Sequence

_MOST_WORDS = 3
_VALUED = frozenset(
    [
        "-x",
        "-D",
        "-U",
        "-I",
        "-L",
        "-T",
        "-u",
        "-z",
        "-e",
        "-A",
        "-include",
        "-imacros",
        "-isystem",
        "-iquote",
        "-idirafter",
        "-isysroot",
        "-MF",
        "-MT",
        "-MQ",
        "-ccbin",
        "-arch",
        "-gencode",
        "-std",
        "-target",
        "-aux-info",
        "-Xcompiler",
        "-Xlinker",
        "-Xptxas",
        "-Xassembler",
        "-Xpreprocessor",
        "-Xclang",
        "-mllvm",
    ]
)
"""Options whose value is the next word, for the name of a call alone."""


def call_of(command: Sequence[str], folder: str) -> str:
    """The name of a call that was not understood: its tool, and the words that are no options and none's value."""
    before = ("", *command[1:])
    named = [word for word, last in zip(command[1:], before, strict=False) if word[:1] != "-" and last not in _VALUED]
    words = [os.path.basename(command[0]) if command else "", *named[:_MOST_WORDS]]
    if len(named) > _MOST_WORDS:
        words.append(f"and {len(named) - _MOST_WORDS} more")
    return f"{' '.join(words)} (in {folder})"
