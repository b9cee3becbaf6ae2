"""Views, which consume a build's events, and the writer of their text.

Knows no event in particular; `narrator` words them. `Writer` is the only place that touches a stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol, TextIO

import msgspec

from buildd.ui.text import Line
from protocol.messages import Event


class View(Protocol):
    """Shows a build. `event` is called in order from one thread, `close` once, also after an error."""

    def event(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Writer:
    """Writes to a stream that may go away: `buildd build | head` must still build.

    Args:
        stream: where to write; its encoding need not be UTF-8.
        colour: whether styles may become SGR sequences.
    """

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.stream = stream
        self.colour = colour
        self.gone = False
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A latin-1 locale must show "\u2026", not end the build with a UnicodeEncodeError.
            reconfigure(errors="backslashreplace")

    def lines(self, lines: Iterable[Line]) -> None:
        self.write("".join([line.encoded(self.colour) for line in lines]))

    def write(self, text: str) -> None:
        """Write and flush; do nothing once the reader is gone."""
        if self.gone or not text:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (
            OSError
        ):  # EPIPE: the reader left. EIO: the terminal hung up. ENOSPC: the disk of the log is full, not the store's.
            self.gone = True
            silence(self.stream)


def silence(stream: TextIO) -> None:
    """Point a stream whose reader is gone at /dev/null, so that the interpreter's last flush raises nothing.

    See "Note on SIGPIPE" in the documentation of Python's signal module.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class JsonView:
    """Every event as one JSON object a line: the fields of `protocol.messages.Event`, `body.type` names the body."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._encoder = msgspec.json.Encoder()

    def event(self, event: Event) -> None:
        self._writer.write(self._encoder.encode(event).decode() + "\n")

    def close(self) -> None:
        pass


class Several:
    """Sends the same events to several views."""

    def __init__(self, views: Iterable[View]) -> None:
        self._views = tuple(views)

    def event(self, event: Event) -> None:
        for view in self._views:
            view.event(event)

    def close(self) -> None:
        for view in self._views:
            view.close()
