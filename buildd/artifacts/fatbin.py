"""The fatbin in an object: device code, which is mere data to the host compiler and can be exchanged.

Knows the text in which `fatbinary` and clang give it to the host compiler, and enough of ELF to exchange one section
with the layout that the assembler would have chosen. Knows no step. An object with any unusual trait is left alone: the
functions return None.
"""

from __future__ import annotations

import array
import re
import struct
import sys
from dataclasses import dataclass

from codegen.steps.step_kinds import BUNDLE_TEXT, BUNDLES

_BEFORE = b'".section .nv_fatbin, \\"a\\"\\n"\n".align 8\\n"\n"fatbinData:\\n"\n'
_AFTER = b'".text\\n");\n'
_DATA = re.compile(rb'(?:"\.quad 0x[0-9a-f]{16}(?:, ?0x[0-9a-f]{16})*\\n"\n)+')
_NUMBER = re.compile(rb"0x([0-9a-f]{16})")
_COUNT = re.compile(rb"\bfatbinData\[\d+\]")

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _INDICES = 1, 2, 4, 8, 9, 18
_ALLOC = 2
_MOST_ALIGN = 1 << 16
_PLACES = {b".nv_fatbin": 8, b".hip_fatbin": 4096}
"""Section that holds a fatbin -> its alignment."""


def frame(text: bytes) -> bytes | None:
    """The text that `fatbinary` wrote, without the data and their size."""
    parts = _parts(text)
    return None if parts is None else parts[0] + parts[2]


def data(text: bytes) -> bytes | None:
    """The data that `fatbinary` or clang's bundler wrote; the bundler's end with a zero byte in the object (in that of
    older clangs, see `exchanged`)."""
    if text.startswith(BUNDLES):
        return text + b"\0"
    parts = _parts(text)
    if parts is None or sys.byteorder != "little":
        return None
    numbers = array.array("Q", bytes.fromhex(b"".join(_NUMBER.findall(parts[1])).decode()))
    numbers.byteswap()
    return numbers.tobytes()


def _parts(text: bytes) -> tuple[bytes, bytes, bytes] | None:
    before, found, rest = text.partition(_BEFORE)
    numbers, ended, after = rest.rpartition(_AFTER)
    after, counts = _COUNT.subn(b"fatbinData[]", after)
    if not (found and ended) or counts != 1 or _BEFORE in rest or not _DATA.fullmatch(numbers):
        return None
    return before + found, numbers, ended + after


@dataclass(frozen=True, slots=True)
class _Section:
    index: int
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def end(self) -> int:
        return self.offset + (0 if self.type == _NOBITS else self.size)


def exchanged(made: bytes, fatbin: bytes) -> bytes | None:
    """The object with another fatbin, byte for byte as if it had been compiled with that one.

    Clang puts no fatbin into the object of a source without kernels and device variables: it stays as it is.
    """
    try:
        sections, place = _sections(made)
        if place is None:
            return made if fatbin.startswith(BUNDLES) and BUNDLE_TEXT not in made else None
        _check(made, sections, place)
        old = made[place.offset : place.end]
        if _laid_out(made, sections, place, old) != made:
            return None
        # clang 21 puts no zero byte behind a bundle.
        return _laid_out(made, sections, place, fatbin[:-1] if old == BUNDLE_TEXT else fatbin)
    except (struct.error, ValueError, IndexError):
        return None


def _sections(made: bytes) -> tuple[list[_Section], _Section | None]:
    """All sections, and the fatbin's. Raises ValueError if there are several, or the object is unusual."""
    ident, kind, _, _, _, programs, start, _, _, _, programs_n, size, count, names_index = _HEADER.unpack_from(made)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or programs or programs_n or size != _SECTION.size:
        raise ValueError("not an object")
    if len(made) != start + count * size or not 0 < names_index < count:
        raise ValueError("not as the assembler writes it")
    sections = [_Section(index, *_SECTION.unpack_from(made, start + index * size)) for index in range(count)]
    text = made[sections[names_index].offset : sections[names_index].end]
    names = [text[section.name : text.find(b"\0", section.name)] for section in sections]
    if any(name.startswith((b".gnu.lto", b".debug", b".zdebug")) for name in names):
        raise ValueError("the fatbin may be in it once more")
    found = [section for section, name in zip(sections, names, strict=True) if name in _PLACES]
    if not found:
        return sections, None
    if len(found) > 1:
        raise ValueError("several fatbins")
    place = found[0]
    if (place.type, place.flags, place.align) != (_PROGBITS, _ALLOC, _PLACES[names[place.index]]):
        raise ValueError("an unusual fatbin")
    return sections, place


def _check(made: bytes, sections: list[_Section], place: _Section) -> None:
    """Raise ValueError if something in the object refers to more of the fatbin than its beginning."""
    for section in sections:
        if section.align > _MOST_ALIGN:
            raise ValueError("an unusual alignment")
        if section.type == _INDICES or (section.type in (_REL, _RELA) and section.info == place.index):
            raise ValueError("relocations in the fatbin")
        if section.type == _SYMTAB:
            for _, _, _, index, value, size in _SYMBOL.iter_unpack(made[section.offset : section.end]):
                if index == place.index and (value or size):
                    raise ValueError("a name for a part of the fatbin")


def _laid_out(made: bytes, sections: list[_Section], place: _Section, fatbin: bytes) -> bytes:
    """The object with that fatbin: the sections behind it move, in their order and with their alignment."""
    out = bytearray(made[: place.offset])
    offsets = {place.index: place.offset}
    out += fatbin
    later = [s for s in sections if s.index and s.index != place.index and (s.offset, s.end) >= (place.end, place.end)]
    for section in sorted(later, key=lambda s: (s.offset, s.end)):
        out += bytes(-len(out) % max(1, section.align))
        offsets[section.index] = len(out)
        out += made[section.offset : section.end]
    out += bytes(-len(out) % 8)
    start = len(out)
    for s in sections:
        size = len(fatbin) if s is place else s.size
        offset = offsets.get(s.index, s.offset)
        out += _SECTION.pack(s.name, s.type, s.flags, s.address, offset, size, s.link, s.info, s.align, s.entry)
    struct.pack_into("<Q", out, 40, start)
    return bytes(out)
