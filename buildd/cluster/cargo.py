"""The files that a job reads, as a node can lay them out: contents by digest, links, folders. In a worker thread.

Knows paths and what the file system says of them; no action, no cluster.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from buildd.cluster.node_files import digest_of, is_text
from buildd.cluster.wire import InputFile

MOST_FILES = 20_000
MOST_BYTES = 256 << 20
"""A job that reads more stays on machines that have its files."""
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Cargo:
    """What a job reads.

    Args:
        files: all of its files, or the ones that are known.
        listed: these are all.
        links: path -> target of each link on the way to a file.
        folders: folders that the tool may look into.
        tops: path -> top of what else must be there; see `wire.Errand`.
    """

    files: tuple[InputFile, ...] = ()
    listed: bool = False
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    tops: Mapping[str, str] = field(default_factory=dict)


def known_alone(paths: Iterable[str]) -> Cargo:
    """A cargo of a job whose other files are not known yet.

    Args:
        paths: absolute.
    """
    return Cargo(tuple(InputFile(path, digest_of(path)) for path in paths))


def pack(paths: Iterable[str], folders: Iterable[str], cwd: str, fixed: Iterable[str]) -> Cargo | None:
    """The cargo of a job, whose files are all known; None where a node cannot be given them.

    Args:
        paths: files that it reads (absolute, as the tool spells them).
        folders: that it looks into (absolute); in their places a node may put what it was given.
        cwd: the folder that it runs in, likewise; empty where that is a folder of the job's own.
        fixed: files of the tool, and other paths that must stay as they are on the node.
    """
    walk = _Walk()
    asked = (cwd, *folders) if cwd else tuple(folders)
    places = [real for folder in asked if (real := walk.follow(folder)) and os.path.isdir(real)]
    found: dict[str, os.stat_result] = {}
    for path in paths:
        real = walk.follow(path)
        try:
            seen = os.stat(real)
        except OSError:
            return None
        if not real or not is_text(real) or not stat.S_ISREG(seen.st_mode):
            return None
        found[real] = seen
    if len(found) > MOST_FILES or sum(seen.st_size for seen in found.values()) > MOST_BYTES:
        return None
    tops = _Tops(places, [each for path in fixed for each in (path, os.path.realpath(path))])
    first: dict[tuple[int, int], str] = {}
    files = tuple(
        InputFile(
            path=path,
            sha256=digest_of(path),
            size_bytes=seen.st_size,
            mtime_ns=seen.st_mtime_ns,
            same_as=first.setdefault((seen.st_dev, seen.st_ino), path),
            top=tops.of(os.path.dirname(path)),
        )
        for path, seen in found.items()
    )
    if not all(file.sha256 for file in files) or not all(map(is_text, (*walk.folders, *walk.links.values()))):
        return None
    needed = {path: tops.of(os.path.dirname(path)) for path in walk.links}
    if cwd:
        real = walk.follow(cwd)
        needed[real] = tops.of(real)
    return Cargo(files, True, walk.links, tuple(sorted({*places, *walk.folders})), needed)


def contents(cargo: Cargo, digests: Collection[str]) -> dict[str, bytes]:
    """The contents of a cargo's files. Raises OSError, also where a file has changed."""
    wanted = set(digests)
    found: dict[str, bytes] = {}
    for file in cargo.files:
        if file.sha256 in wanted and file.sha256 not in found:
            with open(file.path, "rb") as opened:
                content = found[file.sha256] = opened.read()
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise OSError(0, "it has changed", file.path)
    return found


class _Walk:
    """Paths, followed as the system follows them; remembers the links and folders on the way."""

    def __init__(self) -> None:
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self._real: dict[str, str] = {"/": "/"}

    def follow(self, path: str, depth: int = 0) -> str:
        """The path without links, of an absolute path; empty where links lead nowhere."""
        known = self._real.get(path)
        if known is not None or depth > _MOST_LINKS:
            return known or ""
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self.follow(above or "/", depth)
        if not folder:
            return ""
        self.folders.add(folder)
        if name in ("", "."):
            real = folder
        elif name == "..":
            real = os.path.dirname(folder)
        else:
            real = f"{folder.rstrip('/')}/{name}"
            try:
                target = os.readlink(real)
            except OSError:
                target = ""
            if target:
                self.links[real] = target
                real = self.follow(os.path.join(folder, target), depth + 1)
        self._real[path] = real
        return real


class _Tops:
    """The folders in whose places a node may put others: as far out as nothing that must stay lies below them."""

    def __init__(self, places: Iterable[str], fixed: Collection[str]) -> None:
        self._fixed = tuple(fixed)
        self._known: dict[str, str] = {}
        self._places = [place for place in sorted(set(places), key=len) if self._free(place)]

    def of(self, folder: str) -> str:
        """The top for what lies in a folder; empty where there is none."""
        known = self._known.get(folder)
        if known is None:
            known = next((top for top in self._places if folder == top or folder.startswith(f"{top}/")), "")
            if not known and self._free(folder):
                known = folder
            self._known[folder] = known
        return known

    def _free(self, folder: str) -> bool:
        return folder != "/" and not any(path.startswith(f"{folder}/") or path == folder for path in self._fixed)
