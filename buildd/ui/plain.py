"""A build as plain lines: for pipes, files, CI logs, and terminals without cursor movement.

Writes lines of hits in batches: ten thousand of them come within milliseconds.
"""

from __future__ import annotations

from buildd.ui.narrator import Narrator
from buildd.ui.text import Line
from buildd.ui.view import Writer
from protocol import messages
from protocol.messages import Event

_BATCH_LINES = 500


class PlainView:
    """Writes each event's lines at once; hits no later than the next other event."""

    def __init__(self, writer: Writer, narrator: Narrator) -> None:
        self.narrator = narrator
        self._writer = writer
        self._pending: list[Line] = []

    def event(self, event: Event) -> None:
        self._pending += self.narrator.event(event)
        if not isinstance(event.body, messages.CacheHit | messages.LogLine) or len(self._pending) > _BATCH_LINES:
            self._flush()

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self._writer.lines(pending)
