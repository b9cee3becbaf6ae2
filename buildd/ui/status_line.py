"""A status line below the output of a program that writes to the terminal as if it were alone.

Takes the program's bytes and gives back the bytes for the terminal: the program's own, unchanged and in their order,
and between them those that draw and remove the line. Whenever the terminal reads a byte of the program's, the line is
not there, and the cursor is where the program left it. The line appears only where `AppendState` finds room for it.
Knows no clock, no file, and nothing of what the line says.
"""

from __future__ import annotations

from buildd.ui.append_state import AppendState, Room

_SAVE, _RESTORE, _PLAIN = b"\x1b7", b"\x1b8", b"\x1b[0m"
_ROOM_BELOW = b"\x1bD\x1b[A"
"""Index, up: on the last row this scrolls by one line, and the column stays."""
_DOWN = b"\x1b[B\r"
_CLEAR = b"\x1b[J"
"""Not only the line: after a resize it may have become two."""


class StatusLine:
    """The line and the stream above it.

    Args:
        columns: of the terminal.
        style: parameters of the line's SGR sequence; empty for none.
    """

    def __init__(self, columns: int, style: str = "") -> None:
        self.columns = columns
        self._style = f"\x1b[{style}m".encode() if style else b""
        self._state = AppendState()
        self._drawn = Room.NONE
        self._text = b""

    def resize(self, columns: int) -> bytes:
        """Bytes that remove the line, for a terminal that has so many columns from now on."""
        removed = self.remove()
        self._state.resize(self.columns)
        self.columns = columns
        return removed

    @property
    def is_drawn(self) -> bool:
        return self._drawn is not Room.NONE

    def pass_on(self, data: bytes, *, quietly: bool = False) -> bytes:
        """Bytes for the terminal: the program's next ones, with the line below them if there is room.

        Args:
            quietly: without the line.
        """
        removed = self.remove()
        self._state.take(data)
        return removed + data + (b"" if quietly else self._draw())

    def show(self, text: str) -> bytes:
        """Bytes that make the line say this; an empty text removes it.

        Args:
            text: characters other than ASCII become "?", since their width is the terminal's own affair.
        """
        line = text.encode("ascii", "replace")[: max(0, self.columns - 1)]
        if line == self._text and self.is_drawn:
            return b""
        self._text = line
        return self.remove() + self._draw()

    def remove(self) -> bytes:
        """Bytes that remove the line until `pass_on` or `show`."""
        drawn, self._drawn = self._drawn, Room.NONE
        if drawn is Room.NONE:
            return b""
        # The user may have typed a line feed meanwhile: the cursor is on the line then, and all of it has to go.
        there = _DOWN if drawn is Room.EDGE else b""
        return _SAVE + _PLAIN + there + _CLEAR + _RESTORE

    def _draw(self) -> bytes:
        room = self._state.room(self.columns) if self._text else Room.NONE
        self._drawn = room
        if room is Room.NONE:
            return b""
        there = (b"", b"") if room is Room.HERE else (_ROOM_BELOW, _DOWN)
        return there[0] + _SAVE + there[1] + _PLAIN + self._style + self._text + _RESTORE
