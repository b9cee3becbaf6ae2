"""What the followers of a build are told: the base of the strategies that `ActiveBuild` is given.

Knows no build; each strategy knows its own.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from buildd.builds.products import Failure, Moment, Ran
from buildd.store.store import Result
from protocol import messages as m

Build = TypeVar("Build")
_PIECE_BYTES = 256 << 10


class Report(Generic[Build]):
    """Tells the followers of a build about it; this one tells nothing."""

    build: Build
    """Set by the build that this is given to."""

    tells_kernels = False
    """Whether a client may want to know what the kernels need."""
    is_of_steps = False
    """Whether the build's actions are the steps of one job of other requests (`step_request`)."""

    def tell_hit(self, index: int, result: Result) -> None:
        """An action's result was found."""

    def handed_over(self, index: int, ran: Ran) -> None:
        """An action's job has ended well, and its files are in their places."""

    def tell_would_run(self, index: int) -> None:
        """In a proof: an action's result was not found, so it would run."""

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        """An action failed, or its result could not be put in place."""

    def tell_progress(self, now: Moment) -> None:
        """How far the build is."""

    def tell_end(self, outcome: m.Outcome) -> None:
        """All actions have ended: say what a follower waits for before anything is written down."""

    def tell_done(self, outcome: m.Outcome, *, message: str = "") -> None:
        """Say the last event."""

    def keep_log(self) -> None:
        """Keep the events of the finished request for `buildd log`."""


def pieces(stream: str, data: bytes) -> list[m.ToolOutput]:
    """What a tool wrote, cut into events."""
    starts = range(0, len(data), _PIECE_BYTES)
    return [m.ToolOutput(stream=stream, data=data[start : start + _PIECE_BYTES]) for start in starts]
