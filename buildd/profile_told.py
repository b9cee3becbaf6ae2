"""What `buildd profile` tells: each candidate, what was chosen of them, and the whole call. For people and `--json`.

Knows no work and no words.
"""

from __future__ import annotations

import msgspec


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate of a problem was built or measured, or not."""

    target: str
    problem: str
    candidate: str
    outcome: str
    """Of `profiles.Outcome`, or "built" where nothing was to be measured, or "not measured", or "skipped"."""
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    note: str = ""
    built: bool = False
    """It was compiled for this, not found."""
    began_s: float = 0.0
    """Its compile, from the beginning of the call; 0 where it was found."""
    cpu_s: float = 0.0
    """That its compile took, on all cores together."""
    ready_s: float = 0.0
    """Its library was there, from the beginning of the call."""
    measured_s: float = 0.0
    """It was measured, from the beginning of the call; 0 where it was not."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What a problem came to."""

    target: str
    problem: str
    candidate: str = ""
    """Empty where none is known to work."""
    time_us: float = 0.0
    """0: not measured, a guess."""
    gpu: str = ""
    known: bool = False
    """Nothing had to be measured."""
    tried: int = 0
    of: int = 0
    tflops: float = 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole call."""

    wall_s: float
    built: int
    hits: int
    measured: int
    measuring_s: float
    gpu_idle: float
    """Share of the GPUs' time, from the first candidate that was ready to the last that was measured."""
    gpu_unused: float
    """Share of the same time in which a candidate was ready and a GPU did not measure one. The rest of `gpu_idle` is
    time in which there was none to measure: compilers had not made it."""
    failed: int
    skipped: int = 0
    """Not compiled: what was measured is faster than they promise to be."""
    dropped: bool = False
    """The profiles were emptied meanwhile: what was measured is not kept."""


Told = Tried | Chosen
