"""`buildd run --record FILE`: gathers the Triton kernels that the command's processes note, and writes the manifest.

Knows where the notes are and what a manifest is; the program itself writes the notes (`hooks/triton_record`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from buildd.errors import StoreError
from buildd.hooks.triton_record import FOLDER, ROOT
from buildd.programs import kernel_manifest
from buildd.shims.framework_environment import HOOKS, variables
from buildd.ui.problems import print_note
from buildd.ui.text import count

_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Redirected, so that Inductor finds nothing in its cache. For a cached graph it would compile no kernel, and for a
measured kernel only the best candidate: another machine has neither."""


class _Problem(msgspec.Struct):
    problem: str


@contextmanager
def recording(file: Path, environ: dict[str, str]) -> Iterator[None]:
    """Record the kernels of all processes that are started with `environ`, and write the manifest at the end.

    Args:
        environ: is changed.

    Raises: StoreError if the manifest cannot be written.
    """
    folder = file.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            "the manifest cannot be written there", file=str(file), next_step="name a file in another folder"
        )
    # Processes that the command has left running may still write to Inductor's folder there.
    with tempfile.TemporaryDirectory(prefix="buildd-record-", ignore_cleanup_errors=True) as gathered:
        environ.update({FOLDER: gathered, ROOT: os.getcwd(), _INDUCTOR: os.path.join(gathered, "inductor")})
        if HOOKS not in environ.get("PYTHONPATH", "").split(os.pathsep):
            environ["PYTHONPATH"] = variables(environ)["PYTHONPATH"]
        yield
        lines, problems = gather(Path(gathered))
    try:
        kernels = kernel_manifest.write(file, lines)
    except OSError as error:
        raise StoreError(f"the manifest cannot be written: {error.strerror}", file=str(file)) from error
    for problem in problems:
        print_note(f"buildd: not recorded: {problem}")
    note = f"buildd: {count(kernels, 'kernel')} recorded in {file}"
    print_note(note if kernels or problems else f"{note}: the command used no Triton kernels")


def gather(folder: Path) -> tuple[set[bytes], list[str]]:
    """The lines of all processes, each once, and the problems that kept kernels out. Torn lines are ignored."""
    lines: set[bytes] = set()
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
            lines.add(text)
    return lines, sorted(problems)
