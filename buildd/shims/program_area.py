"""The area of buildd's own programs in a store: shims, and the libraries that builds load.

Knows nothing of how a program is made or checked (`shim_folders`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from buildd.store.areas import Area, Checked


class ProgramArea(Area):
    """Programs that are run in place of compilers, or loaded. Nothing removes them: builds refer to their paths.

    Args:
        store: the store's folder.
        environ: its PATH may name more folders of shims, and finds the host compiler that makes them again.
    """

    name = "programs"

    def __init__(self, store: Path, environ: Mapping[str, str]) -> None:
        self._store = store
        self._environ = environ

    def verify(self) -> Checked:
        from buildd.shims import shim_folders  # here: with all that plans a compile, which only this needs

        entries, damaged = shim_folders.verify(self._store, self._environ)
        return Checked(entries=entries, repaired=damaged)
