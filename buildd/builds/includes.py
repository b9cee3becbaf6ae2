"""The files that sources mention: a failed compile would have read them, or looked for them in these places.

A guess for watches: conditions are not evaluated, and names that are macros are not known. No key depends on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from codegen.reach import read_regular

MOST_FILES = 2000
"""Files that are read, for all sources together."""
_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>)", re.MULTILINE)


def mentioned(sources: Iterable[str], search: Sequence[str], counts: Callable[[str], bool]) -> Iterator[str]:
    """The files that sources include, directly or not; for a file that is nowhere, every place where it would be.

    Args:
        sources: absolute, as all paths here.
        search: folders in which names are looked for; quoted names first in the includer's own folder.
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
        text = read_regular(path)
    except OSError:
        return
    for match in _INCLUDE.finditer(text):
        quoted = match[1] is not None
        yield os.fsdecode(match[1] or match[2]), [os.path.dirname(path), *search] if quoted else search
