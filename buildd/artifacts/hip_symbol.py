"""The symbol of an object of HIP that is named after the module's id.

Knows enough of ELF to find the table with the names of the object's own symbols: the device code in the object has such
a symbol, too, and a hash of its name.
"""

from __future__ import annotations

import re
import struct

from codegen.steps.module_ids import HIP_DIGITS, HIP_SYMBOL, ModuleIds

_NAME = re.compile(rb"(?<=\0)%b[0-9a-f]{%d,16}(?=\0)" % (HIP_SYMBOL.encode(), HIP_DIGITS))
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_IDENT = b"\x7fELF\x02\x01"
_SYMTAB = 2


def shown(made: bytes, ids: ModuleIds) -> bytes | None:
    """The object, whose symbol is named after the shared id itself, as clang names it after the id's digest; None where
    the symbol is not found. Older clangs give no symbol."""
    return renamed(made, ids.shared) if HIP_SYMBOL.encode() in made else made


def renamed(made: bytes, begins: bytes) -> bytes | None:
    """The object, whose symbol's name begins with other digits; None where it has no such symbol, or several.

    Args:
        begins: HIP_SYMBOL and HIP_DIGITS digits.
    """
    try:
        start, end = _names(made)
    except (struct.error, ValueError):
        return None
    found = [match.start() for match in _NAME.finditer(made, start, end)]
    if len(found) != 1:
        return None
    return made[: found[0]] + begins + made[found[0] + len(begins) :]


def _names(made: bytes) -> tuple[int, int]:
    """Where the names of the symbols begin and end. Raises struct.error, ValueError."""
    ident, *_, start, _, _, _, _, size, count, _ = _HEADER.unpack_from(made)
    if ident[:6] != _IDENT or size != _SECTION.size:
        raise ValueError("not an object for 64 bits")
    sections = [_SECTION.unpack_from(made, start + index * size) for index in range(count)]
    (link,) = (section[6] for section in sections if section[1] == _SYMTAB)
    if link >= count:
        raise ValueError("no names")
    offset, length = sections[link][4:6]
    return offset, min(offset + length, len(made))
