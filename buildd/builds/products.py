"""Results of jobs, for the requests that wait for them: files, the tool's output and inputs, or why the job failed.

Plain values; they know neither requests nor the places of the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from buildd.keys.depfiles import Listing
from buildd.processes.launch import Exit
from protocol import messages as m
from protocol.described import described

INTERNAL_FAULT = (
    "the daemon failed; its log has the story",
    "build again; buildd doctor --bundle makes a report of it",
)
"""Message and next step of a failure of buildd's own."""
HIT = m.JobId(0)
"""Job id in events about actions that did not run."""


@dataclass(frozen=True, slots=True)
class Product:
    """A file that an action of the request has made."""

    digest: m.Digest
    size_bytes: int
    executable: bool


def recorded(products: Iterable[Product]) -> bytes:
    """The record that replaces files of which only the digests are kept."""
    return msgspec.json.encode(list(products))


def recalled(record: bytes) -> list[Product]:
    """The files that a record replaces."""
    return msgspec.json.decode(record, type=described(list[Product]))


@dataclass(frozen=True, slots=True)
class Made:
    """A file in a job's private folder, and its digest. The file may be missing where no other job reads it."""

    path: str
    file: Path
    product: Product


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job that ended well leaves to each of its followers."""

    made: tuple[Made, ...]
    exit: Exit
    read: tuple[str, ...] | None
    """The files that its tool said it read, as it spelled them; None where it said nothing."""
    note: str = ""
    began_ns: int = 0
    """When its tool was started, by the file system's clock."""
    node: str = ""
    """The machine of a cluster that it ran on; empty for this one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an action failed, and how its tool ended where one ran."""

    kind: m.FailureKind
    message: str
    next_step: str = ""
    exit: Exit | None = None
    read: tuple[str, ...] | None = None
    """The files that a tool says it read before it found a mistake in them; None where it does not say."""
    listing: Listing | None = None
    """Those that its own depfile lists; None where that is all of them."""
    left: str = ""
    """The file that only the caller of the tool can read: the tool did not fail, but the caller has to run it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a build and the daemon's jobs do at one moment: see `protocol.events.Progress`."""

    running: int = 0
    waiting_for: str = ""
    eta_s: float = 0.0
    to_run: int = 0
    memory_bytes: int = 0
    budget_bytes: int = 0


@dataclass(slots=True)
class Counts:
    """Figures for the summary. `stood` are the hits that were not looked up, because nothing of theirs had changed.
    `saved_s` is the time that the jobs of those hits took whose outputs did not lie in their places already."""

    done: int = 0
    hits: int = 0
    stood: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    unkept: str = ""
    """Why the store takes no results; empty if it does."""
