"""Equivalence digests of files that steps make: two files with equal digests are the same to every later step.

The digest is the content of the `BARE` file beside the step's file. This module knows which parts of each kind of file
may not matter. `step_results` decides which steps use equivalence digests, and when.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from blake3 import blake3

from buildd.artifacts import fatbin
from buildd.artifacts.line_free_text import BARE_TEXT, Reads, fingerprint, read_part
from codegen.steps.step_kinds import BUNDLE_EQUIVALENT, BUNDLES, StepKind
from protocol.messages import Digest

_ARCHITECTURE = b"__CUDA_ARCH"
_OF_SOURCE = (
    *(b"__PRETTY_FUNCTION__", b"__FUNCSIG__", b"__builtin_COLUMN", b"__builtin_LINE", b"source_location"),
    *(b"_Nonnull", b"_Nullable"),
)
"""clang puts a lambda's line and column into the first two. The preprocessor puts a macro's arguments into one line. Of
the last two clang warns in the source alone."""
_PRAGMA = re.compile(rb"#pragma ([^\n]*)")
"""As clang's preprocessor writes each."""
_KNOWN_PRAGMA = re.compile(
    rb"(GCC|clang) +(diagnostic|system_header)\b.*|GCC +visibility +(push *\( *(default|hidden) *\)|pop)"
    rb"|clang +force_cuda_host_device +(begin|end)|(push|pop)_macro\b.*|once"
    rb"|(GCC +)?((no)?unroll|unroll *\(? *\d+ *\)?)|clang +loop +unroll *\( *(enable|disable|full) *\)"
    rb"|STDC\b.*|omp\b.*|weak\b.*|ident\b.*|comment\b.*|optimize\b.*"
)
"""Pragmas in which clang replaces no macro after the preprocessor, and which have no warnings of their own."""
_NAMED_COUNT = re.compile(
    rb"(?:GCC +)?unroll *\(? *([A-Za-z_]\w*) *\)?|clang +loop +unroll_count *\( *([A-Za-z_]\w*) *\)"
)
NONE = b"none"
"""There is no equivalence digest: the file itself counts, and all flags of the step that reads it."""
NO_EQUIVALENCE = Digest(blake3(NONE).hexdigest())
DIFFERS = b"differs"
"""In place of an equivalence digest: clang may make something else of the text than of the source."""
DIFFERING = Digest(blake3(DIFFERS).hexdigest())


def of_text(
    kind: StepKind, text: bytes, made_of: Digest | None, *, differs: bool = False, reads: Reads = read_part
) -> bytes:
    """The equivalence digest of a text.

    Args:
        kind: kind of the step that made it.
        made_of: key of the step's inputs by their equivalence digests; None where it has no such key.
        differs: see `differs_from_source`.
        reads: see `fingerprint`.
    """
    match kind:
        case StepKind.FATBINARY | StepKind.FRAME:
            # The fatbin is data to the host compiler, and can be exchanged in its object.
            frame = fatbin.frame(text)
            return _exactly(text) if frame is None else b"frame " + blake3(frame).hexdigest().encode()
        case StepKind.CUDAFE | StepKind.CICC if _ARCHITECTURE in text:
            return NONE  # the host compile would read it, and that is filed without the architectures
        case StepKind.CUDAFE if made_of is not None:
            # The text is long and full of line markers. But equal inputs always make the same text.
            return b"made " + made_of.encode()
        case StepKind.BUNDLE:
            return BUNDLE_EQUIVALENT if text.startswith(BUNDLES) else _exactly(text)
        case StepKind.PREPROCESS if differs:
            return DIFFERS
        case _:
            return fingerprint(text, reads)


def differs_from_source(text: bytes, is_macro: Callable[[bytes], bool]) -> bool:
    """Whether clang may make something else of a preprocessed text than of the source: it computes with the places of
    tokens, which are other ones there, or replaces macros, which are gone.

    Args:
        is_macro: whether a name was one in the source.
    """
    if any(word in text for word in _OF_SOURCE):
        return True
    for pragma in {*map(bytes.strip, _PRAGMA.findall(text))}:
        named = _NAMED_COUNT.fullmatch(pragma)
        if is_macro(named[1] or named[2]) if named else _KNOWN_PRAGMA.fullmatch(pragma) is None:
            return True
    return False


def is_without_lines(equivalence: bytes) -> bool:
    """Whether nothing in a text with this equivalence digest sees its own line."""
    return equivalence.startswith(BARE_TEXT)


def _exactly(text: bytes) -> bytes:
    return b"exactly " + blake3(text).hexdigest().encode()
