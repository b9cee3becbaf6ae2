"""Notes about stored results: which files of an input set show no line in the preprocessed texts of the run.

A later look-up for which such a file's tokens have moved need not search it for macros. Notes stand in the store beside
the components of actions, and a result whose note is lost is only found less often. Knows no text (`line_sight`).
"""

from __future__ import annotations

from collections.abc import Collection

from blake3 import blake3

from buildd.store.notebook import Notebook
from buildd.store.result_rows import InputSet
from buildd.store.store import Store
from protocol.messages import Digest

_SILENT, _OTHER = b"-", b"+"


def note(notebook: Notebook, known: InputSet, silent: Collection[str]) -> None:
    """Note the files of an input set that show no line.

    Args:
        silent: their names, as the input set has them.
    """
    signs = b"".join(_SILENT if name in silent else _OTHER for name, _ in known.files)
    if _SILENT in signs:
        notebook.note_components(_key(known), signs)


def silent_in(store: Store, known: InputSet) -> frozenset[str]:
    """The names of the files of an input set that are known to show no line."""
    signs = store.recall_action(_key(known))
    if signs is None or len(signs) != len(known.files):
        return frozenset()
    return frozenset(name for (name, _), sign in zip(known.files, signs, strict=True) if sign == _SILENT[0])


def _key(known: InputSet) -> Digest:
    return Digest(blake3(b"lines shown by " + known.key.encode()).hexdigest())
