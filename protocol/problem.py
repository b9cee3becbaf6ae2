"""The base of all buildd errors, and the wording of any error for people. Imports the standard library only."""

from __future__ import annotations

import errno
import os

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk, in the user's quota, or for a file of that size."""


class Problem(Exception):
    """An error with everything that a user needs to go on.

    Args:
        message: what is wrong, in one sentence.
        code: a stable name for programs; the class has a default.
        file: the file to look at, "buildd.toml:12" if a line is known.
        command: the command that repeats it.
        next_step: what to do about it.
    """

    code = "internal"
    is_usage = False
    """Whether the request itself is wrong, not the daemon or the store."""

    def __init__(self, message: str, *, code: str = "", file: str = "", command: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.command = command
        self.next_step = next_step
        if code:
            self.code = code


def message_and_step(error: BaseException) -> tuple[str, str]:
    """What went wrong and where, and the next step ("" if none is known)."""
    if isinstance(error, Problem):
        elsewhere = error.file and error.file not in error.message
        return f"{error.file}: {error.message}" if elsewhere else error.message, error.next_step
    if isinstance(error, OSError) and error.filename:
        where = os.fsdecode(error.filename2 or error.filename)  # of a link or a rename: the new name
        if error.errno in NO_SPACE:
            return f"no space left on the disk of {where}", "free some space and build again"
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return f"{where}: {error.strerror}", "a file is in the place of a folder: move it, or choose another folder"
        return f"{where}: {error.strerror}", "check this path, its owner and permissions"
    return str(error) or type(error).__name__, ""


def in_one_line(error: BaseException) -> str:
    """The message, with the next step in parentheses."""
    message, next_step = message_and_step(error)
    return f"{message} ({next_step})" if next_step else message
