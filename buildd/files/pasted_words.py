"""Finds parts of words such as `__TIME__` that a macro's `##` could paste together: `PASTE(__TI, ME__)`.

The macro that pastes two parts may be in another file: the last part is enough if it is longer than `__`, since no
program uses it for anything else. Words with `__` as their last part are found only beside a `##`. Pure: bytes in,
words out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CLOCK = frozenset((b"__DATE__", b"__TIME__", b"__TIMESTAMP__"))
"""Those of the words that depend on the clock."""
_WORDS = (b"__TIME__", b"__DATE__", b"__TIMESTAMP__", b"__FILE__", b"__BASE_FILE__")
_ENDS = {word[at:]: word for word in reversed(_WORDS) for at in range(1, len(word) - 2)}
_BEGINNINGS = {word[:at]: word for word in reversed(_WORDS) for at in (len(word) - 2, len(word) - 1)}
_CORES = {word.strip(b"_"): word for word in _WORDS}
_LETTERS = rb"[\w$\x80-\xff]"
_END = re.compile(rb"(?<!%b)%b{1,12}\Z" % (_LETTERS, _LETTERS))
_LAST = re.compile(_LETTERS)
_LONGEST = max(map(len, _ENDS))
_BEGINNING = re.compile(rb"(?<!%b)__(?:TI|DA|FI|BA)[A-Z_]*(?!%b)" % (_LETTERS, _LETTERS))
_CORE = re.compile(rb"[(,]\s*_?(TIME|DATE|TIMESTAMP|FILE|BASE_FILE)_?\s*[),]")
_BARS = re.compile(rb"_(?!%b)(?:(?<!%b_)|(?<=__)(?<!%b__))" % (_LETTERS, _LETTERS, _LETTERS))
"""The last part, where it is no longer than this."""


def pasted_words(content: bytes, *, pastes: bool) -> set[bytes]:
    """The words among `__TIME__` and the like that could be made of parts in a text.

    Args:
        pastes: `##` stands in the text.
    """
    found = {_ENDS[end] for end in _ends(content) if end in _ENDS}
    if pastes and any(core in content for core in (b"TIME", b"DATE", b"FILE")) and _BARS.search(content):
        found.update(_BEGINNINGS[each] for each in _BEGINNING.findall(content) if each in _BEGINNINGS)
        found.update(_CORES[each] for each in _CORE.findall(content))
    return found


def _ends(content: bytes) -> Iterator[bytes]:
    """The words that end as those do. Searching for the last letters alone takes a tenth of a pattern's time."""
    for last in (b"E__", b"P__"):
        place = content.find(last)
        while place >= 0:
            after = place + len(last)
            if not _LAST.match(content, after):
                word = _END.search(content[max(0, after - _LONGEST - 1) : after])
                if word is not None:
                    yield word[0]
            place = content.find(last, after)
