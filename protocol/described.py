"""Makes msgspec's description of a struct class in one thread at a time.

msgspec puts the description on the class when it first decodes into it, before the description is complete. A second
thread then uses the incomplete one, and the process dies of SIGSEGV (seen with msgspec 0.22). So a struct that may
first be decoded in two threads goes through `described`; a decoder made at import does not need it.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_described: set[Any] = set()
_lock = threading.Lock()


def described(kind: T) -> T:
    """Prepare `kind`, a type to decode into, for use in any thread, and return it."""
    if kind not in _described:
        with _lock:
            msgspec.msgpack.Decoder(kind)
            _described.add(kind)
    return kind
