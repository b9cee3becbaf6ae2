"""A small terminal for tests: what is on its rows, and where its cursor is, after bytes that were written.

Knows what programs under `buildd run` and its status line send; refuses the rest.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b([78DM])|([\r\n\b])|([^\x1b\x00-\x1f])", re.DOTALL)


class Screen:
    """Rows of text; lines that scroll off at the top are kept."""

    def __init__(self, columns: int = 40, rows: int = 6) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        self._lines = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self._waits = False
        """The last column is written, and the next character goes to the next row."""
        self._slot = (0, 0)
        self._begun = b""

    @property
    def text(self) -> list[str]:
        """Everything that was scrolled off or is on the rows, without blank ends."""
        lines = [*self.scrolled, *("".join(line).rstrip() for line in self._lines)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def cursor(self) -> tuple[int, int]:
        """Its row, counted from the first line that ever was, and its column."""
        return len(self.scrolled) + self.row, self.column

    def write(self, data: bytes) -> None:
        data, self._begun = self._begun + data, b""
        if begun := re.search(rb"\x1b(?:\[[0-9;]*)?\Z", data):
            data, self._begun = data[: begun.start()], begun[0]
        text = data.decode()
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None, repr(text[at : at + 20])
            at = match.end()
            parameters, final, escape, control, character = match.groups()
            if character:
                self._print(character)
            elif control == "\n":
                self._index()
                self.column, self._waits = 0, False
            elif control:
                self.column, self._waits = 0 if control == "\r" else max(0, self.column - 1), False
            elif escape:
                self._escape(escape)
            else:
                self._sequence(int(parameters.split(";")[0] or 0), final)

    def _print(self, character: str) -> None:
        if self._waits:
            self._index()
            self.column = 0
        self._lines[self.row][self.column] = character
        self._waits = self.column == self.columns - 1
        self.column = min(self.column + 1, self.columns - 1)

    def _index(self) -> None:
        self._waits = False
        if self.row < self.rows - 1:
            self.row += 1
            return
        self.scrolled.append("".join(self._lines.pop(0)).rstrip())
        self._lines.append([" "] * self.columns)

    def _escape(self, final: str) -> None:
        if final == "7":
            self._slot = (self.row, self.column)
        elif final == "8":
            (self.row, self.column), self._waits = self._slot, False
        elif final == "D":
            self._index()
        else:
            raise AssertionError(final)

    def _sequence(self, number: int, final: str) -> None:
        if final != "m":
            self._waits = False
        line = self._lines[self.row]
        match final:
            case "m":
                pass
            case "A":
                self.row = max(0, self.row - max(1, number))
            case "B":
                self.row = min(self.rows - 1, self.row + max(1, number))
            case "K" if number == 0:
                line[self.column :] = [" "] * (self.columns - self.column)
            case "K":
                line[:] = [" "] * self.columns
            case "J" if number == 0:
                line[self.column :] = [" "] * (self.columns - self.column)
                for other in self._lines[self.row + 1 :]:
                    other[:] = [" "] * self.columns
            case _:
                raise AssertionError((number, final))
