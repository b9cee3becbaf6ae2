"""`buildd run --record FILE`: gathers what the processes below it note of Triton kernels, and writes the manifest.

Knows where lines are gathered and what a manifest is; they are written by the program itself (`hooks/triton_record`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from buildd import kernel_manifest
from buildd.commands.common import print_note
from buildd.errors import StoreError
from buildd.frameworks import HOOKS, variables
from buildd.hooks.triton_record import FOLDER, ROOT
from buildd.ui.text import count

_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Of a graph that Inductor finds whole it asks Triton for nothing, and of a kernel that was measured before it has the
best candidate compiled alone: another machine has neither."""


class _Problem(msgspec.Struct):
    problem: str


@contextmanager
def recording(file: Path, environ: dict[str, str]) -> Iterator[None]:
    """Have kernels of all that is started with `environ` (which is changed) written to a manifest at the end.

    Raises: StoreError where the manifest cannot be written.
    """
    folder = file.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError("no manifest can be written there", file=str(file), next_step="name a file in another folder")
    # What the command has left running may still write to Inductor's folder there.
    with tempfile.TemporaryDirectory(prefix="buildd-record-", ignore_cleanup_errors=True) as gathered:
        environ.update({FOLDER: gathered, ROOT: os.getcwd(), _INDUCTOR: os.path.join(gathered, "inductor")})
        if HOOKS not in environ.get("PYTHONPATH", "").split(os.pathsep):
            environ["PYTHONPATH"] = variables(environ)["PYTHONPATH"]
        yield
        lines, problems = gather(Path(gathered))
    try:
        kernels = kernel_manifest.write(file, lines)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", file=str(file)) from error
    for problem in problems:
        print_note(f"buildd: not recorded: {problem}")
    note = f"buildd: {count(kernels, 'kernel')} recorded in {file}"
    print_note(note if kernels or problems else f"{note}: the command compiled none with Triton")


def gather(folder: Path) -> tuple[set[bytes], list[str]]:
    """The lines of all processes, each once; what kept kernels out. A line that was torn is neither."""
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
