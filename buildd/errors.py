"""The errors of the daemon side, each with what a person needs to go on.

Knows nothing of where they are shown. A wrong request is `codegen.plan.RequestError`.
"""

from __future__ import annotations

import errno
import os

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk, in the user's quota, or for a file of that size."""


class BuilddError(Exception):
    """Base. `code` is stable; `file`, `command` and `next_step` may be empty."""

    code = "internal"
    is_usage = False
    """What was asked for is wrong, not the daemon or the store."""

    def __init__(self, message: str, *, file: str = "", command: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.command = command
        self.next_step = next_step


class StoreError(BuilddError):
    """The store cannot do what was asked: unreadable, read-only, full."""

    code = "store"


class StoreTooNew(StoreError):
    """The store was written by a newer version."""

    code = "store-too-new"


class StoreFull(StoreError):
    """No space left on the store's or the output's disk."""

    code = "disk-full"


class RunnerError(BuilddError):
    """A tool could not be started at all."""

    code = "runner"


class DaemonError(BuilddError):
    """The daemon could not be reached, started or understood."""

    code = "daemon"


def told(error: BaseException) -> tuple[str, str]:
    """For people: what went wrong and where, and the next step."""
    if isinstance(error, BuilddError):
        elsewhere = error.file and error.file not in error.message
        return f"{error.file}: {error.message}" if elsewhere else error.message, error.next_step
    if isinstance(error, OSError) and error.filename:
        where = os.fsdecode(error.filename)
        if error.errno in NO_SPACE:
            return f"no space left on the disk of {where}", "free some space and build again"
        return f"{where}: {error.strerror}", "check this path, its owner and permissions"
    return str(error) or type(error).__name__, ""


def in_words(error: BaseException) -> str:
    """As `told`, in one line."""
    message, next_step = told(error)
    return f"{message} ({next_step})" if next_step else message
