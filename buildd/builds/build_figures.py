"""Figures of the foreign builds whose compiles came to the daemon: hits, misses, and calls that were passed through.

Plain values that grow; other modules count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from protocol import messages as m
from protocol.described import described

_NOTE_EVERY_NS = 400_000_000
"""A little less than between two events of progress."""


@dataclass(slots=True)
class Figures:
    """Figures of the compiles of one build: `protocol.messages.BuildFigures` while it grows."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    passed_through: dict[str, int] = field(default_factory=dict)
    holding_paths: int = 0
    unmappable: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    unkept: str = ""

    noted_ns: int = 0
    """When the memory of jobs was last noted for this build."""

    def is_due(self, now_ns: int) -> bool:
        """Whether to note the memory of jobs now: once for all compiles of the build."""
        if now_ns - self.noted_ns < _NOTE_EVERY_NS:
            return False
        self.noted_ns = now_ns
        return True

    def count_missed(self, kind: str, elsewhere: str) -> None:
        self.missed[kind] = self.missed.get(kind, 0) + 1
        if elsewhere:
            self.elsewhere[elsewhere] = self.elsewhere.get(elsewhere, 0) + 1

    def count_passed_through(self, reason: str) -> None:
        self.passed_through[reason] = self.passed_through.get(reason, 0) + 1

    def add(self, other: Figures | m.BuildFigures) -> None:
        self.hits += other.hits
        self.misses += other.misses
        self.failures += other.failures
        self.saved_s += other.saved_s
        self.holding_paths += other.holding_paths
        self.unmappable += other.unmappable
        self.cancelled += other.cancelled
        self.unkept = other.unkept or self.unkept
        for mine, its in (
            (self.passed_through, other.passed_through),
            (self.missed, other.missed),
            (self.elsewhere, other.elsewhere),
        ):
            for name, number in its.items():
                mine[name] = mine.get(name, 0) + number

    def frozen(self) -> m.BuildFigures:
        return m.BuildFigures(
            hits=self.hits,
            misses=self.misses,
            failures=self.failures,
            saved_s=self.saved_s,
            passed_through=dict(self.passed_through),
            holding_paths=self.holding_paths,
            unmappable=self.unmappable,
            missed=dict(self.missed),
            elsewhere=dict(self.elsewhere),
            cancelled=self.cancelled,
            unkept=self.unkept,
        )


def encoded(builds: Mapping[m.BuildId, Figures]) -> bytes:
    """Figures of builds, for the daemon that follows this one."""
    return msgspec.msgpack.encode({name: figures.frozen() for name, figures in list(builds.items())})


def decoded(record: bytes | None) -> dict[m.BuildId, Figures]:
    """The figures that `encoded` wrote; none where the record is damaged."""
    try:
        found = msgspec.msgpack.decode(record or b"", type=described(dict[str, m.BuildFigures]))
    except (msgspec.MsgspecError, ValueError):
        return {}
    return {m.BuildId(name): Figures(**msgspec.structs.asdict(figures)) for name, figures in found.items()}
