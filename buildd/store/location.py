"""Location of the store: the folder that the user names, else the cache folder in HOME, else a local folder.

Knows nothing of the store's content. SQLite's WAL needs shared memory between its users, which network file systems do
not give, and their locks are slow or unreliable: there the store moves to this machine's disk, and says so once.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from buildd.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

# Every build calls this: pathlib, which costs milliseconds, is imported where it is used.

_NETWORK = frozenset(
    {
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "davfs",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "ncpfs",
            "nfs",
        ),
        *("nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
        *("fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.gvfsd-fuse", "fuse.juicefs"),
        *("fuse.mergerfs", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs", "fuse.weka"),
    }
)
_SAID = "said-where-the-store-is"


class Location(NamedTuple):
    """The store's folder, and one line for people if it is in an unexpected place (empty once it has been printed)."""

    place: str
    notice: str = ""

    @property
    def folder(self) -> Path:
        from pathlib import Path

        return Path(self.place)


def locate(
    environment: Mapping[str, str],
    *,
    option: str = "",
    file_system: Callable[[str], str] | None = None,
    local_base: str | Path = "/var/tmp",
) -> Location:
    """Find the store's folder. Makes only a local fallback folder, and a file in it that remembers the notice.

    Args:
        environment: BUILDD_DIR, XDG_CACHE_HOME and HOME are read.
        option: a folder named on the command line; it overrides everything else.
        file_system: tells the type of the file system that a path is on; asks the kernel when None.
        local_base: where local fallback folders are made.

    Raises `StoreError` where no folder can be made.
    """
    chosen = option or environment.get("BUILDD_DIR", "")
    if chosen:
        folder = _absolute(chosen, environment)
        kind = network_file_system(folder, file_system)
        return Location(
            folder, f"the store is in {folder}, on {kind}: use it from one machine at a time" if kind else ""
        )
    folder = usual_place(environment)
    if kind := network_file_system(folder, file_system):
        why = f"{folder} is on {kind}"
    elif not _is_writable(folder):
        why = f"{folder} may not be written"
    else:
        return Location(folder)
    local = _local_folder(local_base)
    notice = f"the store is in {local}: {why}. Set BUILDD_DIR to choose another folder."
    return Location(local, notice if _say_once(local, why) else "")


def usual_place(environment: Mapping[str, str]) -> str:
    """The folder in the user's cache, where the store is unless BUILDD_DIR names another or it cannot be there."""
    cache = environment.get("XDG_CACHE_HOME", "")
    # A relative XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
    base = cache if cache.startswith("/") else f"{_home(environment)}/.cache"
    return _tidy(f"{base}/buildd")


def store_folder(environment: Mapping[str, str], *, option: str = "") -> Path:
    """The store's folder alone; see `locate`."""
    return locate(environment, option=option).folder


def network_file_system(path: str | Path, file_system: Callable[[str], str] | None = None) -> str:
    """Type of the network file system that `path` is or would be on ("nfs4", "fuse.sshfs"); "" where it is local.

    Args:
        file_system: tells the type of any file system; asks the kernel when None.
    """
    kind = (file_system or file_system_of)(os.fspath(path))
    return kind if kind in _NETWORK else ""


def file_system_of(path: str | Path, *, mounts: str | Path = "/proc/self/mountinfo") -> str:
    """Type of the file system that `path` is or would be on ("ext4", "nfs4", "fuse.sshfs"); "" where unknown.

    Source: proc(5), /proc/PID/mountinfo. Later mounts hide earlier ones on the same place.
    """
    try:
        with open(mounts, "rb") as file:
            lines = file.read().splitlines()
        real = os.fsencode(os.path.realpath(path))
    except OSError:
        return ""
    best, kind = b"", b""
    for line in lines:
        before, _, after = line.partition(b" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        # Spaces and such are written as \040.
        point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), fields[4])
        inside = real == point or real.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind.decode(errors="replace")


def _absolute(chosen: str, environment: Mapping[str, str]) -> str:
    if chosen == "~" or chosen.startswith("~/"):
        return _tidy(os.path.join(_home(environment), chosen[2:]))
    return os.path.abspath(chosen)


def _tidy(path: str) -> str:
    """The path as `Path` writes it, without double slashes, dots and a final slash: one store has one name."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _home(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME", "")
    if home.startswith("/"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        # A container's user without an account: "/" is never writable for it, so the local folder is taken.
        return "/"


def _is_writable(folder: str) -> bool:
    """Whether the folder, or the nearest one above it that exists, may be written."""
    while True:
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            if folder == (above := os.path.dirname(folder)):
                return False
            folder = above
            continue
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and os.access(folder, os.W_OK | os.X_OK)


def _local_folder(base: str | Path) -> str:
    """A private folder named after the user. Anybody may make names in `base`, so its owner and mode are checked."""
    folder = os.path.join(base, f"buildd-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(
            f"no folder for the store can be made: {error.strerror}",
            file=folder,
            next_step="set BUILDD_DIR to a folder that you may write",
        ) from error
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StoreError(
            "this folder belongs to another user",
            file=folder,
            next_step="remove it, or set BUILDD_DIR to a folder of your own",
        )
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)
    return folder


def _say_once(folder: str, why: str) -> bool:
    marker = os.path.join(folder, _SAID)
    try:
        with open(marker, errors="replace") as file:
            if file.read() == why:
                return False
    except OSError as error:
        if error.errno != errno.ENOENT:
            return True
    try:
        with open(marker, "w", errors="replace") as file:
            file.write(why)
    except OSError:
        pass  # said again the next time
    return True
