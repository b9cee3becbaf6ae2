"""Remembers noisy compiles: their steps print, or make, something else than the tool does of the source.

The next time, such a compile runs whole at once, because its steps would run in vain. Knows neither steps nor messages.
"""

from __future__ import annotations

from blake3 import blake3

from buildd.store.notebook import Notebook
from buildd.store.store import Store
from protocol.messages import Digest

_SPOKE = b"spoke"
_DIFFERS = b"differs"
_SILENT = b""


def remember(notebook: Notebook, name: Digest, *, differs: bool) -> None:
    """Note that the steps of a compile ran in vain.

    Args:
        name: the action's name over edits, see `Lookup.name_key`.
        differs: clang may make something else of its text than of the source, which no whole run tells of later.
    """
    notebook.note_components(_key(name), _DIFFERS if differs else _SPOKE)


def ran_whole(store: Store, notebook: Notebook, name: Digest, *, spoke: bool) -> None:
    """Note whether a compile that ran whole printed something: if not, its steps are tried the next time."""
    if _noted(store, notebook, name) != _DIFFERS:
        notebook.note_components(_key(name), _SPOKE if spoke else _SILENT)


def is_noisy(store: Store, notebook: Notebook, name: Digest) -> bool:
    """Whether the steps of a compile would run in vain."""
    return _noted(store, notebook, name) in (_SPOKE, _DIFFERS)


def _noted(store: Store, notebook: Notebook, name: Digest) -> bytes | None:
    noted = notebook.components_of(_key(name))
    return noted if noted is not None else store.recall_action(_key(name))


def _key(name: Digest) -> Digest:
    return Digest(blake3(f"spoke\0{name}".encode()).hexdigest())
