"""Which compiles said something the last time, of those whose steps would say it in other words.

Such a compile runs whole at once: its steps would only be done in vain. Knows neither steps nor what was said.
"""

from __future__ import annotations

from blake3 import blake3

from buildd.notebook import Notebook
from buildd.store import Store
from protocol.messages import Digest

_SPOKE = b"spoke"
_SILENT = b""


def remember(notebook: Notebook, name: Digest, *, spoke: bool) -> None:
    """Note how a compile ended.

    Args:
        name: of the action over edits.
    """
    notebook.ran_with(_key(name), _SPOKE if spoke else _SILENT)


def is_outspoken(store: Store, notebook: Notebook, name: Digest) -> bool:
    """Whether it said something the last time."""
    noted = notebook.components_of(_key(name))
    return (noted if noted is not None else store.recall_action(_key(name))) == _SPOKE


def _key(name: Digest) -> Digest:
    return Digest(blake3(f"spoke\0{name}".encode()).hexdigest())
