"""Offload bundles as clang-offload-bundler writes them, composed without a process that loads all of LLVM.

Trusts no version of the program: a bundle is composed only if the same program, called with the same words, was seen to
write exactly the bundle that `composed` predicts. In all other cases the program runs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from codegen.plan import Action, Argument, Place, Ref
from codegen.steps.step_kinds import BUNDLE_TEXT, PACKED_BUNDLE_TEXT, StepKind
from protocol.messages import Digest

_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
_NOTHING = "-input=/dev/null"
_WORDS = re.compile(r"-type=o|-targets=[\w.,+:-]+|-bundle-align=[1-9]\d{0,6}|" + re.escape(_NOTHING))
_MOST_KNOWN = 256

Way = tuple[Digest, tuple[Argument, ...], tuple[tuple[str, str], ...]]
_proven: set[Way] = set()
"""Ways to call bundlers whose output was what `composed` predicted."""


def way_of(action: Action, tool: Digest) -> Way | None:
    """How a step calls the bundler, apart from its files; None for other steps, and for unknown words.

    Args:
        tool: digest of the step's tool.
    """
    if action.kind != StepKind.BUNDLE.value:
        return None
    words = tuple(word for word in action.argv if not _is_file(word))
    if not all(isinstance(word, str) and _WORDS.fullmatch(word) for word in words[1:]):
        return None
    return tool, words, action.environment


def _is_file(word: Argument) -> bool:
    return isinstance(word, Ref) and word.place in (Place.INPUT, Place.OUTPUT)


def is_proven(way: Way) -> bool:
    """Whether `composed` may replace the program for this way of calling it."""
    return way in _proven


def prove(way: Way, parts: Sequence[bytes], made: bytes) -> None:
    """Compare the program's own output for these parts with `composed`; the way is proven if they are equal."""
    if composed(way, parts) != made:
        _proven.discard(way)
    elif len(_proven) < _MOST_KNOWN:
        _proven.add(way)


def is_packed(made: bytes) -> bool:
    """Whether an object has compressed device code (`--offload-compress`), in which nothing is found."""
    return PACKED_BUNDLE_TEXT in made


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
        if content:  # the program writes nothing for an empty part, not even padding
            head += bytes(offset - len(head)) + content
    return bytes(head)


def _value(words: Sequence[str], option: str) -> str:
    found = [word.removeprefix(option) for word in words if word.startswith(option)]
    return found[0] if len(found) == 1 else ""
