"""What a disk may hold after a power cut: a recorded list of changes (`write_recorder.c`), replayed up to a moment.

The model is stricter than ext4 and like XFS: what was synced is there. Of what came later, names (files made, renamed,
removed) are there up to some moment, in their order; of the data of each file, any blocks may be missing, and a file
may have its new length but zeros in it. Knows no store.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import TESTS

BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Change:
    """A record: the operation (see the recorder), the inode, an offset or size, and data or paths."""

    op: str
    inode: int
    at: int
    data: bytes

    @property
    def paths(self) -> list[str]:
        return [part.decode(errors="surrogateescape") for part in self.data.split(b"\0")]

    @property
    def is_of_names(self) -> bool:
        return self.op in "crumdl"


@dataclass(slots=True)
class _File:
    synced: bytearray = field(default_factory=bytearray)
    later: list[Change] = field(default_factory=list)
    """Writes and truncations since it was synced."""


class Recorder:
    """The compiled recorder.

    Args:
        folder: where the library and the record lie; outside of `recorded`.
        recorded: changes below it are recorded; an absolute path without links.
    """

    def __init__(self, folder: Path, recorded: Path) -> None:
        self.recorded, self._record = recorded, folder / "record"
        library = folder / "write_recorder.so"
        source = TESTS / "support/write_recorder.c"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-pthread"], check=True)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "RECORDED_FOLDER": str(recorded),
            "RECORD_FILE": str(self._record),
        }

    def changes(self) -> list[Change]:
        return list(_parsed(self._record.read_bytes()))


def _parsed(record: bytes) -> Iterator[Change]:
    at = 0
    while at < len(record):
        end = record.index(b"\n", at)
        op, inode, where, _, size = record[at:end].split()
        at = end + 1 + int(size)
        if at > len(record):
            return  # the process was killed meanwhile
        yield Change(op.decode(), int(inode), int(where), record[end + 1 : at])


def replay(changes: list[Change], rng: random.Random, recorded: Path, folder: Path) -> int:
    """Write to `folder`, which does not exist, what may be left of `recorded` if the power fails after `changes`.

    Returns how many changes of names survived of those that were made.
    """
    # A sync of a file or folder writes the journal: all names up to there are safe.
    synced = max((number for number, change in enumerate(changes) if change.op == "s"), default=-1)
    names = [number for number, change in enumerate(changes) if change.is_of_names]
    later = [number for number in names if number > synced]
    last = rng.choice((synced, len(changes), *later[:1], *later[-1:], *later))
    files: dict[int, _File] = {}
    entries: dict[str, int] = {}
    folders: list[str] = []
    for number, change in enumerate(changes):
        if change.op in "wt":
            files.setdefault(change.inode, _File()).later.append(change)
        elif change.op == "s" and change.inode in files:
            file = files[change.inode]
            _apply(file.synced, file.later)
            file.later.clear()
        elif change.op == "c":
            files[change.inode] = _File()  # the number may have been another file's
        if change.is_of_names and number <= last:
            _rename(change, entries, folders)
    folder.mkdir()
    for path in folders:
        _place(path, recorded, folder).mkdir(parents=True, exist_ok=True)
    for path, inode in entries.items():
        there = _place(path, recorded, folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(_left(files.get(inode, _File()), rng))
        there.chmod(0o600)
    return sum(number <= last for number in names)


def _rename(change: Change, entries: dict[str, int], folders: list[str]) -> None:
    path, *to = change.paths
    match change.op:
        case "c":
            entries[path] = change.inode
        case "l":
            entries[to[0]] = change.inode
        case "u":
            entries.pop(path, None)
        case "m":
            folders.append(path)
        case "d":
            folders[:] = [known for known in folders if known != path]
        case "r":
            inside = [known for known in entries if known == path or known.startswith(path + "/")]
            for known in inside:
                entries[to[0] + known[len(path) :]] = entries.pop(known)
            folders[:] = [to[0] + f[len(path) :] if f == path or f.startswith(path + "/") else f for f in folders]


def _left(file: _File, rng: random.Random) -> bytes:
    content = bytearray(file.synced)
    match rng.choice(("all", "all", "none", "beginning", "blocks", "length")):
        case "all":
            _apply(content, file.later)
        case "beginning":
            _apply(content, file.later[: rng.randrange(len(file.later) + 1)])
        case "blocks":
            whole = bytearray(content)
            _apply(whole, file.later)
            size = len(whole)
            content = content[:size] + bytes(max(0, size - len(content)))
            for at in range(0, size, BLOCK_BYTES):
                if rng.random() < 0.5:
                    content[at : at + BLOCK_BYTES] = whole[at : at + BLOCK_BYTES]
        case "length":
            whole = bytearray(content)
            _apply(whole, file.later)
            content = content[: len(whole)] + bytes(max(0, len(whole) - len(content)))
    return bytes(content)


def _apply(content: bytearray, changes: list[Change]) -> None:
    for change in changes:
        end = change.at + (len(change.data) if change.op == "w" else 0)
        if change.op == "t":
            del content[change.at :]
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        if change.op == "w":
            content[change.at : end] = change.data


def _place(path: str, recorded: Path, folder: Path) -> Path:
    return folder / path[len(str(recorded)) :].lstrip("/")
