"""What a job leaves to those who wait for it: files that were made and what its tool said and read, or why it failed.

Plain values; knows neither who waits nor where the files go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from buildd.launch import Exit
from protocol import messages as m


@dataclass(frozen=True, slots=True)
class Product:
    """A file that an action of this request has made."""

    digest: m.Digest
    size_bytes: int
    executable: bool


def recorded(products: Iterable[Product]) -> bytes:
    """What stands for files of which only the digests are kept."""
    return msgspec.json.encode(list(products))


def recalled(record: bytes) -> list[Product]:
    """The files that a record stands for."""
    return msgspec.json.decode(record, type=list[Product])


@dataclass(frozen=True, slots=True)
class Made:
    """A file in a job's private folder and what it is. One that no other job reads may not be there."""

    path: str
    file: Path
    product: Product


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job that ended well leaves to each who follows it."""

    made: tuple[Made, ...]
    exit: Exit
    read: tuple[str, ...] | None
    """The files that its tool said it read, as it spelled them; None where it said nothing."""
    note: str = ""
    began_ns: int = 0
    """When its tool was started, by the file system's clock."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an action failed, and how its tool ended where one ran."""

    kind: m.FailureKind
    message: str
    next_step: str = ""
    exit: Exit | None = None
