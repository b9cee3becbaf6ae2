"""What clang-offload-bundler makes of device code, without a process that loads all of LLVM to put a header before it.

Trusts no version: a bundle is composed only where the same program, called with the same words, was seen to write just
that of what it was given then. Anything else of it is unknown here, and the program runs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from codegen.plan import Action, Argument, Place, Ref
from codegen.step_kinds import BUNDLE_TEXT, Kind
from protocol.messages import Digest

_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
_NOTHING = "-input=/dev/null"
_WORDS = re.compile(r"-type=o|-targets=[\w.,+:-]+|-bundle-align=[1-9]\d{0,6}|" + re.escape(_NOTHING))
_MOST_KNOWN = 256

Way = tuple[Digest, tuple[Argument, ...], tuple[tuple[str, str], ...]]
_proven: set[Way] = set()
"""Ways to call bundlers that wrote what `composed` says."""


def way_of(action: Action, tool: Digest) -> Way | None:
    """How a step calls it, apart from its files; None where that is no such step, or has words that are not known.

    Args:
        tool: digest of the step's tool.
    """
    if action.kind != Kind.BUNDLE.value:
        return None
    words = tuple(word for word in action.argv if not _is_file(word))
    if not all(isinstance(word, str) and _WORDS.fullmatch(word) for word in words[1:]):
        return None
    return tool, words, action.environment


def _is_file(word: Argument) -> bool:
    return isinstance(word, Ref) and word.place in (Place.INPUT, Place.OUTPUT)


def is_proven(way: Way) -> bool:
    return way in _proven


def prove(way: Way, parts: Sequence[bytes], made: bytes) -> None:
    """Tell what the program itself has made of these parts. A way that was proven and is no longer is forgotten."""
    if composed(way, parts) != made:
        _proven.discard(way)
    elif len(_proven) < _MOST_KNOWN:
        _proven.add(way)


def composed(way: Way, parts: Sequence[bytes]) -> bytes | None:
    """A bundle of an empty host part and the devices' code; None where the words do not fit the parts."""
    words = [word for word in way[1] if isinstance(word, str)]
    targets = _value(words, "-targets=").split(",")
    align = int(_value(words, "-bundle-align=") or "1")
    contents = [b""] * words.count(_NOTHING) + list(parts)
    if words.count(_NOTHING) != 1 or len(contents) != len(targets):
        return None
    head = bytearray(BUNDLE_TEXT + _COUNT.pack(len(targets)))
    names = [target.encode() for target in targets]
    end = len(head) + sum(_ENTRY.size + len(name) for name in names)
    body: list[tuple[int, bytes]] = []
    for name, content in zip(names, contents, strict=True):
        end += -end % align
        head += _ENTRY.pack(end, len(content), len(name)) + name
        body.append((end, content))
        end += len(content)
    for offset, content in body:
        if content:  # nothing is written for an empty part, no padding either
            head += bytes(offset - len(head)) + content
    return bytes(head)


def _value(words: Sequence[str], option: str) -> str:
    found = [word.removeprefix(option) for word in words if word.startswith(option)]
    return found[0] if len(found) == 1 else ""
