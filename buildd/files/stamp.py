"""Stamps: the facts that the file system gives about a file without reading it, and when a stamp may be trusted.

Knows no content and no request. A stamp is trusted when both of its times lie further back than the file system's clock
step at the moment the content was read: a later write in the same tick would leave the stamp as it is.
"""

from __future__ import annotations

import os
import stat as stat_module
from typing import NamedTuple

from buildd.files.devices import are_seen_by_opening
from buildd.files.kernel_clock import step_ns

COARSE_STEP_NS = 2_000_000_000
"""FAT and old network file systems."""

FolderMark = tuple[int, int, int]
"""Device, inode and time of the last change of a folder's names."""


class Stamp(NamedTuple):
    """What the file system says of a file without reading it. Times in nanoseconds."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def stamp_of(path: str | bytes) -> Stamp | None:
    """The stamp of a regular file, symbolic links followed; None where there is none."""
    try:
        status = os.stat(path)
        if are_seen_by_opening(status.st_dev) and stat_module.S_ISREG(status.st_mode):
            status = _opened(path, status)
    except (OSError, ValueError):
        return None
    return stamp_in(status) if stat_module.S_ISREG(status.st_mode) else None


def _opened(path: str | bytes, status: os.stat_result) -> os.stat_result:
    """What a file says of itself once it is open. Raises OSError where the file has gone.

    Args:
        status: what `stat` says, which counts for a file that may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return status
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def stamp_in(status: os.stat_result) -> Stamp:
    """The stamp of a regular file that was looked at."""
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def folder_mark(folder: str) -> FolderMark | None:
    """The mark of a folder; None where there is no folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return mark_of(status)


def mark_of(status: os.stat_result) -> FolderMark:
    return status.st_dev, status.st_ino, status.st_mtime_ns


def real_path(path: str, known: dict[str, str]) -> str:
    """`os.path.realpath` of an absolute path; looks once at each folder on the way.

    Args:
        known: path -> answer so far, for the same moment.
    """
    real = known.get(path)
    if real is None:
        above, name = os.path.split(path)
        if name in ("", ".", ".."):
            real = os.path.realpath(path)
        else:
            place = os.path.join(real_path(above, known), name)
            real = os.path.realpath(place) if os.path.islink(place) else place
        known[path] = real
    return real


def listing_stamp(folder: os.stat_result) -> int:
    """A number that changes when a name is added to or removed from a folder."""
    return (folder.st_mtime_ns ^ (folder.st_ino << 8)) & 0x7FFF_FFFF_FFFF_FFFF


def trustworthy(stamp: Stamp, now_ns: int) -> bool:
    """Whether a write after `now_ns` must change the stamp; no stamp from the future (a clock set back) is trusted.

    Args:
        now_ns: by `kernel_clock`.
    """
    newest = max(stamp.mtime_ns, stamp.ctime_ns)
    coarse = stamp.mtime_ns % 1_000_000_000 == 0 and stamp.ctime_ns % 1_000_000_000 == 0
    return now_ns - newest > (COARSE_STEP_NS if coarse else step_ns(stamp.device))


def moved_since(path: str, since_ns: int, known: dict[str, bool]) -> bool:
    """Whether a path may have led to another file at some moment since `since_ns`.

    That is so when a link on the path was made or changed, or a folder on it was moved. The stamps of the file that the
    path leads to now do not show this.

    Args:
        path: absolute.
        known: folder -> answer so far, for the same moment.
    """
    folder = os.path.dirname(path)
    if folder != path:
        if folder not in known:
            known[folder] = moved_since(folder, since_ns, known)
        if known[folder]:
            return True
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if stat_module.S_ISREG(status.st_mode) or trustworthy(_changed(status), since_ns):
        if not stat_module.S_ISLNK(status.st_mode):
            return False
        try:
            # Not normalised: `..` leads out of the folder that a link leads to, not out of the link's own.
            target = os.path.join(folder, os.readlink(path))
        except OSError:
            return True
        return moved_since(target, since_ns, known)
    # Adding or removing a name changes both times of a folder; moving the folder itself changes only ctime.
    return not stat_module.S_ISDIR(status.st_mode) or status.st_ctime_ns != status.st_mtime_ns


def appeared_since(path: str, since_ns: int, known: dict[str, bool]) -> bool:
    """Whether the file at a path may have been absent at some moment since `since_ns`. Arguments as `moved_since`."""
    try:
        status = os.lstat(path)
    except OSError:
        return True
    return not trustworthy(_changed(status), since_ns) or moved_since(path, since_ns, known)


def _changed(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, 0, 0, status.st_ctime_ns, status.st_ctime_ns)
