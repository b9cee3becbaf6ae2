"""Finds the program that takes keys from a terminal which is its output: a pager.

less opens its output again, only to read. more reads from its standard error, as does vim if its standard input is a
pipe; that descriptor was opened for both, so only what the process waits for tells that it reads there. Knows /proc and
the system calls by which programs wait; nothing of what is shown.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Iterator
from enum import Enum
from pathlib import Path


class _Wait(Enum):
    READ = "read"
    POLL = "poll"
    SELECT = "select"
    EPOLL = "epoll"


_CALLS = {
    "x86_64": {
        **{0: _Wait.READ, 7: _Wait.POLL, 271: _Wait.POLL, 23: _Wait.SELECT, 270: _Wait.SELECT},
        **{232: _Wait.EPOLL, 281: _Wait.EPOLL},
    },
    "aarch64": {63: _Wait.READ, 73: _Wait.POLL, 72: _Wait.SELECT, 22: _Wait.EPOLL},
}
"""Numbers of read, poll and ppoll, select and pselect6, epoll_wait and epoll_pwait."""
_POLLFD = struct.Struct("ihh")
_MOST_DESCRIPTORS = 1024
_SESSION = 3
"""Place in /proc/PID/stat, behind the name."""


def find(terminal: str) -> int:
    """A process of this session that takes keys from a terminal; 0 if there is none.

    Args:
        terminal: its path, as /proc names it.
    """
    session = os.getsid(0)
    for name in os.listdir("/proc"):
        if name.isdecimal() and _session_of(name) == session and takes_keys(int(name), terminal):
            return int(name)
    return 0


def takes_keys(pid: int, terminal: str) -> bool:
    """Whether a process has opened the terminal only to read, or waits now for what is typed there."""
    process = Path("/proc", str(pid))
    try:
        places = {int(each) for each in os.listdir(process / "fd") if _is_link(process / "fd" / each, terminal)}
        if any(_only_reads(process / "fdinfo" / str(place)) for place in places):
            return True
        return bool(places) and any(not places.isdisjoint(_waited_for(each)) for each in (process / "task").iterdir())
    except (OSError, ValueError):  # it has ended, or is not ours to look at
        return False


def _session_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_SESSION])
    except (OSError, ValueError, IndexError):
        return 0


def _is_link(place: Path, target: str) -> bool:
    try:
        return os.readlink(place) == target
    except OSError:
        return False


def _only_reads(info: Path) -> bool:
    flags = next(line for line in info.read_text(encoding="ascii").splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY


def _waited_for(thread: Path) -> Iterator[int]:
    """The descriptors that a thread waits for, to read from them."""
    words = (thread / "syscall").read_text(encoding="ascii").split()
    if not words[0].isdecimal():
        return  # it runs
    call = _CALLS.get(os.uname().machine, {}).get(int(words[0]))
    first, second = (int(word, 16) for word in words[1:3])
    if call is _Wait.READ:
        yield first
    elif call is _Wait.POLL and second <= _MOST_DESCRIPTORS:
        for place, events, _ in _POLLFD.iter_unpack(_memory(thread, first, second * _POLLFD.size)):
            if events & select.POLLIN:
                yield place
    elif call is _Wait.SELECT and second and first <= _MOST_DESCRIPTORS:
        bits = int.from_bytes(_memory(thread, second, (first + 63) // 64 * 8), "little")
        yield from (place for place in range(first) if bits >> place & 1)
    elif call is _Wait.EPOLL:
        for line in (thread / "fdinfo" / str(first)).read_text(encoding="ascii").splitlines():
            if line.startswith("tfd:"):
                yield int(line.split()[1])


def _memory(thread: Path, address: int, size: int) -> bytes:
    with contextlib.closing(
        os.fdopen(os.open(thread / "mem", os.O_RDONLY | os.O_CLOEXEC), "rb", buffering=0)
    ) as memory:
        memory.seek(address)
        found = memory.read(size)
    if len(found) != size:
        raise ValueError("its memory has changed")
    return found
