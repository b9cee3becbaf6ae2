"""The files of a job on its node: their digests, those that a depfile lists, and those that a search could have found.

Ray sends this module to the nodes, which have no buildd: it imports nothing outside the standard library. The daemon
imports it too, so that both sides compute the same digests and the same rivals. Knows no job.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

MOST_KNOWN = 100_000

Stamp = tuple[int, int, int, int]
_TOKEN = re.compile(rb"(?:\\\n|\s)*((?:\\[ #:\\]|\$\$|[^\s])+)")
_known: dict[str, tuple[Stamp, str]] = {}


def digest_of(path: str, known: dict[str, tuple[Stamp, str]] = _known) -> str:
    """SHA-256 of a file, empty where it cannot be read. A digest is remembered as long as the file's stamp stands."""
    try:
        found = os.stat(path)
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        before = known.get(path)
        if before is not None and before[0] == stamp:
            return before[1]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""
    if time.time_ns() - max(stamp[2:]) > 3_000_000_000:  # a younger file may be written again within its stamp
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[path] = (stamp, digest)
    return digest


def rivals(
    read: Iterable[str], search: Sequence[str], folder: str, where: Callable[[str], str] = str
) -> tuple[str, ...]:
    """The files that exist and that a search for the read files could have found as well, the read ones included.

    Args:
        read: as the tool spelled them.
        search: folders that it searches, in any order.
        folder: that the tool runs in.
        where: leads from a path of the tool's to the one at which this process finds the same.
    """
    absolute = [os.path.join(folder, path) for path in read]
    places = list(dict.fromkeys([*(os.path.join(folder, each) for each in search), *map(os.path.dirname, absolute)]))
    names: dict[str, None] = {}
    for path in absolute:
        tops = [top for top in places if path.startswith(f"{top}/")]
        names.update(dict.fromkeys(path[len(top) + 1 :] for top in tops))
    listings = {place: names_in(where(place)) for place in places}
    found = [
        f"{place}/{name}"
        for place in places
        for name in names
        if name.partition("/")[0] in listings[place] and os.path.lexists(where(f"{place}/{name}"))
    ]
    return tuple(sorted(found))


def names_in(folder: str) -> frozenset[str]:
    """The names in a folder; none where it cannot be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def listed_paths(depfile: bytes) -> Iterator[str]:
    """All that can be a path in a depfile, of gcc or of clang: the daemon reads it properly."""
    for token in _TOKEN.findall(depfile):
        plain = re.sub(rb"\\([ #:])", rb"\1", token).replace(b"$$", b"$")
        yield os.fsdecode(plain)


def is_text(path: str) -> bool:
    """Whether a path is UTF-8, as what travels must be."""
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)
