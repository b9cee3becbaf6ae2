"""What sources mention: the files that a compile which came to nothing would have read, and places of those it missed.

A guess for whoever watches: conditions are not evaluated, and a name that is a macro is not known. No key stands on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

MOST_FILES = 2000
"""Files that are read, for all sources together."""
_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>)", re.MULTILINE)


def mentioned(sources: Iterable[str], search: Sequence[str], counts: Callable[[str], bool]) -> Iterator[str]:
    """The files that sources include, and those that these do; of one that is nowhere, every place where it would be.

    Args:
        sources: absolute, as all paths here.
        search: folders in which names in angle brackets are looked for, and the others after the includer's own.
        counts: whether a file is of interest; the others are not read.
    """
    left = list(dict.fromkeys(sources))
    known = set(left)
    number = 0
    while left and number < MOST_FILES:
        number += 1
        includer = left.pop()
        for name, folders in _included(includer, search):
            places = [os.path.normpath(os.path.join(folder, name)) for folder in folders]
            found = next(filter(os.path.isfile, places), None)
            for path in places if found is None else (found,):
                if path not in known and counts(path):
                    known.add(path)
                    yield path
                    if found is not None:
                        left.append(path)


def _included(path: str, search: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return
    for match in _INCLUDE.finditer(text):
        quoted = match[1] is not None
        yield os.fsdecode(match[1] or match[2]), [os.path.dirname(path), *search] if quoted else search
