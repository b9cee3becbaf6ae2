"""Who may write to a store: its user alone.

Knows one folder's owner and mode, nothing of its content. Anybody who can write to a store decides what later builds
get, as anybody who can write to ~/.ssh/authorized_keys decides who logs in: the rules are those of sshd's StrictModes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from buildd.errors import StoreError

CODES = (FOREIGN, OPEN) = ("store-foreign", "store-open")
"""Codes of the errors."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check(folder: Path) -> None:
    """Check that nobody but this user (and root, who can do anything here) may write to a store.

    A folder of this user's that others may write is closed to them while it is still empty, such as a new tmpfs or
    volume. One with content is refused: a stricter mode would hide that others may have put something there. Only the
    folder itself is looked at: nobody else can make another one of this owner and mode in its place. A folder that
    does not exist is good: it will be made with mode 0700.

    Raises `StoreError`.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return  # there is none, or opening it says why not
    if status.st_uid not in (0, os.geteuid()):
        raise StoreError(
            f"the store in {folder} belongs to {_user(status.st_uid)}, and you are {_user(os.geteuid())}",
            code=FOREIGN,
            file=str(folder),
            next_step="set BUILDD_DIR to a folder of your own, or run buildd as that user",
        )
    if status.st_mode & _OTHERS_WRITE and not _close(folder, stat.S_IMODE(status.st_mode)):
        raise StoreError(
            f"other users may write to the store in {folder} (mode {stat.S_IMODE(status.st_mode):04o})",
            code=OPEN,
            file=str(folder),
            next_step=f"remove it, or `chmod go-w {folder}` if you trust everybody who could write there",
        )


def _close(folder: Path, mode: int) -> bool:
    """Take the folder from others if it is empty."""
    try:
        if os.listdir(folder):
            return False
        os.chmod(folder, mode & ~_OTHERS_WRITE)
        if os.listdir(folder):  # somebody was faster
            os.chmod(folder, mode)
            return False
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
