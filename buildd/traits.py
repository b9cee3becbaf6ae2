"""What a source text mentions that its own digest does not settle. PURE: bytes in, flags out."""

from __future__ import annotations

import re
from enum import IntFlag


class Traits(IntFlag):
    """What a text mentions that its own digest does not settle."""

    NONE = 0
    PATHS = 1
    """`__FILE__` or a relative: the path of an including or included file can reach the output."""
    ASSERT = 2
    """Calls assert(): the same once <assert.h> is used."""
    TIME = 4
    """`__DATE__` or `__TIME__`: the result depends on the clock."""
    EMBED = 8
    """`.incbin`, `.include` or `#embed`: reads files that no compiler lists."""
    HAS_INCLUDE = 16
    """Asks whether other files exist."""
    TIMESTAMP = 32
    """`__TIMESTAMP__`: the result depends on the file's modification time, whatever SOURCE_DATE_EPOCH says."""


# A search for each of these takes a twentieth of the time of one for all of them at once; most files have none. Where
# the word alone does not tell, the pattern behind it does.
_WORDS: tuple[tuple[bytes, Traits, re.Pattern[bytes] | None], ...] = (
    (b"__BASE_FILE__", Traits.PATHS, None),
    (b"__builtin_FILE", Traits.PATHS, None),
    (b"source_location", Traits.PATHS, None),
    (b"__DATE__", Traits.TIME, None),
    (b"__TIME__", Traits.TIME, None),
    (b"__TIMESTAMP__", Traits.TIMESTAMP, None),
    (b".incbin", Traits.EMBED, None),
    (b".include", Traits.EMBED, re.compile(rb"\.include(?<=[\"\s;nt]\.include)(?=[\s\"\\])")),
    (b"embed", Traits.EMBED, re.compile(rb"(?:#|%:)(?:\s|\\\n)*embed\b")),
)
# Comments do not count for these: every other header has one that speaks of them.
_FILE = b"__FILE__"
_ASSERT = re.compile(rb"assert(?<![A-Za-z0-9_]assert)\s*\(")
# Not behind a quotation mark: what looks like a comment there may be part of a string.
_COMMENT = re.compile(rb"^([^\"\n]*?)(?:/\*.*?\*/|//[^\n]*)", re.DOTALL | re.MULTILINE)
_BINARY = (b"\x7fELF", b"!<arch>\n", b"gpch", b"BC\xc0\xde")
# assert's own definition is no use of it: what it expands to is the path of the file that calls it.
_ASSERT_DEFINITION = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+assert(?:_perror)?\b(?:\\\n|[^\n])*", re.MULTILINE)


def traits_of(content: bytes) -> Traits:
    """The traits of a source text; an object file, library, bitcode or precompiled header has none."""
    found = Traits.NONE
    if content.startswith(_BINARY):
        return found
    for word, trait, pattern in _WORDS:
        if word in content and (pattern is None or (pattern.search(content) and pattern.search(_bare(content)))):
            found |= trait
    if b"has_include" in content.lower():
        found |= Traits.HAS_INCLUDE
    if _FILE in content or _ASSERT.search(content):
        bare = _ASSERT_DEFINITION.sub(b"", _bare(content))
        if _FILE in bare:
            found |= Traits.PATHS
        if _ASSERT.search(bare):
            found |= Traits.ASSERT
    return found


def _bare(content: bytes) -> bytes:
    return _COMMENT.sub(rb"\1 ", content)
