"""The files of a job on a node that lacks them: kept by their digests, and laid out as on the daemon's machine.

Ray sends this module to the nodes, which have no buildd: it imports nothing outside the standard library. Knows no
tool; `node_root` lets the laid folders appear at their paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

PLACE = "/tmp"
MOST_KEPT_BYTES = 1 << 30
"""Files of jobs that a node keeps for its next jobs."""
LEFT_SHARE = 0.75
"""How much of that is left once the oldest are removed."""
_LOOK_BYTES = 64 << 20
_MOST_LINKS = 40

DigestOf = Callable[[str], str]


class Lacking(Exception):
    """The node lacks contents; they are named by their digests. None are named where the job has no whole list."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        super().__init__()
        self.digests = tuple(dict.fromkeys(digests))


class Refused(Exception):
    """The node cannot show these files to a tool."""


class Keep:
    """A folder of files that this user's jobs have read on this machine.

    A name stands for one content at one path with one time: a compiler may tell files apart by their inodes, and may
    print their times. Several workers, also of several daemons, share the folder: a file appears whole, and only its
    name is ever removed.
    """

    def __init__(self, folder: str = "", most_bytes: int = MOST_KEPT_BYTES) -> None:
        self.folder = folder or f"{PLACE}/buildd-inputs-{os.getuid()}"
        self._most_bytes = most_bytes
        self._unseen_bytes = _LOOK_BYTES
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)
        found = os.lstat(self.folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise Refused(f"{self.folder} is not this user's alone")

    def path(self, file: Mapping[str, Any]) -> str:
        """The place of a file of a job."""
        identity = f"{file['sha256']}\0{file['same_as']}\0{file['mtime_ns']}"
        return f"{self.folder}/{hashlib.sha256(os.fsencode(identity)).hexdigest()[:40]}"

    def add(self, file: Mapping[str, Any], content: bytes) -> None:
        """Keep a file. Fails where the content is another one."""
        if hashlib.sha256(content).hexdigest() != file["sha256"]:
            raise Refused(f"{file['path']} did not arrive whole")
        fresh = f"{self.folder}/.new-{uuid.uuid4().hex}"
        try:
            with open(fresh, "xb") as opened:
                opened.write(content)
            os.chmod(fresh, 0o444)
            os.utime(fresh, ns=(time.time_ns(), file["mtime_ns"]))
            os.rename(fresh, self.path(file))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
        self._unseen_bytes += len(content)

    def lay(self, file: Mapping[str, Any], place: str) -> None:
        """Put a file at a place. Raises FileNotFoundError where it is not kept."""
        kept = self.path(file)
        try:
            os.link(kept, place)
        except OSError as error:
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.EXDEV):
                raise
            shutil.copy2(kept, place)
        # Which files were used last stands in their time of access, which no compiler prints.
        with contextlib.suppress(OSError):
            os.utime(kept, ns=(time.time_ns(), file["mtime_ns"]))

    def forget(self, file: Mapping[str, Any]) -> None:
        """Remove a file that is damaged."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(file))

    def trim(self) -> None:
        """Remove the files that were not used for longest, where there are too many. Looks once in a while."""
        if self._unseen_bytes < min(_LOOK_BYTES, self._most_bytes // 16):
            return
        self._unseen_bytes = 0
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    seen = entry.stat(follow_symlinks=False)
                    found.append((seen.st_atime_ns, seen.st_size, entry.path))
        left_bytes = sum(size for _, size, _ in found)
        if left_bytes <= self._most_bytes:
            return
        for _, size, path in sorted(found):
            with contextlib.suppress(OSError):
                os.unlink(path)
            left_bytes -= size
            if left_bytes <= self._most_bytes * LEFT_SHARE:
                return


class Laid:
    """The files of a job, laid out in folders that are to appear elsewhere. Made by `lay_out`."""

    def __init__(self, spec: Mapping[str, Any], tops: Sequence[str], entry: str, keep: Keep) -> None:
        self._folder = spec["folder"]
        self._keep = keep
        self._tops = {top: f"{self._folder}/.laid-{number}" for number, top in enumerate(tops)}
        self._links: Mapping[str, str] = spec["links"]
        self._entry = entry
        self._real: dict[str, str] = {"/": "/"}
        self._files: dict[str, Mapping[str, Any]] = {}

    def top_of(self, path: str) -> str:
        """The top that holds a path; empty where none does."""
        return next((top for top in self._tops if path == top or path.startswith(f"{top}/")), "")

    def where(self, path: str) -> str:
        """Where this process finds what the tool finds at an absolute path."""
        return self._placed(self._resolved(path, 0))

    def _placed(self, real: str) -> str:
        top = self.top_of(real)
        return f"{self._tops[top]}{real[len(top) :]}" if top else real

    def _resolved(self, path: str, depth: int) -> str:
        """The path without links, as the tool sees them."""
        known = self._real.get(path)
        if known is not None or depth > _MOST_LINKS:
            return known or path
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._resolved(above or "/", depth)
        if name in ("", "."):
            real = folder
        elif name == "..":
            real = os.path.dirname(folder)
        else:
            real = f"{folder.rstrip('/')}/{name}"
            target = self._links.get(real, "") if self.top_of(real) else _link_at(real)
            if target:
                real = self._resolved(os.path.join(folder, target), depth + 1)
        self._real[path] = real
        return real

    def seen(self, path: str, digest: str) -> None:
        """Take note of what the tool has read at an absolute path: a damaged file is not used again."""
        file = self._files.get(self._resolved(path, 0))
        if file is not None and file["sha256"] != digest:
            self._keep.forget(file)

    def fill(self, spec: Mapping[str, Any]) -> None:
        """Make the folders, links and files. Raises OSError, or `Lacking` where a file was removed meanwhile."""
        for number, place in enumerate(self._tops.values()):
            os.mkdir(place, 0o755)
            if number == 0:
                os.mkdir(f"{self._folder}/.root")
        for folder in spec["folders"]:
            if self.top_of(folder):
                os.makedirs(self._placed(folder), exist_ok=True)
        for path, target in spec["links"].items():
            if self.top_of(path):
                os.makedirs(os.path.dirname(self._placed(path)), exist_ok=True)
                os.symlink(target, self._placed(path))
        gone = []
        first: dict[str, str] = {}
        for file in spec["inputs"]:
            if not self.top_of(file["path"]):
                continue
            self._files[file["path"]] = file
            place = self._placed(file["path"])
            os.makedirs(os.path.dirname(place), exist_ok=True)
            try:
                if file["same_as"] in first:
                    os.link(first[file["same_as"]], place)
                else:
                    self._keep.lay(file, place)
                    first[file["same_as"]] = place
            except FileNotFoundError:
                gone.append(file["sha256"])
        if gone:
            raise Lacking(gone)

    def command(self, spec: Mapping[str, Any], environment: Mapping[bytes, bytes], told: int) -> list[str]:
        """The command that shows the folders to the tool and becomes the tool; faults go to the descriptor `told`."""
        entry, plan = f"{self._folder}/.entry.py", f"{self._folder}/.entry.json"
        with open(entry, "x", encoding="utf-8") as text:
            text.write(self._entry)
        with open(plan, "x", encoding="ascii") as data:
            json.dump(
                {
                    "spare": f"{self._folder}/.root",
                    "shown": [(place, top) for top, place in self._tops.items()],
                    "cwd": os.fsdecode(spec["cwd"]),
                    "argv": [os.fsdecode(word) for word in spec["argv"]],
                    "environment": [(os.fsdecode(name), os.fsdecode(value)) for name, value in environment.items()],
                },
                data,
            )
        return [sys.executable, "-I", "-S", entry, plan, str(told)]


def _link_at(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def lay_out(
    spec: Mapping[str, Any], blobs: Mapping[str, bytes], digest_of: DigestOf, entry: str, keep: Keep | None = None
) -> Laid | tuple[Any, ...] | None:
    """Lay out the files of a job in its folder; None where this machine has all of them at their paths.

    Args:
        spec: a `buildd.cluster.wire.Errand`, as a mapping. Its folder exists.
        blobs: contents that came with the job, by digest.
        digest_of: SHA-256 of a file, empty where there is none.
        entry: the text of `node_root`.
        keep: where files are kept.

    Returns ("lacks", digests) where contents are needed, and ("refused", why) where the files cannot be shown here.
    """
    try:
        return _lay_out(spec, blobs, digest_of, entry, keep)
    except Lacking as lacking:
        return ("lacks", lacking.digests)
    except Refused as unfit:
        return ("refused", str(unfit)[:300])
    except OSError as error:
        return ("refused", f"files cannot be laid out in {PLACE}: {error.strerror}")


def _lay_out(
    spec: Mapping[str, Any], blobs: Mapping[str, bytes], digest_of: DigestOf, entry: str, keep: Keep | None
) -> Laid | None:
    wrong = [file for file in spec["inputs"] if digest_of(file["path"]) != file["sha256"]]
    missing = [(file["path"], file["top"]) for file in wrong]
    missing += [(path, top) for path, top in spec["tops"].items() if not _stands(path, spec)]
    if not missing:
        return None
    if not spec["listed"]:
        raise Lacking
    for path, top in missing:
        if not top:
            raise Refused(f"{path} is not the same there, and its folder holds more than can be laid out")
    keep = keep or Keep()
    laid = Laid(spec, _outermost(top for _, top in missing), entry, keep)
    lacking = []
    for file in spec["inputs"]:
        if not laid.top_of(file["path"]) or os.path.lexists(keep.path(file)):
            continue
        content = blobs.get(file["sha256"])
        if content is None and digest_of(file["path"]) == file["sha256"]:
            with open(file["path"], "rb") as opened:
                content = opened.read()
        if content is None:
            lacking.append(file["sha256"])
        else:
            keep.add(file, content)
    if lacking:
        raise Lacking(lacking)
    keep.trim()
    laid.fill(spec)
    return laid


def _stands(path: str, spec: Mapping[str, Any]) -> bool:
    """Whether a link, or the folder that the tool runs in, is here as it is there."""
    target = spec["links"].get(path)
    return os.path.isdir(path) if target is None else _link_at(path) == target


def _outermost(tops: Iterable[str]) -> list[str]:
    found: list[str] = []
    for top in sorted(set(tops), key=len):
        if not any(top.startswith(f"{each}/") for each in found):
            found.append(top)
    return found
