"""Stamps of all files that a watch counts, compared at once: the fast look for changes that gave no event.

Knows stamps, not contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from buildd.files import sweep
from buildd.files.digests import Files
from buildd.store.store import Store


class FileStamps:
    """Stamps of files, packed as the sweep takes them."""

    def __init__(self, store: Store, files: Files) -> None:
        self._store = store
        self._files = files
        self._paths: list[bytes] = []
        self._stamps = bytearray()
        self._places: dict[str, int] = {}
        """Path -> its index in both."""
        self._absent: list[str] = []
        """Files that are not there."""

    def take(self, paths: Iterable[str]) -> None:
        """Take the stamps of exactly these files."""
        stamps = {path: self._files.stamp(path) for path in paths}
        there = [(path, stamp) for path, stamp in stamps.items() if stamp is not None]
        self._paths = [os.fsencode(path) for path, _ in there]
        self._stamps = bytearray(sweep.packed([number for _, stamp in there for number in stamp]))
        self._places = {path: place for place, (path, _) in enumerate(there)}
        self._absent = [path for path, stamp in stamps.items() if stamp is None]

    def renew(self, path: str) -> None:
        """Take one file's stamp anew."""
        stamp, place = self._files.stamp(path), self._places.get(path)
        if stamp is not None and place is not None:
            size = sweep.FIELDS * 8
            self._stamps[size * place : size * (place + 1)] = sweep.packed(stamp)

    def hold(self) -> bool:
        """Whether every file still has its stamp, and none came that was not there."""
        if any(map(os.path.isfile, self._absent)):
            return False
        return sweep.sweep_of(self._store.folder).all_equal(self._paths, bytes(self._stamps))
