"""msgspec's description of a struct class, made by one thread at a time.

msgspec writes the description on the class when it first decodes into it, and puts it there before it is finished. A
second thread that comes meanwhile uses what is not there yet, and the process dies of SIGSEGV (seen with msgspec 0.22).
So a struct that may first be decoded in two threads goes through `described`; a decoder made at import needs it not.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_described: set[Any] = set()
_lock = threading.Lock()


def described(kind: T) -> T:
    """`kind`, a type to decode into, ready for any thread."""
    if kind not in _described:
        with _lock:
            msgspec.msgpack.Decoder(kind)
            _described.add(kind)
    return kind
