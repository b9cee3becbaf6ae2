"""Trees of kernel libraries that a job of kind torch may read: CUTLASS and Composable Kernel, by content.

Inductor's own key leaves them out, so an edited tree would give stale code. Knows no target.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from codegen.plan import ToolFile

_VARIABLES = ("TORCHINDUCTOR_CUTLASS_DIR", "TORCHINDUCTOR_CK_DIR")
_PARTS = ("include", "library", "python", "tools")
"""Folders of a tree that generated code, or its generator, is made from."""
_ENDINGS = (".h", ".hpp", ".cuh", ".inl", ".inc", ".py")


def tree_files(environment: Mapping[str, str], project: str) -> Iterator[ToolFile]:
    """Yield the files of the trees that variables name.

    Args:
        environment: of the job.
        project: the folder that a relative tree is below.
    """
    for name in _VARIABLES:
        root = os.path.normpath(os.path.join(project, environment.get(name) or os.devnull))
        for part in _PARTS:
            for folder, below, names in os.walk(os.path.join(root, part)):
                below.sort()
                for file in sorted(names):
                    if file.endswith(_ENDINGS):
                        path = os.path.join(folder, file)
                        yield ToolFile(role=f"{name}/{os.path.relpath(path, root)}", path=path)
