"""Recordings: what a program asked to have compiled, as JSON lines from which another machine compiles it again.

The same run gives the same file. Compiles nothing. Nothing in a recording is used before its line has been checked; its
size is bounded.

    {"buildd": "recording", "version": 2}
    {"module": "__main__", "file": "train.py", "name": "add_kernel", ...}     Triton's kernels (`kernel_manifest`)
    {"kind": "call", "call": {"command": [...], ...}, "root": "/srv/app"}     calls of compilers (`recorded_calls`)
    {"kind": "file", "text": "..."} or {"kind": "file", "base64": "..."}      files, found by their SHA-256

Version 1 was "triton-kernels", with kernels alone; it is read too.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from buildd.errors import BuilddError
from buildd.programs.kernel_manifest import ManifestLine, line_of
from buildd.programs.recorded_calls import CallLine, checked

KIND, VERSION = "recording", 2
_READ = ((KIND, VERSION), ("triton-kernels", 1))
MOST_BYTES = 512 << 20
_NEXT = "record it again: buildd run --record FILE -- COMMAND"


class RecordingError(BuilddError):
    """A file is not a recording that this buildd can read."""

    code = "bad-recording"
    is_usage = True


class FileLine(msgspec.Struct, frozen=True, tag_field="kind", tag="file", omit_defaults=True):
    """The content of a file."""

    text: str | None = None
    base64: str | None = None

    def content(self) -> bytes:
        """Raises ValueError."""
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.base64 or "", validate=True)


class _Head(msgspec.Struct):
    buildd: str
    version: int


class _Kind(msgspec.Struct):
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a recording holds.

    Args:
        files: SHA-256 -> content.
    """

    kernels: list[ManifestLine] = field(default_factory=list)
    calls: list[CallLine] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


def write(
    path: Path, kernels: Iterable[bytes], calls: Collection[CallLine] = (), files: Mapping[str, bytes] | None = None
) -> None:
    """Write a recording, whole or not at all. Raises OSError."""
    found = sorted(map(line_of, kernels), key=lambda one: (one.kernel.label, str(one.target), one.text))
    lines = [msgspec.json.encode({"buildd": KIND, "version": VERSION}), *(line.text for line in found)]
    lines += sorted(msgspec.json.encode(call) for call in calls)
    lines += [msgspec.json.encode(_line_of(content)) for _, content in sorted((files or {}).items())]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(b"".join(text + b"\n" for text in lines))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _line_of(content: bytes) -> FileLine:
    try:
        return FileLine(text=content.decode())
    except UnicodeDecodeError:
        return FileLine(base64=base64.b64encode(content).decode())


def read(path: Path) -> Recording:
    """Read and check a recording. Raises RecordingError."""
    try:
        with open(path, "rb") as file:
            # `read` takes as much memory as it is given a number.
            content = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES) + 1)
    except OSError as error:
        raise RecordingError(
            f"the recording cannot be read: {error.strerror}", file=str(path), next_step=_NEXT
        ) from error
    if len(content) > MOST_BYTES:
        raise RecordingError(f"the recording is larger than {MOST_BYTES >> 20} MiB", file=str(path), next_step=_NEXT)
    texts = content.split(b"\n")
    try:
        head = msgspec.json.decode(texts[0], type=_Head)
    except msgspec.MsgspecError as error:
        raise RecordingError("this file is not a recording", file=str(path), next_step=_NEXT) from error
    if (head.buildd, head.version) not in _READ:
        raise RecordingError(
            f"this recording is of kind {head.buildd!r}, version {head.version}; this buildd reads {KIND!r}, "
            f"version {VERSION}",
            file=str(path),
            next_step=_NEXT,
        )
    found = Recording()
    for number, text in enumerate(texts[1:], 2):
        if text:
            try:
                _take(found, text)
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, too
                raise RecordingError(
                    f"this line of the recording cannot be used: {error}", file=f"{path}:{number}", next_step=_NEXT
                ) from error
    return found


def _take(found: Recording, text: bytes) -> None:
    match msgspec.json.decode(text, type=_Kind).kind:
        case "":
            found.kernels.append(line_of(text))
        case "call":
            found.calls.append(checked(msgspec.json.decode(text, type=CallLine)))
        case "file":
            content = msgspec.json.decode(text, type=FileLine).content()
            found.files[hashlib.sha256(content).hexdigest()] = content
        case other:
            raise ValueError(f"no such kind: {other!r}")
