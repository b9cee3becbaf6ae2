"""Answers to foreign compiles, a file each: shims find, check and deliver them without a daemon (answer.c).

Knows the format of the files and the bound of their folder; knows neither how an answer was found (`foreign_intake`)
nor how direct hits are counted (`hit_notes`). An answer's file holds everything, the object's bytes too: it outlives
the daemon and needs no index. Files are replaced by rename, and digests cover all bytes: a torn or damaged file is no
answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from buildd.identity import package_digest
from buildd.store.answer_questions import OWN
from buildd.store.areas import Area, Checked, Held
from codegen.compilers.depfile import Rule
from codegen.reach import read_regular

if TYPE_CHECKING:
    from buildd.files.stamp_set import Stamps
    from protocol.messages import Digest

FOLDER = "answers"
"""The folder of answers in a store."""
NOTES = "notes"
"""A folder in that folder; see `hit_notes`."""
MOST_OBJECT_BYTES = 32 << 20
"""Larger objects get no answer; the daemon delivers them from the store."""
MOST_FACTS_BYTES = 16 << 20
SHARE = 10
"""The folder may hold the store's bound divided by this, beside the store."""

_MAGIC = b"buildd-answer 8\n"
_HEAD = struct.Struct("=16s32s32s32s32sQQ")
"""Magic; digest of what follows up to the object; digests of both questions and of the object; lengths of object and
facts."""
_CHECKED = 48
_CODE = "code"
_MOST_CODE_BYTES = 127
"""As many as a shim reads."""
_NAME = re.compile(r"[0-9a-f]{32}")
_STAMP_BYTES = 40
_DIGEST_BYTES = 32
_KEPT = 0.9
_TORN_S = 3600.0
_temporaries = itertools.count(1)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result that a shim delivers, and the files that must be unchanged for that.

    With a `folder`, the answer holds in every checkout, and what the tool said has `OWN` in place of the folder's path.
    """

    question: bytes
    elsewhere: bytes = b""
    """The question in another checkout (`question_elsewhere`); with a folder."""
    folder: str = ""
    """Of the checkout; below it are all its files."""
    stamps: Stamps
    output: str
    object: bytes
    depfile: str = ""
    rules: bytes = b""
    """The depfile's content."""
    rule: Rule | None = None
    """Its names, with a folder: lines end by the length of paths."""
    mode: int = 0o666
    """The object's mode, before the umask."""
    stdout: bytes = b""
    stderr: bytes = b""
    key: Digest
    """Key of the result in the store."""
    saved_s: float = 0.0


class Answers:
    """The answers of one store. Safe to use from several threads.

    Args:
        store: the store's folder.
        limit_bytes: the store's bound.
    """

    def __init__(self, store: Path, limit_bytes: int) -> None:
        self._store = store
        self._limit_bytes = limit_bytes // SHARE
        self._lock = threading.Lock()
        self._held_bytes = -1
        """-1 until the first `publish` counts them."""

    def publish(self, answer: Answer) -> None:
        """Write an answer, for shims to find; if it cannot be written, there is none."""
        content = encode(answer)
        if len(answer.object) > MOST_OBJECT_BYTES or len(content) - len(answer.object) > MOST_FACTS_BYTES:
            return
        try:
            folder = self._store / FOLDER
            if self._held_bytes < 0:
                folder = prepare(self._store)
            aside = folder / f".{os.getpid()}-{next(_temporaries)}"
            try:
                descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(descriptor, "wb", buffering=0) as file:
                    file.write(content)
                if answer.elsewhere:
                    self._share(aside, folder / _name(answer.elsewhere))
                os.replace(aside, folder / _name(answer.question))
            except OSError:
                aside.unlink(missing_ok=True)
                raise
            with self._lock:
                if self._held_bytes < 0:
                    self._held_bytes = held(self._store)[1]
                else:
                    self._held_bytes += len(content)
                if self._held_bytes > self._limit_bytes:
                    self._held_bytes = trim(self._store, int(self._limit_bytes * _KEPT))
        except OSError as error:
            _log.info("an answer was not kept: %s", error)

    def _share(self, made: Path, place: Path) -> None:
        """Give an answer a second name; on a file system without links it has one."""
        link = made.with_name(f"{made.name}-link")
        with contextlib.suppress(OSError):
            os.link(made, link)
            os.replace(link, place)


def prepare(store: Path) -> Path:
    """The folder of answers, made where it is missing, for the buildd that runs now.

    Answers that another version of buildd wrote are removed. Raises OSError.
    """
    folder = store / FOLDER
    for place in (folder, folder / NOTES):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = folder / _CODE
    with contextlib.suppress(OSError):
        if read_regular(str(code), _MOST_CODE_BYTES) == package_digest().encode():
            return folder
    aside = folder / f".{os.getpid()}-{next(_temporaries)}"
    aside.write_text(package_digest(), encoding="ascii")
    os.replace(aside, code)
    clear(store)
    return folder


def clear(store: Path) -> int:
    """Remove all answers; how many went."""
    return sum(_remove(entry.path) for entry in _entries(store))


def trim(store: Path, limit_bytes: int) -> int:
    """Remove the least recently used answers until the others fit; how many bytes are left."""
    found = sorted((status.st_mtime_ns, _size(status), entry.path) for entry, status in _statuses(store))
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= limit_bytes:
            break
        total -= size * _remove(path)
    for entry in _entries(store, torn=True):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _TORN_S:
                os.unlink(entry.path)
    return total


def held(store: Path) -> tuple[int, int]:
    """How many answers there are, and their bytes."""
    sizes = {status.st_ino: status.st_size for _, status in _statuses(store)}  # some have two names
    return len(sizes), sum(sizes.values())


def verify(store: Path) -> tuple[int, int]:
    """Read all answers and remove the bad ones, if they may be; how many there were, and how many were bad."""
    count = bad = 0
    for entry in _entries(store):
        with contextlib.suppress(OSError):
            if not is_sound(read_regular(entry.path), entry.name):
                _remove(entry.path)
                bad += 1
            count += 1
    return count, bad


class AnswerArea(Area):
    """The folder of answers. No answer knows its action's name, so a flush drops all of them."""

    name = "answers"

    def __init__(self, store: Path) -> None:
        self._store = store

    def held(self) -> Held:
        entries, size_bytes = held(self._store)
        return Held(entries=entries, bytes=size_bytes, note="hits that need no daemon")

    def trim(self, limit_bytes: int) -> None:
        trim(self._store, limit_bytes // SHARE)

    def verify(self) -> Checked:
        entries, bad = verify(self._store)
        return Checked(entries=entries, removed=bad)

    def flush(self, *, everything: bool) -> None:
        clear(self._store)


def encode(answer: Answer) -> bytes:
    """The content of an answer's file."""
    key = bytes.fromhex(answer.key)
    folder = os.fsencode(answer.folder)
    facts = b"".join(
        (
            folder + b"\0",
            _files(answer.stamps, folder),
            _folders(answer.stamps, folder),
            *(_own(os.fsencode(path), folder) + b"\0" for path in (answer.output, answer.depfile)),
            _number(answer.mode),
            _number(0) + _counted(answer.rules) if answer.rule is None or not folder else _rule(answer.rule, folder),
            *(_counted(part) for part in (answer.stdout, answer.stderr)),
            _counted(key + int(answer.saved_s * 1000).to_bytes(8, "little")),
        )
    )
    head = _HEAD.pack(
        _MAGIC,
        b"",
        _digest(answer.question),
        _digest(answer.elsewhere) if answer.elsewhere else bytes(_DIGEST_BYTES),
        _digest(answer.object),
        len(answer.object),
        len(facts),
    )
    checked = head[_CHECKED:] + facts
    return b"".join((_MAGIC, _digest(checked), checked, answer.object))


def is_sound(content: bytes, name: str) -> bool:
    """Whether a file of this name is an undamaged answer."""
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        return False
    _, check, *questions, of_object, object_length, facts_length = _HEAD.unpack_from(content)
    end = _HEAD.size + facts_length
    whole = len(content) == end + object_length and name in (each.hex()[:32] for each in questions if any(each))
    return bool(whole and _digest(content[_CHECKED:end]) == check and _digest(content[end:]) == of_object)


# ---------------------------------------------------------------- pieces


def _own(path: bytes, folder: bytes) -> bytes:
    """A path, with OWN in place of the checkout's folder."""
    is_below = folder and (path == folder or path.startswith(folder + b"/"))
    return OWN + path[len(folder) :] if is_below else path


def _rule(rule: Rule, folder: bytes) -> bytes:
    source = rule.source if rule.phony else len(rule.files)
    names = b"".join(_own(os.fsencode(name), folder) + b"\0" for name in (*rule.targets, *rule.files))
    return struct.pack("=IIII", len(rule.targets), len(rule.files), source, rule.clang) + names


def _files(stamps: Stamps, own: bytes) -> bytes:
    """All stamps, all digests, of contents and of both bare forms, and the files that they belong to, by folder."""
    folders: dict[bytes, list[tuple[bytes, int]]] = {}
    for index, path in enumerate(stamps.paths):
        folder, _, name = path.rpartition(b"/")
        folders.setdefault(folder, []).append((name, index))
    text, order = [_number(len(folders))], []
    for folder, names in folders.items():
        text += [_own(folder, own), b"\0", _number(len(names)), *(name + b"\0" for name, _ in names)]
        order += [index for _, index in names]
    numbers = _ordered(stamps.stamps, order, _STAMP_BYTES)
    digests = [_ordered(each, order, _DIGEST_BYTES) for each in (stamps.digests, stamps.bare, stamps.loose)]
    return b"".join((*map(_counted, (numbers, *digests)), *text))


def _ordered(data: bytes, order: Iterable[int], size: int) -> bytes:
    """Fields of one size in another order; zeros if there are none."""
    return b"".join(data[size * i : size * (i + 1)] or bytes(size) for i in order)


def _folders(stamps: Stamps, own: bytes) -> bytes:
    words = sorted({*map(_word, stamps.names)})
    text = [_counted(struct.pack(f"={len(words)}I", *words)), _number(len(stamps.folders))]
    for folder in stamps.folders:
        there = sorted(folder.there or ())
        text += [
            _own(os.fsencode(folder.path), own),
            b"\0",
            struct.pack("=qII", folder.stamp, folder.there is not None, len(there)),
        ]
        text += [(b"d" if is_folder else b"f") + os.fsencode(name) + b"\0" for name, is_folder in there]
    return b"".join(text)


@lru_cache(maxsize=1 << 14)  # the sources of a build share almost all of their names
def _word(name: str) -> int:
    return zlib.crc32(os.fsencode(name))


def _number(value: int) -> bytes:
    return struct.pack("=I", value)


def _counted(data: bytes) -> bytes:
    return _number(len(data)) + data


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _name(question: bytes) -> str:
    return _digest(question).hex()[:32]


def _entries(store: Path, *, torn: bool = False) -> Iterator[os.DirEntry[str]]:
    """All answers; with `torn` the temporary files that killed processes have left instead."""
    with contextlib.suppress(FileNotFoundError), os.scandir(store / FOLDER) as entries:
        yield from (entry for entry in entries if (entry.name[:1] == "." if torn else _NAME.fullmatch(entry.name)))


def _statuses(store: Path) -> Iterable[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in _entries(store):
        with contextlib.suppress(OSError):
            yield entry, entry.stat(follow_symlinks=False)


def _size(status: os.stat_result) -> int:
    """The bytes that one name of an answer takes."""
    return status.st_size // max(status.st_nlink, 1)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
