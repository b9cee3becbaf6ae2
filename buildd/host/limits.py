"""The limits of this process that buildd cannot work below: open files, address space, data, and sizes of files.

Knows no daemon and no request.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from buildd.errors import BuilddError


class Needs(NamedTuple):
    """What a process needs of its limits.

    Args:
        files: open files.
        file_bytes: size of a file that it may have to write.
    """

    files: int
    file_bytes: int


OF_A_COMMAND = Needs(40, 0)
"""A build inside a command writes what its own user's limit allows."""
OF_A_DAEMON = Needs(256, 1 << 30)
"""A daemon serves other clients than the one that started it, with two descriptors for each. Without large files it
would fail for all of them, in the words of a full disk."""
_USUAL_FILES = 1024
_ADDRESS_SPACE_BYTES = 1536 << 20
"""Threads reserve address space: 8 MiB for a stack, up to 64 MiB for an allocator's arena."""
_DATA_BYTES = 256 << 20
"""Stacks and what is written of arenas count as data. A daemon that lacks them fails each request anew, slowly."""


class TooLittle(BuilddError):
    """A limit of this process is too low."""

    code = "limits"


def check(needs: Needs) -> None:
    """Raise the soft limit of open files to the usual one if the hard limit permits it.

    Raises:
        TooLittle: this process may open fewer files than it needs, has too little address space or data, or may only
            write small files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _USUAL_FILES:
        soft = _USUAL_FILES if hard == resource.RLIM_INFINITY else min(hard, _USUAL_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < needs.files:
        raise TooLittle(
            f"this process may have {soft} files open at once, buildd needs {needs.files}",
            next_step=f"raise the limit of open files: ulimit -n {_USUAL_FILES}",
        )
    for limit, words, what, needed_bytes, option in (
        (resource.RLIMIT_AS, "have {} MiB of address space", "address space", _ADDRESS_SPACE_BYTES, "-v"),
        (resource.RLIMIT_DATA, "have {} MiB of data", "data", _DATA_BYTES, "-d"),
        (resource.RLIMIT_FSIZE, "write files of {} MiB", "file sizes", needs.file_bytes, "-f"),
    ):
        bytes_, _ = resource.getrlimit(limit)
        if bytes_ != resource.RLIM_INFINITY and bytes_ < needed_bytes:
            raise TooLittle(
                f"this process may {words.format(bytes_ >> 20)}, buildd needs {needed_bytes >> 20} MiB",
                next_step=f"raise the limit of {what}: ulimit {option} unlimited",
            )
