"""Results and input sets as bundles and the shared tier carry them, and back.

Knows the structs of `bundle_manifest` and `result_rows`; no store, no file and no signature.
"""

from __future__ import annotations

from buildd.store.bundle_manifest import BundledInputs, BundledResult
from buildd.store.result_rows import LINK, PRESENT, UNKNOWN, FileList, InputSet, Result, StoredOutput, raw_of, raw_text
from protocol.messages import Digest, Timing


def bundled_result(result: Result, sets: list[BundledInputs]) -> BundledResult:
    """A result, and what leads to it."""
    timing = result.timing
    return BundledResult(
        raw_of(result.key),
        _bytes(result.action),
        [(_bytes(out.name), raw_of(out.digest), out.size_bytes, out.executable) for out in result.outputs],
        None if result.stdout is None else raw_of(result.stdout),
        None if result.stderr is None else raw_of(result.stderr),
        (timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes),
        sets,
        list(result.kernels),
    )


def bundled_files(known: InputSet) -> tuple[tuple[bytes, bytes], ...]:
    """The list of files of an input set."""
    return tuple((_bytes(name), raw_text(digest)) for name, digest in known.files)


def bundled_inputs(first: bytes, number: int, known: InputSet) -> BundledInputs:
    """An input set whose list of files has this number."""
    folders = [(_bytes(path), stamp == PRESENT) for path, stamp in known.folders]
    return BundledInputs(first, number, folders, [(_bytes(name), _bytes(path)) for name, path in known.roots])


def result_of(entry: BundledResult, created_ns: int) -> Result:
    """The result."""
    wall_s, user_s, system_s, peak = entry.timing
    return Result(
        key=Digest(entry.key.hex()),
        action=_str(entry.action),
        outputs=tuple(
            StoredOutput(_str(name), Digest(digest.hex()), size, executable)
            for name, digest, size, executable in entry.outputs
        ),
        stdout=None if entry.stdout is None else Digest(entry.stdout.hex()),
        stderr=None if entry.stderr is None else Digest(entry.stderr.hex()),
        timing=Timing(wall_s=wall_s, user_s=user_s, system_s=system_s, peak_rss_bytes=peak),
        created_ns=created_ns,
        kernels=tuple(entry.kernels),
    )


def input_set_of(key: bytes, one: BundledInputs, files: FileList) -> InputSet:
    """The input set that leads to the result under `key`."""
    return InputSet(
        files=files,
        folders=tuple((_str(path), _stamp(path, present)) for path, present in one.folders),
        roots=tuple((_str(name), _str(path)) for name, path in one.roots),
        key=Digest(key.hex()),
    )


def _stamp(path: bytes, present: bool) -> int:
    """The stamp that a folder gets here, because real stamps are valid on one machine only.

    A link is a folder and, behind a NUL, its target, which look-ups compare on this machine too.
    """
    if b"\0" in path:
        return LINK
    return PRESENT if present else UNKNOWN


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _str(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")
