"""Tells whether clang may see other indentation in a source than in its preprocessed text.

For -Wmisleading-indentation clang compares the columns of a guarded statement and of the next one. The preprocessor
writes a blank for each character before a line's first word: a tab, or a comment, has another width then. Knows no
compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ASK = frozenset(("-Wall", "-Weverything", "-Wmisleading-indentation"))
_GUARD = re.compile(rb"\b(?:if|else|for|while)\b")
_LINE = re.compile(rb"^((?:[ \t]|/\*[^\n]*?\*/)*)(?=[^\s/]|/[^/*])([^\n]*)", re.MULTILINE)
_LINES_BEHIND = 3


def asks(words: Iterable[object]) -> bool:
    """Whether a command has clang look at indentation."""
    return not _ASK.isdisjoint(word for word in words if isinstance(word, str))


def is_mixed(text: bytes) -> bool:
    """Whether a guard and the lines behind it are indented in ways that compare only by their width.

    A file that is indented with tabs alone, or with blanks alone, is not.
    """
    if b"\t" not in text and b"*/" not in text:
        return False
    lines = _LINE.findall(text)
    for at, (_, code) in enumerate(lines):
        if _GUARD.search(code):
            starts = [start for start, _ in lines[at : at + _LINES_BEHIND + 1]]
            if any(not (one.startswith(other) or other.startswith(one)) for one in starts for other in starts):
                return True
    return False
