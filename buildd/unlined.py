"""A preprocessed text as compilers see it that cannot see its line numbers: its parts, and the file of each.

Knows gcc's line markers, and which words let a text see where it stands. What a compiler's flags let it see is
`nvcc_steps`' business, and what it says on its way `stepwise`'s: there line numbers stand in every line.
"""

from __future__ import annotations

import re

from blake3 import blake3

_SEES = (b"_LINE", b"__builtin_COLUMN", b"source_location", b'R"')
"""Parts of texts that are left as they are. In the last one, a raw string, lines are no lines."""
_SEES_SURELY = re.compile(rb"__builtin_LINE|__builtin_COLUMN|source_location|__LINE__|R\"")
_MARKER = b"\n# "
_QUOTE = b'"'
_EMPTY = re.compile(rb"\n\n+")


def fingerprint(text: bytes) -> bytes:
    """Equal for two texts that differ only in line numbers and empty lines, where nothing in them can see these.

    Two parts of one line, between which the preprocessor named a system header, are not the same as two lines.
    """
    sees = any(word in text for word in _SEES) and _SEES_SURELY.search(text)
    bare = None if sees else _without_lines(text)
    return blake3(text).hexdigest().encode() if bare is None else b"bare " + blake3(bare).hexdigest().encode()


def _without_lines(text: bytes) -> bytes | None:
    """None where something looks like a marker and is none."""
    first, *pieces = (b"\n" + text).split(_MARKER)
    known: dict[bytes, tuple[bytes, bytes]] = {}
    written = [first]
    file = place = b""
    last = -1
    for piece in pieces:
        marker, _, part = piece.partition(b"\n")
        number, _, rest = marker.partition(b" ")
        found = known.get(rest)
        if found is None:
            if not (number.isdigit() and rest.startswith(_QUOTE)):
                return None
            name, _, flags = rest.rpartition(_QUOTE)
            # 1 and 2 say that a file begins or goes on; 3 and 4 how it is read: no warnings, as C.
            found = name, name + _QUOTE + b" ".join(flag for flag in flags.split() if flag not in (b"1", b"2"))
            known[rest] = found
        core = part.strip()
        if not core:
            continue
        line = int(number) + part.count(b"\n", 0, part.index(core[:1]))
        if found[1] != place:
            place = found[1]
            written.append(b"# " + place)
        if line == last and found[0] == file:
            written.append(b"# same line")
        file = found[0]
        written.append(core)
        last = line + core.count(b"\n")
    return _EMPTY.sub(b"\n", b"\n".join(written))
