"""Triton kernels in a recording: each is a line of JSON from which another machine can compile it.

Knows nothing of Triton and compiles nothing; a specialization is passed on unread. Paths are relative to the folder
where `buildd run` was called.

    {"module": "__main__", "file": "train.py", "name": "add_kernel", "search": ["."], "hash": "...", ...}
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import msgspec


class Target(msgspec.Struct, frozen=True):
    """A GPU in Triton's terms: "cuda" and 90, "hip" and "gfx942"."""

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


class RecordedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, specialized for one set of arguments.

    Args:
        module: the module that defines it; "__main__" for a script.
        file: relative; empty if the module is an installed one, or if there is a text.
        text: the whole module, if Inductor wrote it: its file cannot be found again.
        name: qualified.
        search: folders to search for modules, relative.
        hash: Triton's key when it was recorded; empty if unknown.
        triton: version.
        python: version.
        interpreter: the program's, relative; empty if it is outside the folder.
        variables: those that are in Triton's key.
        tools: variables that name a tool in place of Triton's own -> its digest; None if that was not recorded.
        specialization: Triton's own description.
    """

    module: str
    file: str
    name: str
    search: list[str]
    hash: str
    triton: str
    python: str
    variables: dict[str, str]
    specialization: msgspec.Raw
    text: str = ""
    interpreter: str = ""
    tools: dict[str, str] | None = None

    @property
    def label(self) -> str:
        """The name to show."""
        return f"{'torch.compile' if self.text else self.file or self.module}: {self.name}"


class _Specialization(msgspec.Struct):
    target: Target


class _Head(msgspec.Struct):
    buildd: str
    version: int


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """One line of a manifest: a kernel, its GPU, and the text."""

    kernel: RecordedKernel
    target: Target
    text: bytes

    @property
    def group(self) -> tuple[Any, ...]:
        """Key of the lines that one process can compile: module-level code sees one target, one set of variables, one
        script. Kernels that Inductor generated get a process like Inductor's own workers."""
        script = self.kernel.file if self.kernel.module == "__main__" else ""
        variables = tuple(sorted(self.kernel.variables.items()))
        tools = None if self.kernel.tools is None else tuple(sorted(self.kernel.tools.items()))
        return (self.target, variables, tools, tuple(self.kernel.search), script, bool(self.kernel.text))


def line_of(text: bytes) -> ManifestLine:
    """Parse a line of a manifest. Raises ValueError, or msgspec's subclass of it."""
    kernel = msgspec.json.decode(text, type=RecordedKernel)
    for path in (kernel.file, kernel.interpreter, *kernel.search):
        if os.path.isabs(path) or os.pardir in path.split("/"):
            raise ValueError(f"{path} leaves the folder")
    if not kernel.file and kernel.module == "__main__":
        raise ValueError("no file")
    return ManifestLine(kernel, msgspec.json.decode(kernel.specialization, type=_Specialization).target, text)
