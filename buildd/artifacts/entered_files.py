"""Reads from preprocessed text which files the preprocessor entered: nvcc makes its depfiles of these.

Knows gcc's line markers (cpp's manual, "Preprocessor Output"), no depfile and no compile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from buildd.keys.depfiles import Listing

_ENTERS = b'" 1'
_MARKER = re.compile(rb'# \d+ "((?:[^"\\]|\\.)+)" 1((?: [234])*)\Z', re.DOTALL)
"""A line that enters a file; 3 marks a system header."""
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)


def entered(text: bytes, entering: Iterable[bytes] | None = None) -> Listing:
    """Return the files that a text enters, in this order, each once; and those that it enters as the user's.

    Args:
        entering: the lines that may enter a file, each once; None where nobody has looked for them.
    """
    files: dict[str, None] = {}
    user: dict[str, None] = {}
    for line in _entering(text) if entering is None else entering:
        match = _MARKER.match(line)
        if match is None or match[1].startswith(b"<"):
            continue
        name = os.fsdecode(_ESCAPED.sub(_unescaped, match[1]))
        files[name] = None
        if b"3" not in match[2]:
            user[name] = None
    return Listing(tuple(files), tuple(user))


def _entering(text: bytes) -> Iterable[bytes]:
    found: dict[bytes, None] = {}
    # Most of a megabyte is code: only where a line may enter a file is it looked at.
    place = text.find(_ENTERS)
    while place >= 0:
        end = text.find(b"\n", place)
        found[text[text.rfind(b"\n", 0, place) + 1 : end if end >= 0 else len(text)]] = None
        place = text.find(_ENTERS, end) if end >= 0 else -1
    return found


def together(listings: Iterable[Listing]) -> Listing:
    """Return the listing of several texts of one source."""
    every = list(listings)
    files = dict.fromkeys(name for listing in every for name in listing.files)
    user = dict.fromkeys(name for listing in every for name in listing.user or ())
    return Listing(tuple(files), tuple(user))


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 8) & 255,)) if len(match[1]) == 3 else match[1]
