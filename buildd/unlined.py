"""A preprocessed text as compilers see it that cannot see its line numbers: its parts, and the file of each.

Knows gcc's line markers, and which words let a text see where it stands. What a compiler's flags let it see is
`nvcc_steps`' business, and what it says on its way `inner`'s: there line numbers stand in every line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from blake3 import blake3

from buildd.turns import Turns

_SEES = (b"_LINE", b"__builtin_COLUMN", b"source_location", b'R"')
"""Parts of texts that are left as they are. In the last one, a raw string, lines are no lines."""
_SEES_SURELY = re.compile(rb"__builtin_LINE|__builtin_COLUMN|source_location|__LINE__|R\"")
_MARKER = b"\n# "
_QUOTE = b'"'
_EMPTY = re.compile(rb"\n\n+")
_FIRST = re.compile(rb'\s*# \d+ "([^"\n]*)"')
_ENTERED = re.compile(rb'\n# \d+ "[^"\n]*" 1[ 34]*\n')
_WORTH_KEEPING = 64 << 10
"""Bytes of an included part that will be met again: a toolkit's headers are most of a text, and always the same."""
_MOST_KNOWN = 1 << 12
_SEES_LINES = b"sees its lines"
_known: dict[bytes, bytes] = {}
"""Digest of an included part -> what stands for it, or `_SEES_LINES`."""
_workers = Turns()


def fingerprint(text: bytes) -> bytes:
    """Equal for two texts that differ only in line numbers and empty lines, where nothing in them can see these.

    Two parts of one line, between which the preprocessor named a system header, are not the same as two lines.
    """
    bare = _without_lines(text)
    return blake3(text).hexdigest().encode() if bare is None else b"bare " + blake3(bare).hexdigest().encode()


def _without_lines(text: bytes) -> bytes | None:
    """None where something can see its line, or looks like a marker and is none."""
    text = b"\n" + text
    written: list[bytes] = []
    reader = _Reader()
    for part, included in _parts(text):
        bare = _included(part) if included else reader.read(part)
        if bare is None:
            return None
        if bare:
            written.append(bare)
            if included:
                reader = _Reader()
    return b"\n".join(written)


def _parts(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """A text in order: what stands in the source itself, and what comes of one of its includes, which other sources
    have as well. True for the latter."""
    first = _FIRST.match(text)
    names = {b"<command-line>", first[1] if first else b""}
    backs = {b' "%s" 2\n' % name: 0 for name in names}
    end = 0
    while begin := _ENTERED.search(text, end):
        for back, place in backs.items():
            if -1 < place < begin.end():
                backs[back] = text.find(back, begin.end() - 1)
        places = [place for place in backs.values() if place > 0]
        returned = text.rfind(_MARKER, begin.end() - 1, min(places)) if places else -1
        if returned < 0:
            break
        yield text[end : begin.start()], False
        yield text[begin.start() : returned], True
        end = returned
    yield text[end:], False


def _included(part: bytes) -> bytes | None:
    """Stands for what an included part is without its line numbers: its digest, where it is long."""
    if len(part) < _WORTH_KEEPING:
        return _Reader().read(part)
    digest = blake3(part).digest()
    with _workers.turn():
        known = _known.get(digest)
        if known is None:
            bare = _Reader().read(part)
            known = _SEES_LINES if bare is None else bare and b"# included " + blake3(bare).hexdigest().encode()
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[digest] = known
    return None if known is _SEES_LINES else known


class _Reader:
    """Leaves the line numbers out of one part after another."""

    def __init__(self) -> None:
        self._markers: dict[bytes, tuple[bytes, bytes]] = {}
        self._file = self._place = b""
        self._last = -1

    def read(self, part: bytes) -> bytes | None:
        """A part that begins with the newline before a marker; None as in `_without_lines`."""
        if any(word in part for word in _SEES) and _SEES_SURELY.search(part):
            return None
        first, *pieces = part.split(_MARKER)
        known, file, place, last = self._markers, self._file, self._place, self._last
        written = [_EMPTY.sub(b"\n", first.strip(b"\n"))] if first.strip() else []
        for piece in pieces:
            marker, _, text = piece.partition(b"\n")
            number, _, rest = marker.partition(b" ")
            found = known.get(rest)
            if found is None:
                if not (number.isdigit() and rest.startswith(_QUOTE)):
                    return None
                name, _, flags = rest.rpartition(_QUOTE)
                # 1 and 2 say that a file begins or goes on; 3 and 4 how it is read: no warnings, as C.
                found = name, name + _QUOTE + b" ".join(flag for flag in flags.split() if flag not in (b"1", b"2"))
                known[rest] = found
            core = text.strip()
            if not core:
                continue
            line = int(number) + text.count(b"\n", 0, text.index(core[:1]))
            if found[1] != place:
                place = found[1]
                written.append(b"# " + place)
            if line == last and found[0] == file:
                written.append(b"# same line")
            file = found[0]
            last = line + core.count(b"\n")
            written.append(_EMPTY.sub(b"\n", core) if b"\n\n" in core else core)
        self._file, self._place, self._last = file, place, last
        return b"\n".join(written)
