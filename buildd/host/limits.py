"""The limits of this process that buildd cannot work below: open files, address space, and data.

Knows no daemon and no request.
"""

from __future__ import annotations

import resource

from buildd.errors import BuilddError

FILES_OF_A_COMMAND = 40
"""Open files that a build inside a command needs."""
FILES_OF_A_DAEMON = 256
"""A daemon serves other clients than the one that started it, with two descriptors for each."""
_USUAL_FILES = 1024
_ADDRESS_SPACE_BYTES = 1536 << 20
"""Threads reserve address space: 8 MiB for a stack, up to 64 MiB for an allocator's arena."""
_DATA_BYTES = 256 << 20
"""Stacks and what is written of arenas count as data. A daemon that lacks them fails each request anew, slowly."""
_OF_MEMORY = (
    (resource.RLIMIT_AS, "address space", _ADDRESS_SPACE_BYTES, "-v"),
    (resource.RLIMIT_DATA, "data", _DATA_BYTES, "-d"),
)


class TooLittle(BuilddError):
    """A limit of this process is too low."""

    code = "limits"


def check(fewest_files: int) -> None:
    """Raise the soft limit of open files to the usual one if the hard limit permits it.

    Raises:
        TooLittle: this process may open fewer files than that, or has too little address space or data.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _USUAL_FILES:
        soft = _USUAL_FILES if hard == resource.RLIM_INFINITY else min(hard, _USUAL_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < fewest_files:
        raise TooLittle(
            f"this process may have {soft} files open at once, buildd needs {fewest_files}",
            next_step=f"raise the limit of open files: ulimit -n {_USUAL_FILES}",
        )
    for limit, what, needed_bytes, option in _OF_MEMORY:
        bytes_, _ = resource.getrlimit(limit)
        if bytes_ != resource.RLIM_INFINITY and bytes_ < needed_bytes:
            raise TooLittle(
                f"this process may have {bytes_ >> 20} MiB of {what}, buildd needs {needed_bytes >> 20} MiB",
                next_step=f"raise the limit of {what}: ulimit {option} unlimited",
            )
