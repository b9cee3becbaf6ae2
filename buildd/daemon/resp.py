"""Redis' protocol on the wire (RESP 2 and 3): commands are read, replies are written.

Knows no command and no key. A client that has not sent the token may send little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buildd.hooks.entries import MOST_BYTES

_STRANGERS_BYTES, _STRANGERS_PARTS = 1 << 10, 8
"""Limits of a command from a client that has not sent the token."""
_MOST_PARTS = 1 << 12

Reply = bytes


class ErrorReply(Exception):
    """An error reply; with `ends` nothing more is read from this client."""

    def __init__(self, message: str, *, ends: bool = False) -> None:
        super().__init__(message)
        self.ends = ends


OK = b"+OK\r\n"


def bulk(value: bytes) -> Reply:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def integer(value: int) -> Reply:
    return b":%d\r\n" % value


def array(replies: Sequence[Reply]) -> Reply:
    return b"*%d\r\n" % len(replies) + b"".join(replies)


def error(message: str) -> Reply:
    return b"-%b\r\n" % " ".join(message.split()).encode("utf-8", "replace")


async def read_command(reader: asyncio.StreamReader, known: bool) -> list[bytes]:
    """Read a command and its arguments: an array of bulk strings.

    Args:
        known: whether the client has sent the token, so it may send much.

    Raises: ErrorReply for anything else, or one that is too large; EOFError at the end; OSError.
    """
    most_parts, most_bytes = (_MOST_PARTS, MOST_BYTES) if known else (_STRANGERS_PARTS, _STRANGERS_BYTES)
    count = 0
    while count <= 0:  # Redis ignores empty commands
        count = await _length(reader, b"*", most_parts)
        if count <= 0 and not known:
            # A flood of them is read without a pause, and the daemon would answer nobody else meanwhile.
            raise ErrorReply("ERR Protocol error: an empty command", ends=True)
    parts, left = [], most_bytes
    for _ in range(count):
        length = await _length(reader, b"$", left)
        if length < 0:
            raise ErrorReply("ERR Protocol error: invalid bulk length", ends=True)
        part = await reader.readexactly(length + 2)
        if not part.endswith(b"\r\n"):
            raise ErrorReply("ERR Protocol error: a bulk string is longer than it says", ends=True)
        parts.append(part[:-2])
        left -= length
    return parts


async def _length(reader: asyncio.StreamReader, kind: bytes, most: int) -> int:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise ErrorReply("ERR Protocol error: too big a line", ends=True) from error
    digits = line[1:-2]
    if line[:1] != kind or not digits.removeprefix(b"-").isdigit() or len(digits) > 10:
        raise ErrorReply(f"ERR Protocol error: expected '{kind.decode()}'", ends=True)
    if int(digits) > most:
        raise ErrorReply(f"ERR Protocol error: {int(digits)} is more than {most}", ends=True)
    return int(digits)
