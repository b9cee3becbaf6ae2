"""The keys and values of the Redis server (`redis`), as entries beside the store.

They are the entries that programs under `buildd run` use, under the same keys. A value that cannot be read counts as
missing, and one that cannot be stored is dropped. Knows no client.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from buildd.hooks.entries import Entry, Shelf
from buildd.hooks.inductor_cache import FOLDER, GROUP
from buildd.store import shared_kernels

_TRIM_BYTES = 64 << 20
"""After so many new bytes the entries are trimmed to their bound."""
_log = logging.getLogger(__name__)


class Keyspace:
    """The keys and values of one store. Every method reads or writes files.

    Args:
        store: the store's folder.
        limit_bytes: bound of all kernels and graphs beside the store.
    """

    def __init__(self, store: Path, limit_bytes: int, environ: Mapping[str, str] = os.environ) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        # Only programs can name tools in place of Triton's own, and programs under `buildd run` do.
        kept = {name: value for name, value in environ.items() if not name.startswith("TRITON_")}
        self._shelf = Shelf(os.fspath(store), FOLDER, kept)
        self._untrimmed = 0

    def get(self, key: str) -> bytes | None:
        try:
            found = self._shelf.take(key, GROUP)
        except (OSError, ValueError) as error:
            _log.info("redis: %.200r cannot be read: %s", key, error)
            return None
        return None if found is None else found.files[GROUP]

    def put(self, key: str, value: bytes) -> None:
        try:
            if not self._shelf.open():
                raise PermissionError(f"{self._shelf.folder} cannot be written")
            self._shelf.put(Entry(key, GROUP, {GROUP: value}))
        except (OSError, ValueError) as error:
            _log.warning("redis: %.200r cannot be stored: %s", key, error)
            return
        self._untrimmed += len(value)
        if self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            shared_kernels.trim(self._store, self._limit_bytes)

    def remove(self, key: str) -> bool:
        try:
            os.unlink(os.path.join(self._shelf.folder, self._shelf.name_of(key, GROUP)))
        except OSError:
            return False
        return True
