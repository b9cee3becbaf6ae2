"""The errors of the daemon side, each with what a person needs to go on.

Knows nothing of where they are shown. A wrong request is `codegen.plan.RequestError`.
"""

from __future__ import annotations


class BuilddError(Exception):
    """Base. `code` is stable; `file`, `command` and `next_step` may be empty."""

    code = "internal"

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


def in_words(error: BaseException) -> str:
    """One line for people: what went wrong, where, and what to do about it."""
    if isinstance(error, BuilddError):
        return f"{error.message} ({error.next_step})" if error.next_step else error.message
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
