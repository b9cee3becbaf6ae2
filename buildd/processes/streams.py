"""The output of a tool: cut into lines for people, kept within bounds for the store.

Knows bytes and text only: no pipe, no process. Whatever a tool writes, both halves use bounded memory.
"""

from __future__ import annotations

HEAD_BYTES = 512 << 10
TAIL_BYTES = 512 << 10
PIECE_BYTES = 16 << 10
"""A line longer than this arrives in pieces."""


class Capture:
    """The first and the last bytes of a stream.

    Args:
        head_bytes, tail_bytes: how much of either end is kept; a line between them says what is missing.
    """

    __slots__ = ("_head", "_head_bytes", "_left_out", "_tail", "_tail_bytes")

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed at twice the bound, so that a byte is moved at most once for each byte that came.
        if len(self._tail) > 2 * self._tail_bytes:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess

    @property
    def truncated(self) -> bool:
        return self._left_out > 0 or len(self._tail) > self._tail_bytes

    def value(self) -> bytes:
        """What was kept, with a marker line where bytes are missing."""
        self._trim()
        if not self._left_out:
            return bytes(self._head + self._tail)
        return bytes(self._head + b"\n[... %d bytes left out ...]\n" % self._left_out + self._tail)


class Lines:
    """Bytes in, whole lines out: decoded, without their end; long ones in pieces of at most `PIECE_BYTES`."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [text for line in whole for text in _pieces(line)]
        while len(self._rest) > PIECE_BYTES:
            cut = _boundary(self._rest, PIECE_BYTES)
            lines.append(_text(self._rest[:cut]))
            self._rest = self._rest[cut:]
        return lines

    def finish(self) -> list[str]:
        """The last line, when the stream did not end with a newline."""
        rest, self._rest = self._rest, b""
        return _pieces(rest) if rest else []


def _pieces(line: bytes) -> list[str]:
    line = line.removesuffix(b"\r")
    if len(line) <= PIECE_BYTES:
        return [_text(line)]
    pieces = []
    while line:
        cut = _boundary(line, PIECE_BYTES)
        pieces.append(_text(line[:cut]))
        line = line[cut:]
    return pieces


def _boundary(data: bytes, cut: int) -> int:
    """The last place at or before `cut` that does not divide a UTF-8 character."""
    if cut >= len(data):
        return len(data)
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
