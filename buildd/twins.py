"""What stands in the `BARE` twin of a file that a step has made: equal twins, equal use as far as a later step can see.

Knows what each kind of file has in it that may not matter. Which steps go by twins, and when not, is `inner`'s.
"""

from __future__ import annotations

from blake3 import blake3

from buildd import fatbin
from buildd.unlined import fingerprint
from codegen.step_kinds import BUNDLE_TEXT, BUNDLE_TWIN, Kind
from protocol.messages import Digest

_ARCHITECTURE = b"__CUDA_ARCH"
_NAMES = b"__PRETTY_FUNCTION__"
"""clang calls a lambda by its line there."""
NONE = b"none"
"""There is no twin: the file itself counts, and all flags of the step that reads it."""
NO_TWIN = Digest(blake3(NONE).hexdigest())


def of_text(kind: Kind, text: bytes, made_of: Digest | None, *, clang: bool = False) -> bytes:
    """The twin of a text.

    Args:
        kind: of the step that made it.
        made_of: key of what the step read, apart from what did not matter; None where it has no such key.
        clang: it will be compiled by clang.
    """
    match kind:
        case Kind.FATBINARY | Kind.FRAME:
            # Data to the host compiler; they can be exchanged in its object.
            frame = fatbin.frame(text)
            return _exactly(text) if frame is None else b"frame " + blake3(frame).hexdigest().encode()
        case Kind.CUDAFE | Kind.CICC if _ARCHITECTURE in text:
            return NONE  # its twin would be read by the host compile, which is filed without the architectures
        case Kind.CUDAFE if made_of is not None:
            # Long, and full of line markers. But the same is always made of the same.
            return b"made " + made_of.encode()
        case Kind.BUNDLE:
            return BUNDLE_TWIN if text.startswith(BUNDLE_TEXT) else _exactly(text)
        case Kind.PREPROCESS if clang and _NAMES in text:
            return _exactly(text)
        case _:
            return fingerprint(text)


def _exactly(text: bytes) -> bytes:
    return b"exactly " + blake3(text).hexdigest().encode()
