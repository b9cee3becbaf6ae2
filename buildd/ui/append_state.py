"""Whether a terminal has room for a status line: whether its cursor stands behind everything that was written.

Reads the bytes of a stream and keeps where they leave the cursor, as far as that question needs. In doubt the answer is
no. Knows no terminal, and changes no byte. Sources: ECMA-48; XTerm Control Sequences.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

_UNKNOWN: Final = 1 << 30
"""The end of a line whose content is unknown."""
_TAB: Final = 8
_MOST_PENDING: Final = 4096
"""Bytes of an incomplete sequence that are kept; no terminal takes longer ones seriously, apart from pictures."""

_TOKEN = re.compile(
    rb"(?P<text>[\x20-\x7e]+)"
    rb"|(?P<wide>(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})+)"
    rb"|\x1b\[(?P<parameters>[\x30-\x3f]*)(?P<between>[\x20-\x2f]*)(?P<final>[\x40-\x7e])"
    rb"|(?P<string>\x1b[\]PX^_][^\x07\x1b\x18\x1a]*(?:\x07|\x1b\\|\x18|\x1a))"
    rb"|\x1b(?P<charset>[\x20-\x2f]+[\x30-\x7e])"
    rb"|\x1b(?P<escape>[\x30-\x4f\x51-\x57\x59\x5a\x5c\x60-\x7e])"
    rb"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
)
_BEGUN = re.compile(
    rb"\x1b(?:\[[\x30-\x3f]*[\x20-\x2f]*|[\]PX^_][^\x07\x1b\x18\x1a]*\x1b?|[\x20-\x2f]*)?\Z"
    rb"|[\xc2-\xdf]\Z|[\xe0-\xef][\x80-\xbf]?\Z|[\xf0-\xf4][\x80-\xbf]{0,2}\Z"
)
"""The beginning of a sequence, or of a character, whose end has not arrived."""
_LINES = re.compile(rb"(?:(?:[^\x1b\n]++|\x1b\[[0-9;:]*+m)*+\n)++")
"""Lines after which the cursor is at the beginning of an empty one, if it had nothing below it."""
_HARMLESS = frozenset(b"mnchltgqx")
"""Final bytes of control sequences that move nothing: colours, reports, modes (some are looked at), tab stops."""
_ALTERNATE = frozenset({b"47", b"1047", b"1049"})


class Room(Enum):
    """Where a line can be drawn, and removed with no trace."""

    NONE = "none"
    HERE = "here"
    """On the line of the cursor: it is empty."""
    BELOW = "below"
    EDGE = "edge"
    """Below; the cursor is behind the last column, where the terminal forgets that it waits to wrap the line."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the cursor is, as far as it is known."""

    low: int = 0
    """The least column that it can be in, from 0: characters may be wider than they look."""
    high: int = 0
    end: int = 0
    """Columns of the line that hold something."""
    below: int = 0
    """Lines below it that hold something."""


class AppendState:
    """The state after the bytes so far. A new one stands at the beginning of an empty line."""

    def __init__(self) -> None:
        self._place = _Place()
        self._saved: _Place | None = None
        """Where the program has had the cursor saved: the terminal has one slot, which the drawing needs as well."""
        self._before: _Place | None = None
        """Where the cursor was when the alternate screen began; None on the normal screen."""
        self._taken = False
        """The program moves to absolute places, or has a scroll region: it uses the screen as a whole."""
        self._synchronized = False
        self._rewriting = False
        """The line was just erased behind its end: its next character comes after a carriage return."""
        self._at_edge = False
        """The terminal was resized while the cursor stood at the right edge: it is on the last character now."""
        self._pending = b""

    # ---------------------------------------------------------------- answers

    def room(self, columns: int) -> Room:
        """Where there is room now, on a terminal of so many columns."""
        place = self._place
        if self._pending or self._taken or self._synchronized or self._before is not None or self._saved is not None:
            return Room.NONE
        if place.below or place.low < place.end:
            return Room.NONE
        if place == _Place():
            return Room.HERE
        if place.low // columns == place.high // columns and place.low % columns and not self._at_edge:
            return Room.BELOW
        return Room.EDGE if self._rewriting else Room.NONE

    # ---------------------------------------------------------------- bytes

    def resize(self, columns: int) -> None:
        """Take in that the terminal had so many columns until now."""
        self._at_edge = self._at_edge or self.room(columns) is Room.EDGE

    def take(self, data: bytes) -> None:
        """Follow the next bytes of the stream."""
        self._at_edge = self._at_edge and not data
        data = self._pending + data
        at = 0
        while (at := self._skip_lines(data, at)) < len(data):
            match = _TOKEN.match(data, at)
            if match is not None:
                self._follow(match)
                at = match.end()
            elif _BEGUN.match(data, at) and len(data) - at <= _MOST_PENDING:
                break
            else:
                self._taken = self._taken or data[at] == 0x1B
                self._print(0, 2)  # a byte that is no UTF-8: shown in some way
                at += 1
        self._pending = data[at:]

    def _skip_lines(self, data: bytes, at: int) -> int:
        """Take whole lines of text and colours at once, as a long output has them; returns the place behind them."""
        lines = None if self._place.below else _LINES.match(data, at)
        if lines is None:
            return at
        self._line_feed()
        self._place = replace(self._place, low=0, high=0)
        return lines.end()

    def _follow(self, match: re.Match[bytes]) -> None:
        match match.lastgroup:
            case "text":
                self._print(match.end() - match.start(), match.end() - match.start())
            case "wide":
                text = match[0].decode(errors="replace")
                self._print(sum(map(_least_width, text)), sum(map(_most_width, text)))
            case "control":
                self._control(match[0][0])
            case "final":
                self._sequence(match["parameters"], match["between"], match["final"])
            case "escape":
                self._escape(match["escape"])

    def _print(self, low: int, high: int) -> None:
        place = self._place
        self._rewriting = False
        self._place = replace(
            place, low=place.low + low, high=place.high + high, end=max(place.end, min(place.high + high, _UNKNOWN))
        )
        if place.low >= place.end:  # behind everything; now, too
            self._place = replace(self._place, end=self._place.low)

    def _control(self, code: int) -> None:
        place = self._place
        if code == 0x0D:
            self._place = replace(place, low=0, high=0)
            self._rewriting = False
        elif code == 0x0A:
            self._line_feed()
            self._place = replace(self._place, low=0, high=0)
        elif code in (0x0B, 0x0C):
            self._line_feed()
        elif code == 0x08:
            self._place = replace(place, low=max(0, place.low - 1), high=max(0, place.high - 1))
        elif code == 0x09:
            low, high = (column - column % _TAB + _TAB for column in (place.low, place.high))
            self._place = replace(place, low=low, high=high, end=low if place.low >= place.end else place.end)

    def _line_feed(self) -> None:
        place = self._place
        self._rewriting = False
        if place.below:
            self._place = replace(place, below=place.below - 1, end=_UNKNOWN)
        else:
            self._place = replace(place, end=0)

    def _escape(self, final: bytes) -> None:
        match final:
            case b"7":
                self._saved = self._place
            case b"8":
                self._place, self._saved = self._saved or replace(self._place, end=_UNKNOWN), None
            case b"D":
                self._line_feed()
            case b"E":
                self._line_feed()
                self._place = replace(self._place, low=0, high=0)
            case b"M":
                self._up(1)
            case b"c":
                self.__init__()  # type: ignore[misc]
            case b"=" | b">" | b"\\" | b"H":
                pass
            case _:
                self._taken = True

    def _up(self, lines: int) -> None:
        self._place = replace(self._place, below=self._place.below + lines, end=_UNKNOWN)

    def _sequence(self, parameters: bytes, between: bytes, final: bytes) -> None:
        if between or parameters[:1] in (b"<", b"=", b">"):
            return  # cursor shapes, keyboard protocols, device attributes
        if parameters.startswith(b"?"):
            self._mode(frozenset(parameters[1:].split(b";")), final)
            return
        place, first = self._place, parameters.split(b";")[0].split(b":")[0]
        number = int(first) if first.isdigit() else 0
        count = max(1, number)
        match final:
            case b"K":
                self._erase_line(number)
            case b"J":
                self._erase_screen(number)
            case b"A":
                self._up(count)
            case b"F":
                self._up(count)
                self._place = replace(self._place, low=0, high=0)
            case b"B" | b"E":
                left = max(0, place.below - count)
                column = {"low": 0, "high": 0} if final == b"E" else {}
                self._place = replace(place, below=left, end=_UNKNOWN, **column)
            case b"C":
                self._place = replace(place, low=place.low + count, high=place.high + count)
            case b"D":
                self._place = replace(place, low=max(0, place.low - count), high=max(0, place.high - count))
            case b"G" | b"`":
                self._place = replace(place, low=count - 1, high=count - 1)
            case b"s":
                self._saved = self._place
            case b"u":
                self._escape(b"8")
            case _:
                self._taken = self._taken or final[0] not in _HARMLESS

    def _erase_line(self, kind: int) -> None:
        place = self._place
        if kind == 0:
            self._place, self._rewriting = replace(place, end=place.low), True
        elif kind == 2:
            self._place = replace(place, end=0)

    def _erase_screen(self, kind: int) -> None:
        if kind in (0, 2):
            self._place = replace(self._place, end=self._place.low if kind == 0 else 0, below=0)
            self._taken = False

    def _mode(self, modes: frozenset[bytes], final: bytes) -> None:
        is_set = final == b"h"
        if final not in b"hl":
            return
        if b"2026" in modes:
            self._synchronized = is_set
        if modes & _ALTERNATE:
            if is_set and self._before is None:
                self._before = self._place
            elif not is_set and self._before is not None:
                self._place, self._before, self._taken = self._before, None, False


def _least_width(character: str) -> int:
    return int(unicodedata.category(character) not in ("Mn", "Me", "Cf"))


def _most_width(character: str) -> int:
    return 1 if unicodedata.east_asian_width(character) in ("N", "Na", "H") else 2
