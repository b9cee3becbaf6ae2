"""The rooms that a piece of work enters, and the calls between them: recorded while it runs, in every thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from tests.support.rooms import MODULES, ROOMS, room

_MODULE_OF = {str(path): name for name, path in MODULES.items()}
_LIBRARIES = ("codegen", "protocol")
"""Packages that count as one room each: their own rooms call each other only downwards."""


class Walk:
    """Records from `with` on, in threads that start after `prepare`.

    A *climb* is a call from a room into one that stands above it: the room calls a function that it was given.
    """

    def __init__(self) -> None:
        self.rooms: list[str] = []
        """In the order in which they were entered."""
        self.calls: dict[tuple[str, str], set[str]] = {}
        """Caller's room and called room -> names of the called functions."""
        self._records = False

    def prepare(self) -> None:
        """Have threads that start from now on recorded too."""
        threading.setprofile(self._saw)

    @property
    def climbs(self) -> dict[tuple[str, str], set[str]]:
        return {pair: names for pair, names in self.calls.items() if _height(pair[1]) > _height(pair[0])}

    def __enter__(self) -> Walk:
        self._records = True
        sys.setprofile(self._saw)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records = False
        sys.setprofile(None)
        threading.setprofile(None)

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._records or (entered := _room_of(frame)) is None:
            return
        if entered not in self.rooms:
            self.rooms.append(entered)
        before = frame.f_back
        while before is not None and (left := _room_of(before)) is None:
            before = before.f_back
        if before is not None and left is not None and left != entered:
            self.calls.setdefault((left, entered), set()).add(frame.f_code.co_qualname)


def _room_of(frame: FrameType) -> str | None:
    module = _MODULE_OF.get(frame.f_code.co_filename)
    if module is None:
        return None
    package = module.partition(".")[0]
    return package if package in _LIBRARIES else room(module)


def _height(name: str) -> int:
    return next(i for i, each in enumerate(ROOMS) if each == name or each.startswith(f"{name}."))
