"""Asks the daemon for an entry of the shared tier or for measurements, and tells it of new ones.

Runs in the user's own process: standard library only. The daemon listens on a socket in the store (`buildd.tier.door`),
if the user has named a tier; it fetches, checks and signs, and the entry is then in the store as any other one. Nothing
is believed of the daemon's answer: the caller looks in the store again. Without a daemon, or where it does not answer,
a program compiles as without a tier.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator

from .entries import Shelf

FOLDER, NAME = "tier", "programs"
"""The socket's place in a store."""
ANSWER_S = 2.0
"""A daemon that is well says within this time how long it will take."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0
"""A daemon that did not answer is left alone for so long; each further failure doubles the time."""
_MOST_S = 120.0
_MOST_ASKED = 1000
_LINE_BYTES = 64
_asked: dict[str, float] = {}
"""Places of entries that had to be compiled, by the time at which they were asked for."""


class _Pause:
    """While the daemon is left alone."""

    until_s = 0.0
    length_s = _FIRST_PAUSE_S


def fetch(shelf: Shelf, key: str, group: str) -> bool:
    """Whether the daemon has put an entry into the store that the shelf lacked. Raises OSError, ValueError."""
    place = f"{shelf.kind}/{shelf.name_of(key, group)}"
    now_s = time.monotonic()
    if now_s < _Pause.until_s:
        return False
    with _connected(shelf.store) as door:
        if door is None:
            return False
        try:
            found = _answer(door, {"get": place})
        except (OSError, ValueError):
            _Pause.until_s = time.monotonic() + _Pause.length_s
            _Pause.length_s = min(2 * _Pause.length_s, _LONGEST_PAUSE_S)
            raise
    _Pause.length_s = _FIRST_PAUSE_S
    if not found:
        if len(_asked) >= _MOST_ASKED:
            _asked.clear()
        _asked[place] = time.monotonic()
    return found


def offer(shelf: Shelf, key: str, group: str) -> None:
    """Tell the daemon of an entry that this process has made. Waits for nothing, and raises nothing."""
    with contextlib.suppress(OSError, ValueError):
        place = f"{shelf.kind}/{shelf.name_of(key, group)}"
        since_s = _asked.pop(place, None)
        seconds = time.monotonic() - since_s if since_s is not None else 0.0
        with _connected(shelf.store) as door:
            if door is not None:
                _send(door, {"made": place, "seconds": seconds})


def fetch_rows(store: str, gpu: str) -> bool | None:
    """Whether the daemon has put new measurements of a GPU model into a store; None where nobody listens there.

    Raises OSError, ValueError.
    """
    with _connected(store) as door:
        return None if door is None else _answer(door, {"rows": gpu})


def tell_measured(store: str) -> None:
    """Tell the daemon that a store has new measurements. Waits for nothing, and raises nothing."""
    with contextlib.suppress(OSError, ValueError), _connected(store) as door:
        if door is not None:
            _send(door, {"measured": True})


def _answer(door: socket.socket, question: dict[str, object]) -> bool:
    _send(door, question)
    line = b""
    while not line.endswith(b"\n"):
        line += _received(door)
        if len(line) > _LINE_BYTES:
            raise ValueError("the daemon answered something odd")
    door.settimeout(min(_MOST_S, max(0.0, float(line))) + ANSWER_S)
    return _received(door) == b"1"


def _send(door: socket.socket, message: dict[str, object]) -> None:
    door.sendall(json.dumps(message).encode() + b"\n")


def _received(door: socket.socket) -> bytes:
    byte = door.recv(1)
    if not byte:
        raise ConnectionError("the daemon has gone")
    return byte


@contextlib.contextmanager
def _connected(store: str) -> Iterator[socket.socket | None]:
    """The daemon's socket of a store; None where nobody listens."""
    try:
        folder = os.open(os.path.join(store, FOLDER), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.settimeout(ANSWER_S)
        try:
            # By its folder's descriptor: the path of a socket has room for 107 bytes.
            door.connect(f"/proc/self/fd/{folder}/{NAME}")
        except OSError:
            yield None
            return
        yield door
    finally:
        door.close()
        os.close(folder)
