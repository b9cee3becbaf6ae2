"""Writing files into a project atomically: aside, then renamed, so that no reader sees half a file.

Knows no store and no request.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path


def replace_file(path: Path, content: bytes, umask: int | None = None) -> None:
    """Write a file aside and rename it into place.

    Args:
        umask: None: this process's own.
    """
    handle, aside = tempfile.mkstemp(prefix=".buildd-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(aside, 0o644 & ~(_umask() if umask is None else umask))
        os.replace(aside, path)
    except OSError as error:
        _unlink(aside)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        _unlink(aside)
        raise


def copy_file(source: Path, destination: Path, *, executable: bool, umask: int | None = None) -> None:
    """Copy a file aside and rename it into place; a link there is replaced, not followed.

    Args:
        umask: None: this process's own.
    """
    handle, aside = tempfile.mkstemp(prefix=".buildd-", dir=destination.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, aside)
        os.chmod(aside, (0o777 if executable else 0o666) & ~(_umask() if umask is None else umask))
        os.replace(aside, destination)
    except OSError as error:
        _unlink(aside)
        raise OSError(error.errno, error.strerror, str(destination)) from error
    except BaseException:
        _unlink(aside)
        raise


def make_folders(path: str, umask: int | None = None) -> None:
    """Make a folder and those above it, as far as they are missing. Raises OSError.

    Args:
        umask: of the folders that are made; this process may always write to them. None: its own.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
            continue  # another build has just made it
        if umask is not None:
            inherited = os.stat(folder).st_mode & stat.S_ISGID  # where a group shares the folder above
            os.chmod(folder, 0o777 & ~umask | 0o700 | inherited)


def usable(path: Path, executable: bool) -> bool:
    """Whether a file with the right content may stay: it is no link, and its executable bit is right."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IXUSR) == executable


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


@cache
def _umask() -> int:
    # os.umask reads the mask only by setting it, for the whole process; /proc shows it without.
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022
