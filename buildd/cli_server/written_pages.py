"""The pages of memory that a command writes, so that the fork for the next one copies just these ahead.

A page that a fork shares with its parent is copied at the first write, while the user waits. Every fork begins with the
same memory, so commands write much the same pages: a fifth of all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator

_MADV_POPULATE_WRITE = 23
_PIECE_BYTES = 1 << 20
_ENTRY_BYTES = 8
_IS_OWN = bytes(flags & 0xA1 == 0x81 for flags in range(256))
"""By the highest byte of a page's entry in pagemap: whether it is there, of no file, and mapped by no other process."""
_OWN_RUN = re.compile(rb"\x01+")
RUN = struct.Struct("=QQ")
"""Address and bytes of pages that follow each other."""


def written() -> bytes:
    """The runs of pages that this fork has written or copied, each as `RUN`; empty where the kernel does not tell."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            return b"".join(RUN.pack(*run) for run in _own_runs(pagemap.fileno()))
    except OSError:
        return b""


def copy(runs: bytes, is_awaited: Callable[[], bool]) -> None:
    """Copy runs of pages that another fork has written. Ends early where a command waits.

    What is not mapped here is left out, and all of it before Linux 5.14.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in RUN.iter_unpack(runs):
        for offset in range(0, length, _PIECE_BYTES):
            if is_awaited():
                return
            madvise(start + offset, min(_PIECE_BYTES, length - offset), _MADV_POPULATE_WRITE)


def _own_runs(pagemap: int) -> Iterator[tuple[int, int]]:
    """Address and bytes of each run."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps.readlines():
            place, rights, *_ = line.split(maxsplit=2)
            if rights != "rw-p":
                continue
            first, end = (int(address, 16) for address in place.split("-"))
            size = (end - first) // mmap.PAGESIZE * _ENTRY_BYTES
            entries = os.pread(pagemap, size, first // mmap.PAGESIZE * _ENTRY_BYTES)
            for run in _OWN_RUN.finditer(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_OWN)):
                yield first + run.start() * mmap.PAGESIZE, (run.end() - run.start()) * mmap.PAGESIZE
