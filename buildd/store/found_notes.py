"""Notes of Triton kernels, graphs, traces and JAX's programs that were found in the store, for the summary of a run.

A running build has a file, to which the hooks add one byte for each (`hooks.entries.note_found`). Without that file
they write nothing. Knows no kernel.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from buildd.hooks.entries import FOUND_FOLDER, FOUND_GRAPH, FOUND_KERNEL, FOUND_PROGRAM, FOUND_TRACE
from buildd.store.hit_notes import held, left, name_of


class FoundKernels(NamedTuple):
    """How many were found."""

    kernels: int = 0
    graphs: int = 0
    programs: int = 0
    """JAX's."""
    traces: int = 0
    """Dynamo's."""


class FoundNotes:
    """The file of one running build.

    Args:
        store: the store's folder.
        build: the value of BUILDD_BUILD_ID.

    Raises: OSError.
    """

    def __init__(self, store: Path, build: str) -> None:
        folder = store / FOUND_FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            with contextlib.suppress(OSError), left(path):  # of a build that was killed
                os.unlink(path)
        self._path = folder / name_of(build)
        self._descriptor = held(self._path)

    def found(self) -> FoundKernels:
        """What was found so far."""
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        return FoundKernels(*map(content.count, (FOUND_KERNEL, FOUND_GRAPH, FOUND_PROGRAM, FOUND_TRACE)))

    def __enter__(self) -> FoundNotes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._descriptor)
