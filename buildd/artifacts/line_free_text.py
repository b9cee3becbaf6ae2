"""Preprocessed texts without line numbers: their parts, and the file that each part comes from.

line_free.c reads a part in the same way; what it gives has to be the same to the byte.

Knows gcc's line markers, and the words by which a text can read its own line numbers. `nvcc_steps` knows what a
compiler's flags reveal. `step_report` handles the compiler's messages, in which every line has a line number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from blake3 import blake3

from buildd.files.patient_lock import PatientLock

BARE_TEXT = b"bare "
"""Begins the digest of a text in which nothing sees its line."""
_SEES = (b"_LINE", b"__builtin_COLUMN", b"source_location", b'R"')
"""Words that let a text see its lines, and raw strings."""
_SEES_SURELY = re.compile(rb"__builtin_LINE|__builtin_COLUMN|source_location|__LINE__")
_RAW = re.compile(rb"\b(?:u8|[uUL])?R\"")
"""The end of a plain string, as in "ERROR", is no raw string."""
_DELIMITER = re.compile(rb"([^ ()\\\t\v\f\n\"]{0,16})\(")
_MENTIONED = re.compile(rb"\b\d|line\d", re.IGNORECASE)
_MARKER = b"\n# "
_QUOTE = b'"'
_EMPTY = re.compile(rb"\n\n+")
_FIRST = re.compile(rb'\s*# \d+ "([^"\n]*)"')
_ENTERED = re.compile(rb'\n# \d+ "[^"\n]*" 1[ 34]*\n')
_WORTH_KEEPING = 64 << 10
"""Bytes from which an included part is remembered: a toolkit's headers are most of a text, and always the same."""
_MOST_DIGITS = 15
_MOST_KNOWN = 1 << 12
_SEES_LINES = b"sees its lines"
_known: dict[bytes, bytes] = {}
"""Digest of an included part -> its replacement, or `_SEES_LINES`."""
_workers = PatientLock()


Reads = Callable[[bytes], bytes | None]


def read_part(part: bytes) -> bytes | None:
    """A part of a text, which begins with the newline before a marker, without its line numbers; None where something
    can see its line, or only looks like a marker."""
    return _Reader().read(part)


def fingerprint(text: bytes, reads: Reads = read_part) -> bytes:
    """A digest, equal for texts that differ only in line numbers and empty lines, if nothing in them sees these.

    Two parts of one line, with a system header's marker between them, are not the same as two lines.

    Args:
        reads: does what `read_part` does.
    """
    bare = _without_lines(text, reads)
    return blake3(text).hexdigest().encode() if bare is None else BARE_TEXT + blake3(bare).hexdigest().encode()


def names_lines(said: bytes) -> bool:
    """Whether a message of a tool may name a line: it holds a number that is no part of a word.

    A message without one, such as gcc's of an option that C++ does not have, is the same for every text with the same
    fingerprint.
    """
    return _MENTIONED.search(said) is not None


def _without_lines(text: bytes, reads: Reads) -> bytes | None:
    """The text without line numbers; None as in `read_part`."""
    text = b"\n" + text
    written: list[bytes] = []
    reader = _Reader()
    for part, included in _parts(text):
        bare = _included(part, reads) if included else reader.read(part)
        if bare is None:
            return None
        if bare:
            written.append(bare)
            if included:
                reader = _Reader()
    return b"\n".join(written)


def _parts(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """The parts of a text in order: True for the text of one include, which other sources share, False for the source's
    own text."""
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


def _included(part: bytes, reads: Reads) -> bytes | None:
    """An included part without line numbers, or a digest of that where the part is long."""
    if len(part) < _WORTH_KEEPING:
        return reads(part)
    digest = blake3(part).digest()
    with _workers.held():
        known = _known.get(digest)
        if known is None:
            bare = reads(part)
            known = _SEES_LINES if bare is None else bare and b"# included " + blake3(bare).hexdigest().encode()
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[digest] = known
    return None if known is _SEES_LINES else known


def _marked(part: bytes) -> bytes | None:
    """A part with a mark behind each newline in a raw string, where no line may be left out; None where a string may
    have another end than the one that is found, or a line that looks like a marker."""
    written: list[bytes] = []
    begin = 0
    while string := _RAW.search(part, begin):
        opened = _DELIMITER.match(part, string.end())
        end = part.find(b')%b"' % opened[1], opened.end()) if opened else -1
        if opened is None or end < 0 or _RAW.search(part, opened.end(), end):
            return None
        content = part[opened.end() : end]
        if _MARKER in content:
            return None
        written += part[begin : opened.end()], content.replace(b"\n", b"\n\1")
        written.append(part[end : (begin := end + len(opened[1]) + 2)])
    return b"".join((*written, part[begin:]))


class _Reader:
    """Removes the line numbers from one part after another."""

    def __init__(self) -> None:
        self._markers: dict[bytes, tuple[bytes, bytes]] = {}
        self._file = self._place = b""
        self._last = -1

    def read(self, part: bytes) -> bytes | None:
        """Read a part that begins with the newline before a marker; None as in `read_part`."""
        if any(word in part for word in _SEES):
            if _SEES_SURELY.search(part) or (marked := _marked(part)) is None:
                return None
            part = marked
        first, *pieces = part.split(_MARKER)
        known, file, place, last = self._markers, self._file, self._place, self._last
        written = [_EMPTY.sub(b"\n", first.strip(b"\n"))] if first.strip() else []
        for piece in pieces:
            marker, _, text = piece.partition(b"\n")
            number, _, rest = marker.partition(b" ")
            found = known.get(rest)
            if not number.isdigit() or len(number) > _MOST_DIGITS:
                return None
            if found is None:
                if not rest.startswith(_QUOTE):
                    return None
                name, _, flags = rest.rpartition(_QUOTE)
                # Flags 1 and 2 say that a file begins or goes on, 3 and 4 how it is read: without warnings, as C.
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
