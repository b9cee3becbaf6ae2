"""Entries beside the store, which processes of users write and read themselves: Triton's kernels, Inductor's graphs.

Standard library only. An entry is one file, replaced by rename: what is in it has a digest, and is signed by who put it
there. Code is run from some of them, so one that is not signed by the user, or by somebody whom they trust, is none.
Knows the format of an entry and no daemon (`kept_kernels` bounds and checks them).
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
"""Magic; who signed; the signature, of the entry's name and the digest; the digest, of all that follows it; length of
the facts, which the files' contents follow."""
_CHECKED = 144
_UNSIGNED = signatures.KEY_BYTES + signatures.SIGNATURE_BYTES
_SIGNED = b"buildd entry\0"
"""Before what is signed: no signature of an entry is one of anything else."""
MOST_BYTES = 256 << 20
_USED_AGAIN_S = 3600.0
_OFF = ("", "0", "false", "no", "off")
NOTE = ".tool"
"""How names of notes end: what was made of a tool's files, by their stamps."""
_MOST_NOTED = 1 << 20
_SETTLED_NS = 2_000_000_000
_values: dict[str, str] = {}
"""Name of a note -> what it tells."""
_told: set[bool] = set()
"""Whether the user was told that their keys cannot be used."""
_temporaries = itertools.count(1)


class Entry:
    """A kernel's files as they are kept.

    Args:
        key: Triton's.
        group: the name that Triton has for the files together.
        files: name -> content.
    """

    def __init__(self, key: str, group: str, files: dict[str, bytes]) -> None:
        self.key = key
        self.group = group
        self.files = files

    def encode(self, name: str = "", keys: signatures.Keys | None = None) -> bytes:
        """The content of its file.

        Args:
            name: of the shelf and of the file, "triton/5f0c...".
            keys: who signs; nobody when None.
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
        """Whoever signed it. Raises ValueError for what is torn, damaged or none of ours."""
        if len(content) < HEAD.size or not content.startswith(MAGIC):
            raise ValueError("no entry")
        *_, check, length = HEAD.unpack_from(content)
        if _digest_of(content[_CHECKED:]) != check:
            raise ValueError("damaged")
        facts = json.loads(content[HEAD.size : HEAD.size + length])
        at, files = HEAD.size + length, {}
        for name, size in facts["files"]:
            if not is_plain(name) or len(content) - at < size:
                raise ValueError("damaged")
            files[name] = content[at : at + size]
            at += size
        if at != len(content):
            raise ValueError("damaged")
        return cls(facts["key"], facts["group"], files)


def check(content: bytes, name: str, keys: signatures.Keys) -> None:
    """Raises ValueError where an entry is not signed, for this name, by somebody who is trusted."""
    if len(content) < HEAD.size or not content.startswith(MAGIC):
        raise ValueError("no entry")
    _, public, signature, digest, _ = HEAD.unpack_from(content)
    keys.check(public, _message(name, digest), signature)


def _message(name: str, digest: bytes) -> bytes:
    return _SIGNED + name.encode() + b"\0" + digest


def _digest_of(rest: bytes) -> bytes:
    return hashlib.blake2b(rest, digest_size=32).digest()


def tell(log: logging.Logger, what: str, error: Exception) -> None:
    """Log why something of ours did not take part. Keys that cannot be used are worth a line to the user, once: until
    they mend it, nothing is kept."""
    is_first = isinstance(error, signatures.Unusable) and not _told
    _told.update([True] if is_first else [])
    log.log(logging.WARNING if is_first else logging.INFO, "buildd: %s: %s", what, error)


def is_plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\0"}


class Shelf:
    """Entries of one kind in one store. Every method may raise OSError and ValueError.

    Args:
        store: its folder.
        folder: the name of the entries' own one in it.
        environ: decides what an entry is called, and whose keys count; os.environ when None.
    """

    def __init__(self, store: str, folder: str, environ: Mapping[str, str] | None = None) -> None:
        self.folder = os.path.join(store, folder)
        self._kind = folder
        self._environ: Mapping[str, str] = os.environ if environ is None else environ

    def open(self) -> bool:
        """Have the folder there; whether entries can be written to it."""
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
        """The name of an entry's file: of all that Triton's key leaves out, too."""
        return name_of(key, group, self.folder, self._environ)

    def take(self, key: str, group: str) -> Entry | None:
        """An entry that is whole and signed; None where there is none."""
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
                raise ValueError("no entry")
            content = file.read()
            check(content, f"{self._kind}/{name}", signatures.keys(self._environ))
            entry = Entry.decode(content)
            if (entry.key, entry.group) != (key, group) or group not in entry.files:
                raise ValueError("another entry")
            if time.time() - status.st_mtime > _USED_AGAIN_S:
                # What was not used for longest goes first.
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
        return entry

    def put(self, entry: Entry) -> None:
        """Have an entry found from now on, whole or not at all."""
        self.put_as(self.name_of(entry.key, entry.group), entry)

    def put_as(self, name: str, entry: Entry) -> None:
        """The same, for who knows the name of the file."""
        content = entry.encode(f"{self._kind}/{name}", signatures.keys(self._environ))
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


def name_of(key: str, group: str, notes: str = "", environ: Mapping[str, str] | None = None) -> str:
    """The name of an entry's file.

    Args:
        notes: a folder where digests of large files are remembered, for other processes.
        environ: os.environ when None.
    """
    environ = os.environ if environ is None else environ
    parts = [key, group, str(is_on("TRITON_STORE_BINARY_ONLY", environ))]
    # Tools in place of Triton's own: their version is keyed, their content is not.
    for name in sorted(name for name in environ if name.startswith("TRITON_") and name.endswith("_PATH")):
        if os.path.isfile(environ[name]):
            parts.append(f"{name}={digest_of(environ[name], notes)}")
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def digest_of(path: str, notes: str = "") -> str:
    """Of a file's content: it is read once for each state of it, where notes can be kept. Raises OSError."""

    def digest() -> str:
        hasher = hashlib.blake2b(digest_size=16)
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        return hasher.hexdigest()

    return remembered(digest, lambda: [stamp_of(path)], notes)


def remembered(value_of: Callable[[], str], stamps_of: Callable[[], Sequence[tuple[int, ...]]], notes: str = "") -> str:
    """What was made of files, unless they have changed. Raises OSError.

    Args:
        value_of: makes it: a text without blanks.
        stamps_of: the files' stamps, each with the time of its last change (ns) at the end.
        notes: a folder where it is remembered for other processes.
    """
    stamps = stamps_of()
    note = hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest() + NOTE
    value = _values.get(note) or (_noted(os.path.join(notes, note)) if notes else "")
    if not value:
        value = value_of()
        # A file that was written just now may be written again without a trace: clocks of file systems have steps.
        now_ns = time.time_ns()
        if any(abs(now_ns - stamp[-1]) < _SETTLED_NS for stamp in stamps) or stamps_of() != stamps:
            return value
        if notes:
            with contextlib.suppress(OSError):
                write(os.path.join(notes, note), f"{value} {_check_of(note, value)}".encode())
    _values[note] = value
    return value


def stamp_of(path: str) -> tuple[int, ...]:
    """Of a file's state. Raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _noted(place: str) -> str:
    """What another process has noted; empty where there is nothing that is whole."""
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
    """Have a file there, whole or not at all."""
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
