"""What a build's picture consists of: bars, steps, samples, lines; plain structs that a page gets as JSON.

Knows no event. `timeline` makes them. Seconds are after the build's beginning.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from buildd.web.critical_path import Link
from protocol import messages as m


class BarOutcome(Enum):
    """The state of a bar's job."""

    QUEUED = "queued"
    RUNNING = "running"
    BUILT = "built"
    FAILED = "failed"
    HIT = "hit"
    LOST = "lost"
    """The build ended before the job did."""


class StepBar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compile step below its job. Seconds after the job's start."""

    name: str
    start_s: float
    wall_s: float = 0.0
    peak_bytes: int = 0
    hit: bool = False


class Bar(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One action: a job, or a hit. Times are seconds after the build's beginning."""

    id: int
    name: str
    kind: str = ""
    outcome: BarOutcome = BarOutcome.QUEUED
    lane: str = ""
    queued_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    """0 while it runs."""
    expected_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    peak_bytes: int = 0
    saved_s: float = 0.0
    """If it is a hit: how long the job took when it ran."""
    output_bytes: int = 0
    kernels: int = 0
    reasons: tuple[str, ...] = ()
    after: str = ""
    steps: tuple[StepBar, ...] = ()
    message: str = ""
    command: str = ""
    revision: int = 0

    @property
    def has_ended(self) -> bool:
        return self.outcome not in (BarOutcome.QUEUED, BarOutcome.RUNNING)


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of jobs at one moment."""

    at_s: float
    used_bytes: int
    budget_bytes: int = 0
    waiting_for: str = ""
    revision: int = 0


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a tool, or a notice."""

    bar: int
    text: str
    severity: str = ""
    revision: int = 0


class GpuRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel's run on a GPU."""

    at_s: float
    wall_s: float
    gpu: str
    name: str
    outcome: str
    time_us: float = 0.0
    revision: int = 0


class Head(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The figures of the build."""

    began_ns: int = 0
    elapsed_s: float = 0.0
    ended: bool = False
    outcome: str = ""
    message: str = ""
    command: str = ""
    """The command of a `buildd run`."""
    targets: tuple[str, ...] = ()
    total: int = 0
    done: int = 0
    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    running: int = 0
    waiting_for: str = ""
    eta_s: float = 0.0
    peaks_only: bool = False
    """The memory was not measured over time: it is added up from the jobs' peaks."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since a revision; everything, if `full`."""

    picture: str
    """Id of the picture to which the revision belongs: another server, or the same build begun again, has another."""
    revision: int
    full: bool
    head: Head
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    samples: tuple[Sample, ...]
    said: tuple[Said, ...]
    measurements: tuple[GpuRun, ...]
    critical: tuple[Link, ...]
    programs: tuple[m.ProgramStart, ...]
