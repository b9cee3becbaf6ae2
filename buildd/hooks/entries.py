"""Entries beside the store that users' processes read and write themselves: Triton's kernels, Inductor's graphs,
JAX's programs.

Standard library only. An entry is one file, replaced by rename; its content has a digest and its writer's signature.
Some entries are run as code, so an entry not signed by the user, or by somebody whom they trust, does not count. Knows
the format of an entry and no daemon (`shared_kernels` bounds and checks them).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import stat
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from . import signatures

MAGIC = b"buildd-entry 2\n\0"
HEAD = struct.Struct("<16s32s64s32sI")
"""Magic; the signer's public key; the signature of the entry's name and the digest; the digest of all that follows it;
length of the facts, after which the files' contents follow."""
_CHECKED = 144
_UNSIGNED = signatures.KEY_BYTES + signatures.SIGNATURE_BYTES
_SIGNED = b"buildd entry\0"
"""Prefix of every signed message, so that a signature of an entry is not one of anything else."""
MOST_BYTES = 256 << 20
_USED_AGAIN_S = 3600.0
_OFF = ("", "0", "false", "no", "off")
FOUND_FOLDER = "answers/found"
"""Folder in a store where running builds have a file; one byte is added for each entry that a program finds."""
FOUND_KERNEL, FOUND_GRAPH, FOUND_PROGRAM, FOUND_TRACE = b"k", b"g", b"j", b"t"
NOTE = ".tool"
"""Ending of the names of notes: values computed from a tool's files, by their stamps."""
_MOST_NOTED = 1 << 20
_SETTLED_NS = 2_000_000_000
_values: dict[str, str] = {}
"""Name of a note -> its value."""
_told: set[bool] = set()
"""Not empty once the user was told that their keys cannot be used."""
_temporaries = itertools.count(1)


class Entry:
    """A kernel's files, as stored.

    Args:
        key: Triton's key.
        group: Triton's name for the files together.
        files: name -> content.
    """

    def __init__(self, key: str, group: str, files: dict[str, bytes]) -> None:
        self.key = key
        self.group = group
        self.files = files

    def encode(self, name: str = "", keys: signatures.Keys | None = None) -> bytes:
        """The content of its file.

        Args:
            name: of the shelf and the file, as in "triton/5f0c...".
            keys: the signer's; None leaves the entry unsigned.
        """
        facts = json.dumps(
            {"key": self.key, "group": self.group, "files": [[name, len(data)] for name, data in self.files.items()]}
        ).encode()
        rest = struct.pack("<I", len(facts)) + b"".join((facts, *self.files.values()))
        check = _digest_of(rest)
        signer = keys.public + keys.sign(_message(name, check)) if keys is not None else bytes(_UNSIGNED)
        return MAGIC + signer + check + rest

    @classmethod
    def decode(cls, content: bytes) -> Entry:
        """Read an entry; does not check its signature. Raises ValueError if it is torn, damaged or no entry."""
        if len(content) < HEAD.size or not content.startswith(MAGIC):
            raise ValueError("not an entry")
        *_, check, length = HEAD.unpack_from(content)
        if _digest_of(content[_CHECKED:]) != check:
            raise ValueError("damaged")
        try:
            facts = json.loads(content[HEAD.size : HEAD.size + length])
            key, group, listed = facts["key"], facts["group"], [(name, size) for name, size in facts["files"]]
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError("no entry's facts") from error
        if not (isinstance(key, str) and isinstance(group, str)):
            raise ValueError("no entry's facts")
        at, files = HEAD.size + length, {}
        for name, size in listed:
            if not (isinstance(name, str) and is_plain(name) and type(size) is int and 0 <= size <= len(content) - at):
                raise ValueError("damaged")
            files[name] = content[at : at + size]
            at += size
        if at != len(content):
            raise ValueError("damaged")
        return cls(key, group, files)


def check(content: bytes, name: str, keys: signatures.Keys) -> None:
    """Raises ValueError if an entry is not signed, for this name, by a trusted key."""
    if len(content) < HEAD.size or not content.startswith(MAGIC):
        raise ValueError("not an entry")
    _, public, signature, digest, _ = HEAD.unpack_from(content)
    keys.check(public, _message(name, digest), signature)


def _message(name: str, digest: bytes) -> bytes:
    return _SIGNED + name.encode() + b"\0" + digest


def _digest_of(rest: bytes) -> bytes:
    return hashlib.blake2b(rest, digest_size=32).digest()


def tell(log: logging.Logger, what: str, error: Exception) -> None:
    """Log why one of buildd's hooks failed.

    The first time that the user's keys cannot be used, it is a warning: nothing is kept until the user repairs them.
    """
    is_first = isinstance(error, signatures.Unusable) and not _told
    _told.update([True] if is_first else [])
    log.log(logging.WARNING if is_first else logging.INFO, "buildd: %s: %s", what, error)


def is_plain(name: str) -> bool:
    """Whether a name is a plain file name, without a path."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\0"}


class Shelf:
    """Entries of one kind in one store. Every method may raise OSError and ValueError.

    Args:
        store: the store's folder.
        folder: name of the entries' folder in it.
        environ: determines the names of entries, and whose keys count; os.environ if None.
    """

    def __init__(self, store: str, folder: str, environ: Mapping[str, str] | None = None) -> None:
        self.store = store
        self.folder = os.path.join(store, folder)
        self.kind = folder
        self._environ: Mapping[str, str] = os.environ if environ is None else environ

    def open(self) -> bool:
        """Make the folder; returns whether entries can be written to it."""
        try:
            status = os.lstat(self.folder)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(self.folder)):
                return False
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
            status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise OSError(f"{self.folder} is not a folder of this user's alone")
        return os.access(self.folder, os.W_OK | os.X_OK)

    def name_of(self, key: str, group: str) -> str:
        """The name of an entry's file: it covers what Triton's key leaves out, too."""
        return name_of(key, group, self.folder, self._environ)

    def take(self, key: str, group: str) -> Entry | None:
        """An undamaged, signed entry, or None."""
        name = self.name_of(key, group)
        try:
            descriptor = os.open(
                os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > MOST_BYTES:
                raise ValueError("not an entry")
            content = file.read()
            check(content, f"{self.kind}/{name}", signatures.keys(self._environ))
            entry = Entry.decode(content)
            if (entry.key, entry.group) != (key, group) or group not in entry.files:
                raise ValueError("another entry")
            if time.time() - status.st_mtime > _USED_AGAIN_S:
                # The least recently used entry is removed first.
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
        return entry

    def put(self, entry: Entry) -> None:
        """Store an entry, whole or not at all."""
        self.put_as(self.name_of(entry.key, entry.group), entry)

    def put_as(self, name: str, entry: Entry) -> None:
        """The same, under a known file name."""
        content = entry.encode(f"{self.kind}/{name}", signatures.keys(self._environ))
        if len(content) > MOST_BYTES:
            return
        aside = os.path.join(self.folder, f".{os.getpid()}-{next(_temporaries)}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                if file.write(content) != len(content):
                    raise OSError("written in part")
            os.replace(aside, os.path.join(self.folder, name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def lock_path(self, key: str, group: str) -> str:
        return os.path.join(self.folder, f"{self.name_of(key, group)}.lock")


found_here = 0
"""How many entries this process has found."""


def note_found(store: str, kind: bytes) -> None:
    """Note that a program found an entry, for the `buildd run` above it; nothing if there is none.

    Args:
        kind: FOUND_KERNEL, FOUND_GRAPH, FOUND_PROGRAM or FOUND_TRACE.
    """
    global found_here
    found_here += 1
    build = os.environ.get("BUILDD_BUILD_ID", "")
    if not build.isascii() or not build.isalnum():
        return
    with contextlib.suppress(OSError):
        path = os.path.join(store, FOUND_FOLDER, build)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, kind)
        finally:
            os.close(descriptor)


def name_of(key: str, group: str, notes: str = "", environ: Mapping[str, str] | None = None) -> str:
    """The name of an entry's file.

    Args:
        notes: folder for digests of large files, shared with other processes.
        environ: os.environ if None.
    """
    environ = os.environ if environ is None else environ
    parts = [key, group, str(is_on("TRITON_STORE_BINARY_ONLY", environ))]
    # Tools used instead of Triton's own: Triton's key has their version, not their content.
    for name in sorted(name for name in environ if name.startswith("TRITON_") and name.endswith("_PATH")):
        if os.path.isfile(environ[name]):
            parts.append(f"{name}={digest_of(environ[name], notes)}")
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def digest_of(path: str, notes: str = "") -> str:
    """Digest of a file's content; with notes, each state of the file is read only once. Raises OSError."""

    def digest() -> str:
        hasher = hashlib.blake2b(digest_size=16)
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        return hasher.hexdigest()

    return remembered("content", digest, lambda: [stamp_of(path)], notes)


def remembered(
    name: str, value_of: Callable[[], str], stamps_of: Callable[[], Sequence[tuple[int, ...]]], notes: str = ""
) -> str:
    """A value computed from files, remembered until they change. Raises OSError.

    Args:
        name: tells this value from others that are computed from the same files.
        value_of: computes it: a text without blanks.
        stamps_of: the files' stamps, each with the time of its last change (ns) at the end.
        notes: folder in which other processes find it.
    """
    stamps = stamps_of()
    note = hashlib.blake2b(f"{name} {stamps!r}".encode(), digest_size=16).hexdigest() + NOTE
    value = _values.get(note) or (_noted(os.path.join(notes, note)) if notes else "")
    if not value:
        value = value_of()
        # A file written just now may be written again without a trace: file system clocks are coarse.
        now_ns = time.time_ns()
        if any(abs(now_ns - stamp[-1]) < _SETTLED_NS for stamp in stamps) or stamps_of() != stamps:
            return value
        if notes:
            with contextlib.suppress(OSError):
                write(os.path.join(notes, note), f"{value} {_check_of(note, value)}".encode())
    _values[note] = value
    return value


def stamp_of(path: str) -> tuple[int, ...]:
    """Stamp of a file's state. Raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _noted(place: str) -> str:
    """The note of another process; empty if there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError), open(place, encoding="utf-8") as file:
        value, check = file.read(_MOST_NOTED).split()
        if check == _check_of(os.path.basename(place), value):
            return value
    return ""


def _check_of(note: str, value: str) -> str:
    return hashlib.blake2b(f"{note} {value}".encode(), digest_size=16).hexdigest()


def is_on(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a switch of the environment is on."""
    return (os.environ if environ is None else environ).get(name, "").lower() not in _OFF


def write(path: str, data: bytes) -> None:
    """Write a file, whole or not at all."""
    aside = f"{path}.{os.getpid()}-{next(_temporaries)}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
