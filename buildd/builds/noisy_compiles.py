"""Remembers noisy compiles: their tools printed something that their steps would print in other words.

The next time, such a compile runs whole at once, because its steps would run in vain. Knows neither steps nor messages.
"""

from __future__ import annotations

from blake3 import blake3

from buildd.store.notebook import Notebook
from buildd.store.store import Store
from protocol.messages import Digest

_SPOKE = b"spoke"
_SILENT = b""


def remember(notebook: Notebook, name: Digest, *, spoke: bool) -> None:
    """Note whether a compile printed something.

    Args:
        name: the action's name over edits, see `Lookup.name_key`.
    """
    notebook.note_components(_key(name), _SPOKE if spoke else _SILENT)


def is_noisy(store: Store, notebook: Notebook, name: Digest) -> bool:
    """Whether the compile printed something the last time."""
    noted = notebook.components_of(_key(name))
    return (noted if noted is not None else store.recall_action(_key(name))) == _SPOKE


def _key(name: Digest) -> Digest:
    return Digest(blake3(f"spoke\0{name}".encode()).hexdigest())
