"""`buildd run --record FILE`: gathers what the command's processes asked to have compiled, and writes the recording.

Knows where the notes are and what a recording is. The program itself notes its Triton kernels (`hooks/triton_record`),
the daemon its compiler calls (`scheduling/call_notes`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from buildd.errors import StoreError
from buildd.hooks.triton_record import FOLDER, ROOT
from buildd.programs import kernel_manifest, recording_file
from buildd.programs.recorded_calls import CallLine
from buildd.scheduling.call_notes import CALLS, FILES, RecordedCall
from buildd.shims.framework_environment import HOOKS, variables
from buildd.ui.problems import print_note
from buildd.ui.text import count

_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Redirected, so that Inductor finds nothing in its cache. For a cached graph it would compile no kernel, and for a
measured kernel only the best candidate: another machine has neither."""

_MOST_SHOWN = 20


class _Problem(msgspec.Struct):
    problem: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """The notes of all processes.

    Args:
        kernels: lines of a recording.
        files: SHA-256 -> content.
        problems: what kept something out.
    """

    kernels: set[bytes] = field(default_factory=set)
    calls: list[CallLine] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@contextmanager
def recording(file: Path, environ: dict[str, str]) -> Iterator[None]:
    """Record what all processes that are started with `environ` compile, and write the recording at the end.

    Args:
        environ: is changed.

    Raises: StoreError if the recording cannot be written.
    """
    folder = file.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            "the recording cannot be written there", file=str(file), next_step="name a file in another folder"
        )
    # Processes that the command has left running may still write to Inductor's folder there.
    with tempfile.TemporaryDirectory(prefix="buildd-record-", ignore_cleanup_errors=True) as gathered:
        root = os.path.realpath(os.getcwd())
        environ.update({FOLDER: gathered, ROOT: root, _INDUCTOR: os.path.join(gathered, "inductor")})
        if HOOKS not in environ.get("PYTHONPATH", "").split(os.pathsep):
            environ["PYTHONPATH"] = variables(environ)["PYTHONPATH"]
        yield
        found = gather(Path(gathered), root)
    try:
        recording_file.write(file, found.kernels, found.calls, found.files)
    except OSError as error:
        raise StoreError(f"the recording cannot be written: {error.strerror}", file=str(file)) from error
    for problem in found.problems[:_MOST_SHOWN]:
        print_note(f"buildd: not recorded: {problem}")
    if len(found.problems) > _MOST_SHOWN:
        print_note(f"buildd: not recorded: {len(found.problems) - _MOST_SHOWN} more")
    held = [(len(found.calls), "compiler call"), (len(found.kernels), "kernel")]
    said = " and ".join(count(number, noun) for number, noun in held if number)
    note = f"buildd: {said or 'nothing'} recorded in {file}"
    none = f"{note}: the command called no compiler that buildd keeps results of, and used no Triton kernels"
    print_note(note if said or found.problems else none)


def gather(folder: Path, root: str = "/") -> Gathered:
    """The notes of all processes, each once. Torn lines are ignored.

    Args:
        root: the folder where `buildd run` was called.
    """
    kernels: set[bytes] = set()
    problems: set[str] = set()
    for place in sorted(folder.glob("*.jsonl")):
        for text in place.read_bytes().splitlines():
            try:
                problems.add(msgspec.json.decode(text, type=_Problem).problem)
                continue
            except msgspec.MsgspecError:
                pass
            try:
                kernel_manifest.line_of(text)
            except ValueError:
                continue
            kernels.add(text)
    calls = [
        msgspec.json.decode(place.read_bytes(), type=RecordedCall) for place in sorted((folder / CALLS).glob("[!.]*"))
    ]
    needed = {digest for call in calls for digest in call.files.values()}
    files = {digest: (folder / FILES / digest).read_bytes() for digest in sorted(needed)}
    return Gathered(kernels, [CallLine(call, root) for call in calls], files, sorted(problems))
