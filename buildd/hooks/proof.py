"""Notes what a program would compile, for `buildd warm --prove -- COMMAND`, and refuses it.

Runs in the user's own process: standard library only. `call_notes` has the same notes for compiler calls.
"""

from __future__ import annotations

import json
import os

FOLDER = "BUILDD_PROVE"
"""The variable with the folder of notes."""
NEEDED = "needed.jsonl"


class NotCompiledError(RuntimeError):
    """A proof: nothing may be compiled."""


def is_on() -> bool:
    """Whether this run is a proof."""
    return os.path.isabs(os.environ.get(FOLDER, ""))


def note(what: str, name: str, why: str = "") -> None:
    """Note something that would be compiled. Raises OSError."""
    place = os.path.join(os.environ[FOLDER], NEEDED)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps([what, name, why]).encode() + b"\n")
    finally:
        os.close(descriptor)


def refuse(what: str, name: str) -> None:
    """Note it, and raise NotCompiledError."""
    note(what, name)
    raise NotCompiledError(f"buildd: {what} {name}: not compiled, because this run has to find everything in the cache")
