"""Traits of a source text: things that it mentions and that its digest does not settle. PURE: bytes in, flags out."""

from __future__ import annotations

import re
from enum import IntFlag

from buildd.files.pasted_words import CLOCK, pasted_words


class Traits(IntFlag):
    """Things that a text mentions and that its own digest does not settle."""

    NONE = 0
    PATHS = 1
    """`__FILE__` or a relative: the path of an including or included file can reach the output."""
    ASSERT = 2
    """Calls assert(), which puts the path into the output once <assert.h> is included."""
    TIME = 4
    """`__DATE__` or `__TIME__`: the result depends on the clock."""
    EMBED = 8
    """`.incbin`, `.include` or `#embed`: reads files that no compiler lists."""
    HAS_INCLUDE = 16
    """`__has_include` and the like: asks whether other files exist. An include of a name with `..` in it does, too: its
    file may have been found elsewhere than beside."""
    TIMESTAMP = 32
    """`__TIMESTAMP__`: the result depends on the file's modification time, whatever SOURCE_DATE_EPOCH says."""
    PROCESS = 64
    """Includes, embeds or asks for a path below /dev or /proc, which is another file for each process."""
    PATHS_LATER = 128
    """Beside `PATHS`: not the preprocessor puts the path there, but the compiler."""
    TYPE_NAMES = 256
    """`__PRETTY_FUNCTION__`: clang names a lambda and a type without a name by its file and line."""
    SEARCHES = 512
    """`SEARCH_DIR`: as a linker's script, it has the linker search a folder that no option names."""
    THIN = 1024
    """An archive that only names its objects. No linker lists them."""
    VERSIONED = 2048
    """A raw string or a number like 1'0: where its comments are depends on the version of the language."""
    AGE = 4096
    """`#pragma GCC dependency`: the compiler warns if a file, which it lists nowhere, is newer."""
    PASTED = 8192
    """Parts of `__DATE__`, `__TIME__` or `__TIMESTAMP__`, of which `##` could make the word."""
    ONCE = 16384
    """`#pragma once`: a compiler may skip the file for another one that it has read (`keys.once_only`)."""
    IMPORT = 32768
    """`#import`, which does so for any file."""


_PROCESS = re.compile(rb"(?:include|include_next|import|embed|incbin)[\s\\(]*[\"<]/[/.]*(?:dev/(?!shm/)|proc/)")
_ABOVE = rb"((?:[^%b\n]*/)?\.\./[^%b\n]*)"
CLIMBING = re.compile(
    rb"(?:include(?:_next)?|import)[ \t]*(?:<%b>|\"%b\")" % (_ABOVE % (b">", b">"), _ABOVE % (b'"', b'"'))
)
"""An include of a name with `..` in it."""
# Searching for each word alone takes a twentieth of the time of one pattern for all of them; most files have none.
# Where the word alone does not decide, the pattern behind it does.
_WORDS: tuple[tuple[bytes, Traits, re.Pattern[bytes] | None], ...] = (
    (b"__BASE_FILE__", Traits.PATHS, None),
    (b"__builtin_FILE", Traits.PATHS | Traits.PATHS_LATER, None),
    (b"source_location", Traits.PATHS | Traits.PATHS_LATER, None),
    (b"__PRETTY_FUNCTION__", Traits.TYPE_NAMES, None),
    (b"__FUNCSIG__", Traits.TYPE_NAMES, None),
    (b"SEARCH_DIR", Traits.SEARCHES, re.compile(rb"\bSEARCH_DIR\s*\(")),
    (b"__DATE__", Traits.TIME, None),
    (b"__TIME__", Traits.TIME, None),
    (b"__TIMESTAMP__", Traits.TIMESTAMP, None),
    (b"/dev/", Traits.PROCESS, _PROCESS),
    (b"/proc/", Traits.PROCESS, _PROCESS),
    (b"dependency", Traits.AGE, re.compile(rb"\b(?:GCC|clang)(?:\s|\\\n)+dependency\b")),
    (b"embed", Traits.EMBED, re.compile(rb"(?:#|%:)(?:\s|\\\n)*embed\b")),
)
_ONCE = re.compile(rb"ragma\W+(?:[LUu8]+\W+)?once\b")
_IMPORT = re.compile(rb"(?:#|%:)(?:\s|\\\n|/\*.*?\*/)*import\b", re.DOTALL)
_INCLUDED = re.compile(rb"\.include(?<=[\"\s;:nt(,{]\.include)(?=[\s\"\\])(?!\s*=)")
"""The assembler's directive in a macro's argument, or in a string, where `\\n` or `\\t` may stand before it.
A member of that name is assigned."""
_ADJACENT = re.compile(rb"\"(?:\s|/\*[^*\n]*+\*/|//[^\n]*+\n)*+\"")
"""Between two strings, of which the compiler makes one."""
_BEGUN = rb"\.i(?:n(?:c(?:b|bi|l|lu|lud)?)?)?\""
_PARTED = re.compile(rb"%b[ \t]*[a-z_]|define\b[^\n]*%b|[a-z_)][ \t]*\"(?:incbin|include)\b" % (_BEGUN, _BEGUN))
"""A part of such a directive in a string, and a macro that may have the rest in another one."""
_SPLICE = re.compile(rb"\\(?<=[\w.]\\)[ \t]*\r?\n(?=[\w.])")
_PASTED = re.compile(rb"[ \t]*(?:##|%:%:)[ \t]*")
# For these, comments do not count: every other header mentions them in one.
_FILE = b"__FILE__"
_ASSERT = re.compile(rb"assert(?<![A-Za-z0-9_]assert)\s*\(")
# Not behind a quotation mark: text that looks like a comment there may be part of a string.
_COMMENT = re.compile(rb"^([^\"\n]*?)(?:/\*.*?\*/|//[^\n]*)", re.DOTALL | re.MULTILINE)
_BINARY = (b"\x7fELF", b"!<arch>\n", b"gpch", b"BC\xc0\xde")
# The definition of assert is no use of it: the macro expands to the path of the file that calls it.
_ASSERT_DEFINITION = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+assert(?:_perror)?\b(?:\\\n|[^\n])*", re.MULTILINE)


def traits_of(content: bytes) -> Traits:
    """The traits of a source text; an object file, library, bitcode or precompiled header has none."""
    found = Traits.NONE
    if content.startswith(b"!<thin>\n"):
        return Traits.THIN
    if content.startswith(_BINARY):
        return found
    if _SPLICE.search(content):
        content = _SPLICE.sub(b"", content)
    if pastes := b"##" in content or b"%:%:" in content:
        # A word that a definition makes of two literal parts counts, too.
        lines = [line for line in content.split(b"\n") if b"##" in line or b"%:%:" in line]
        content = b"\n".join((content, *(_PASTED.sub(b"", line) for line in lines)))
    for word, trait, pattern in _WORDS:
        if word in content and (pattern is None or (pattern.search(content) and pattern.search(_bare(content)))):
            found |= trait
    if pasted_words(content, pastes=pastes) and (words := pasted_words(_bare(content), pastes=pastes)):
        found |= Traits.NONE if words.isdisjoint(CLOCK) else Traits.PASTED
        found |= Traits.NONE if words <= CLOCK else Traits.PATHS | Traits.PATHS_LATER
    if b"once" in content and _ONCE.search(content):
        found |= Traits.ONCE
    if b"import" in content and _IMPORT.search(content):
        found |= Traits.IMPORT
    lower = content.lower()  # assemblers take directives in any case
    if _has_directive(lower) or (b"asm" in lower and _has_parts_of_directive(lower)):
        found |= Traits.EMBED
    if b"has_include" in lower or (b"../" in content and CLIMBING.search(content)):
        found |= Traits.HAS_INCLUDE
    if _FILE in content or _ASSERT.search(content):
        bare = _ASSERT_DEFINITION.sub(b"", _bare(content))
        if _FILE in bare:
            found |= Traits.PATHS
        if _ASSERT.search(bare):
            found |= Traits.ASSERT
    return found


def _has_directive(lower: bytes) -> bool:
    """Whether a text, in small letters, may have the assembler read another file."""
    if b".incbin" in lower:
        return True
    return b".include" in lower and bool(_INCLUDED.search(lower) and _INCLUDED.search(_bare(lower)))


def _has_parts_of_directive(lower: bytes) -> bool:
    """Whether strings of a text, in small letters, may hold such a directive in parts."""
    if (b".i" in lower or b'"inc' in lower) and _PARTED.search(lower):
        return True
    return _has_directive(_ADJACENT.sub(b"", lower))


def _bare(content: bytes) -> bytes:
    return _COMMENT.sub(rb"\1 ", content)
