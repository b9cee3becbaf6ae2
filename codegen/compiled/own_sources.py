"""The project's own sources of a compiled target: which are compiled, which are objects, and whose they are.

Knows no compiler.
"""

from __future__ import annotations

import os

from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Frozen
from codegen.project.target import CompiledTarget, OutputKind
from codegen.sources import check_folders, expand

_OBJECTS = (".o", ".obj")
_LINKED = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.EXECUTABLE)
_MODEL_HEADER = "model-generated.h"
_MODEL_STEM = "model_container_base"


class OwnSources(Frozen, frozen=True):
    """The files that a target's `sources` name."""

    compiled: tuple[str, ...]
    objects: tuple[str, ...]
    """Objects that something else has made: they are linked as they are."""
    read: tuple[str, ...]
    """Files and folders that this depends on."""
    aitemplate: bool
    """AITemplate generated these sources, so its defaults apply to them."""


def own_sources(context: Context, target: CompiledTarget) -> OwnSources:
    """Return the files that a target's `sources` name.

    Raises:
        RequestError: missing-source, missing-folder, bad-path, bad-project.
    """
    files, listed = expand(context.folder, target.sources, context.build, target.at("sources"))
    check_folders(context.folder, target.include, context.build, target.at("include"))
    objects = tuple(file for file in files if file.endswith(_OBJECTS))
    if objects and target.output not in _LINKED:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": {objects[0]} is an object, and output "{target.output.value}" links nothing',
            file=target.at("sources"),
            next_step='remove it from `sources`, or make the output "shared", "static" or "executable"',
        )
    headers = tuple(
        os.path.join(context.folder, os.path.dirname(file), _MODEL_HEADER)
        for file in files
        if os.path.splitext(os.path.basename(file))[0] == _MODEL_STEM
    )
    return OwnSources(
        compiled=tuple(file for file in files if not file.endswith(_OBJECTS)),
        objects=objects,
        read=(*listed, *headers),
        aitemplate=any(map(os.path.isfile, headers)),
    )
