"""A build's view of its files: a snapshot of them, and the look-ups that use the snapshot.

Knows when the snapshot is too old; knows no plan and no result.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping

from buildd.builds.products import Product
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.lookup import Lookup
from buildd.keys.survey_memory import Memory
from buildd.store.store import Store


class Inputs:
    """The files of a project, as one build sees them.

    Args:
        folder: the project, as the request spells it.
        recache: look no result up: every action runs, and its entry is overwritten.
        surveys: what include searches have found, for all builds of the store.
    """

    def __init__(self, store: Store, files: Files, folder: str, surveys: Memory, *, recache: bool = False) -> None:
        self.store = store
        self.files = files
        self.recache = recache
        self.was_read: dict[str, tuple[str, ...]] = {}
        """What actions read, by name, where the look-ups do not know it: nothing was stored, another request's job was
        joined, or the files were looked at afresh since."""
        self.searched: set[str] = set()
        """Folders that look-ups stood on before the files were looked at afresh."""
        self._folder = folder
        self._surveys = surveys
        self.renew()

    def renew(self) -> None:
        """Look at the file system afresh."""
        self.snapshot = Snapshot(self.files, os.path.realpath(self._folder))
        self.lookup = Lookup(self.store, self.snapshot, recache=self.recache, surveys=self._surveys)
        self.aside = Lookup(self.store, self.snapshot, surveys=self._surveys, beside=self.lookup)
        """Sees the same files. For comparisons that may go on while the action runs: what they find is no part of the
        build."""

    def renew_after(self, made: Mapping[str, Product]) -> None:
        """Look afresh since a file changed while an action ran: everything that the snapshot knows may be old.

        Args:
            made: what the build has made so far; it stays known.
        """
        made = dict(made)
        self.was_read |= self.lookup.discovered
        self.searched.update(self.lookup.folders)
        self.renew()
        for path, product in made.items():
            self.snapshot.produced(path, product.digest)

    def preload(self, paths: Iterable[str]) -> None:
        """Fetch what the store remembers of files in one query instead of one a file."""
        stamps = (self.files.stamp(self.snapshot.absolute(path)) for path in paths)
        self.files.preload(stamp for stamp in stamps if stamp is not None)

    def fork(self) -> Inputs:
        """The same view of the files, until one of the two is renewed."""
        fork = copy.copy(self)
        fork.was_read, fork.searched = {}, set()
        return fork
