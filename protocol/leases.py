"""The messages about leases of GPUs. SPEC.md is the document.

Knows no driver and no queue; `messages` exports these names too.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, NewType

import msgspec

from protocol.base import Message

LeaseId = NewType("LeaseId", str)
"""Chosen by the client, unique among its own."""
LeaseSeconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Lease(Message, frozen=True, tag="lease"):
    """Ask for a GPU alone. Answered by `Leased`, perhaps after a `LeaseWaits`, or by an `Error` with the `lease_id`."""

    lease_id: LeaseId
    gpu: str
    """UUID of a GPU, or of a part of a divided one (MIG)."""
    what: str = ""
    """What the lease is for, for people who wait."""
    limit_s: LeaseSeconds = 60.0
    """The daemon takes the lease back after so long: its holder may hang."""


class GiveBack(Message, frozen=True, tag="give_back"):
    """End a lease, or leave its queue. Answered by `LeaseEnded`."""

    lease_id: LeaseId


class LeaseEnd(Enum):
    """Why a lease ended."""

    GIVEN_BACK = "given_back"
    EXPIRED = "expired"
    """It was held for longer than its `limit_s`."""
    GPU_LOST = "gpu_lost"
    """The GPU fell off the bus, or was divided, meanwhile."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that uses a GPU, holds its lease, or waits for it."""

    pid: int
    what: str = ""
    """What its lease is for; else its command."""
    since_s: float = 0.0
    """For how long it has held the lease, or waited; 0 if unknown."""


class LeaseWaits(Message, frozen=True, tag="lease_waits"):
    """The GPU is not free: the processes that are before this client, the holder first if it is known."""

    lease_id: LeaseId
    ahead: tuple[GpuProcess, ...] = ()


class Leased(Message, frozen=True, tag="leased"):
    """The GPU is the client's, until it gives it back or a `LeaseEnded` comes."""

    lease_id: LeaseId
    waited_s: float = 0.0
    beside: tuple[GpuProcess, ...] = ()
    """Processes that compute there without a lease."""


class LeaseEnded(Message, frozen=True, tag="lease_ended"):
    """The lease is over. What was timed in a lease that was not given back does not count."""

    lease_id: LeaseId
    reason: LeaseEnd
    beside: tuple[GpuProcess, ...] = ()
    """Processes that computed there without a lease, at its begin or since."""


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that is leased, or waited for."""

    gpu: str
    holder: GpuProcess | None = None
    waiting: tuple[GpuProcess, ...] = ()
    """In their order; processes without this daemon come last."""
    beside: tuple[GpuProcess, ...] = ()
    """Processes that compute there without a lease."""
