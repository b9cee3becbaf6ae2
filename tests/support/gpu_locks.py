"""The lock of a GPU that no machine has, in a folder of a test."""

from __future__ import annotations

import fcntl
from pathlib import Path

UUID = "01234567-0123-0123-0123-0123456789ab"
GPU = f"GPU-{UUID}"


def is_free(folder: Path) -> bool:
    """Whether nobody holds the lock of `GPU`, whose file must be there."""
    with open(folder / GPU) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
