"""Tells names of plain files from all other names, and reads plain files alone.

The daemon reads and compiles in place of another process. A name that leads through /proc (as /dev/fd and /dev/stdin
do) means different files to the two, a terminal differs as well, a FIFO can be read only once and makes its reader
wait, and a device may have no end. This module alone knows such names. The caller decides what follows from the answer.
"""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum
from typing import BinaryIO

_PROCESSES = "/proc"
_MOST_LINKS = 40
"""The kernel's own limit of links in a path."""


class Reach(Enum):
    """Which processes read the same content under a name."""

    EVERYONE = "everyone"
    """Every process: the name is a regular file or a folder, or does not exist."""
    ONCE = "once"
    """Every process, but only the first reader: the name is a FIFO."""
    CALLER = "caller"
    """Only the process that gave the name."""


def reach_of(path: str, known: dict[str, str]) -> Reach:
    """Return which processes read the same content under a name.

    Args:
        path: absolute.
        known: resolved folders, filled here; pass the same dict for names that are checked at one time.
    """
    folder, name = os.path.split(path)
    real = _real_folder(folder, known)
    if real and name not in ("", ".", ".."):
        real = _followed(name, real)
    if not real:
        return Reach.CALLER
    try:
        mode = os.lstat(real).st_mode
    except (OSError, ValueError):
        return Reach.EVERYONE
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return Reach.EVERYONE
    return Reach.ONCE if stat.S_ISFIFO(mode) else Reach.CALLER


def regular_file(path: str, known: dict[str, str]) -> os.stat_result | None:
    """What lstat says of a file that every process reads under a name; None where `reach_of` must tell.

    Args:
        path: absolute.
        known: as `reach_of` fills it.
    """
    folder, name = split(path)
    real = _real_folder(folder, known)
    try:
        status = os.lstat(f"{real}/{name}") if real else None
    except (OSError, ValueError):
        return None
    return status if status is not None and stat.S_ISREG(status.st_mode) else None


def split(path: str) -> tuple[str, str]:
    """`os.path.split`, at a fifth of its time: a compile reads hundreds of headers."""
    folder, _, name = path.rpartition("/")
    return (folder, name) if folder and not folder.endswith("/") else os.path.split(path)


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading; never waits, whatever the name leads to.

    Raises:
        OSError: there is no such file, or (EINVAL) it is a FIFO, a device, a socket or a folder.
    """
    try:
        # NOCTTY: a terminal must not become that of the daemon.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, "no file can have this name", path) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "this is no regular file", path)


def read_regular(path: str, most_bytes: int = -1) -> bytes:
    """Return the content of a regular file.

    Args:
        most_bytes: a larger file is not read; -1 reads files of any size.

    Raises:
        OSError: as `open_regular`, or (EINVAL) the file is larger.
    """
    with open_regular(path) as file:
        # The size that fstat gives is no bound: files of /proc have none, and others grow.
        content = file.read(most_bytes + 1 if most_bytes >= 0 else -1) or b""
    if 0 <= most_bytes < len(content):
        raise OSError(errno.EINVAL, f"this has more than {most_bytes} bytes", path)
    return content


def _real_folder(folder: str, known: dict[str, str]) -> str:
    """`_followed` of a folder; looks once at each folder on the way."""
    if folder in ("", "/"):
        return "/"
    real = known.get(folder)
    if real is None:
        above, name = os.path.split(folder)
        start = _real_folder(above, known) if above != folder else "/"
        real = known[folder] = _followed(name, start) if start else ""
    return real


def _followed(path: str, start: str = "/") -> str:
    """Return a path with its links resolved; empty if it leads through the folders of processes.

    `os.path.realpath` cannot tell: it follows /proc/self/fd/3 to the file that this process has open.
    """
    here, rest, links = start, path.split("/")[::-1], 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        place = f"{here}/{part}" if here != "/" else f"/{part}"
        if place == _PROCESSES or links > _MOST_LINKS:
            return ""
        try:
            target = os.readlink(place)
        except (OSError, ValueError):  # no link, or no such file
            here = place
            continue
        links += 1
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]
    return here
