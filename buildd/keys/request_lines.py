"""What one request knows of the lines of its files: which texts an action would not notice in other lines.

Knows input sets, the notes that the store has of them, and names; `line_sight` reads the texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from buildd.files.snapshot import Snapshot
from buildd.keys import line_notes, line_sight
from buildd.keys.file_names import Names
from buildd.keys.questions import is_question
from buildd.native.bare_text import bare_text_of
from buildd.store.result_rows import InputSet
from buildd.store.store import Store
from codegen.plan import Action, TextUse


class RequestLines:
    """The lines of a request's files.

    Args:
        snapshot: the request's view of the file system.
    """

    def __init__(self, store: Store, snapshot: Snapshot) -> None:
        self._store = store
        self._snapshot = snapshot
        self._known: dict[str, tuple[InputSet, Collection[str] | None]] = {}
        """Name of an action -> what it hit or was filed with, and the files that show no line; None if the store has a
        note of them."""

    def hit(self, action: Action, known: InputSet) -> None:
        """Take in the input set that fits."""
        self._known[action.name] = known, None

    def filed(self, action: Action, known: InputSet, silent: Collection[str]) -> None:
        """Take in what a run was filed with.

        Args:
            silent: the files that show no line in its texts after preprocessing.
        """
        self._known[action.name] = known, silent

    def input_set(self, action: Action) -> InputSet | None:
        """What an action hit or was filed with; None where neither happened in this request."""
        return self._known.get(action.name, (None, None))[0]

    def movable(self, action: Action, names: Names, candidates: Iterable[str]) -> frozenset[str]:
        """Those of an action's files whose tokens may stand in other lines.

        Args:
            candidates: discovered inputs.
        """
        known, silent = self._known.get(action.name, (None, None))
        if known is None or action.text is not TextUse.TOKENS:
            return frozenset()
        silent = self._silent(known, names) if silent is None else silent
        used = (*action.inputs, *(names.path(name) for name, _ in known.files if not is_question(name)))
        bare = bare_text_of(self._store.folder)
        return line_sight.movable(self._snapshot, bare, action, used, candidates, silent)

    def is_blind(
        self, action: Action, known: InputSet, names: Names, paths: Sequence[str], moved: Iterable[str]
    ) -> bool:
        """Whether nothing in the files that moved can see its line.

        Args:
            known: an input set that fits but for that.
            paths: its files.
        """
        used, bare = (*action.inputs, *paths), bare_text_of(self._store.folder)
        return line_sight.is_blind(self._snapshot, bare, action, used, moved, self._silent(known, names))

    def _silent(self, known: InputSet, names: Names) -> set[str]:
        return {names.path(name) for name in line_notes.silent_in(self._store, known)}
