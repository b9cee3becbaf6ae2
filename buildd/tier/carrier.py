"""What carries the tier's objects: something that gets and puts bytes by name, within a time.

Knows no record. `carriers` opens one by URL: a folder, HTTP, buckets, gRPC, or a storage helper of ccache's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MAX_OBJECT_BYTES = 256 << 20
"""Larger objects are neither put nor taken: they pass through this process's memory."""


class ObjectKind(Enum):
    """The two kinds of objects; the value is the folder that Bazel's caches have for them."""

    CONTENT = "cas"
    """Named by the SHA-256 of its bytes."""
    RECORDS = "ac"
    """Named by the SHA-256 of what it is about."""


class Content(NamedTuple):
    """An object of `cas/`: its name and its size."""

    name: str
    size_bytes: int


class Trouble(Enum):
    """Why a carrier did not do what it was asked for."""

    UNREACHABLE = "cannot be reached"
    SLOW = "took too long"
    RIGHTS = "refuses access"
    FULL = "has no room"
    ODD = "answered something odd"


class CarrierError(Exception):
    """A carrier failed; nothing is wrong with what it was asked for."""

    def __init__(self, trouble: Trouble, detail: str = "") -> None:
        super().__init__(f"{trouble.value}: {detail}" if detail else trouble.value)
        self.trouble = trouble
        self.detail = detail


class LargeObject(CarrierError):
    """An object is larger than the caller takes."""

    def __init__(self) -> None:
        super().__init__(Trouble.ODD, "an object is larger than allowed")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an operation may take.

    Args:
        silence_s: the longest time without a byte from the other side.
        until_s: the end, by the monotonic clock.
    """

    silence_s: float
    until_s: float

    def left_s(self) -> float:
        """How long it may stay silent now. Raises `CarrierError` when the time is up."""
        left = min(self.silence_s, self.until_s - time.monotonic())
        if left <= 0:
            raise CarrierError(Trouble.SLOW)
        return left


def for_up_to(seconds: float, silence_s: float) -> Patience:
    """Patience from now on."""
    return Patience(silence_s, time.monotonic() + seconds)


class Carrier(ABC):
    """A place of objects. Every method may be called from any thread; each raises `CarrierError` alone."""

    words = ""
    """What kind of place it is, for people."""
    has_batches = False
    """Whether several objects of `cas/` take one round trip; if not, a caller asks for them in threads of its own."""

    @abstractmethod
    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        """The object's bytes, as the place gives them; None where there is none.

        Args:
            name: 64 hexadecimal digits.
            most_bytes: a larger object raises `LargeObject`, and no more of it is kept in memory.
            size_bytes: of an object of `cas/`. Some places know it by name and size, and have none without the size.
        """

    @abstractmethod
    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        """Put an object in place of the one of this name. A reader sees the old bytes or the new ones."""

    def get_contents(self, wanted: Sequence[Content], patience: Patience) -> list[bytes | None]:
        """Several objects of `cas/`, each as `get` gives it."""
        return [self.get(ObjectKind.CONTENT, one.name, patience, size_bytes=one.size_bytes) for one in wanted]

    def put_contents(self, objects: Sequence[tuple[str, bytes]], patience: Patience) -> None:
        """Put several objects of `cas/` by their names. Those that are there need not be put again."""
        for name, data in objects:
            self.put(ObjectKind.CONTENT, name, data, patience)

    def describe(self, patience: Patience) -> str:
        """What the place says of itself, for people; empty where it says nothing."""
        return ""

    def close(self) -> None:
        """End what is under way."""
        return None
