"""The content-addressed store: one folder with an index and large blobs beside it, shared by any number of processes.

Puts the parts together (`database`, `blobs`, `results`, `values`, `digests`, `buildlog`, `tally`, `collect`); knows no
key, no tool and no socket. Reading never raises for what is damaged: that is a miss. Every method may be called from
any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from buildd import collect, sessions
from buildd.batch import Batch
from buildd.buildlog import Build, BuildLog
from buildd.digests import DigestRow, Digests
from buildd.errors import StoreError, StoreFull
from buildd.results import InputSet, Result, Results, StoredOutput
from buildd.sessions import FolderLock
from buildd.shelf import Shelf
from buildd.tally import Counter, next_tick
from buildd.values import Table, Values, raw_digest
from protocol.messages import BuildId, Digest, RequestId

__all__ = ["Build", "Counter", "DigestRow", "InputSet", "Lease", "Result", "Store", "StoredOutput"]

DEFAULT_LIMIT_BYTES = 20 << 30
_COLLECT_EVERY_S = 2.0


class Lease:
    """While it is held, no collection in any process removes these results. Ends with its process at the latest."""

    def __init__(self, store: Store, keys: tuple[Digest, ...]) -> None:
        self._store = store
        self.keys = keys

    def release(self) -> None:
        keys, self.keys = self.keys, ()
        if keys:
            self._store._unlease(keys)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Store(Shelf):
    """Make it with `Store.open`."""

    def __init__(self, folder: Path, limit_bytes: int, read_only: bool, notices: list[str]) -> None:
        super().__init__(
            folder, limit_bytes, read_only=read_only, notice=notices.append, limit_reached=self._limit_reached
        )
        self._notices = notices
        self._results = Results(self.database, self.blobs, self.tally, self._limit_reached)
        self._values = Values(self.database, next_tick, lambda table, name: self.tally.touch(table, [name]))
        self._digests = Digests(self.database, next_tick)
        self._builds = BuildLog(self.database)
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()
        self._leased: dict[Digest, int] = {}
        self._collecting = threading.Lock()
        self._next_collection_s = 0.0
        self._orphans_dropped = False

    @classmethod
    def open(cls, folder: Path, *, limit_bytes: int | None = None, read_only: bool = False) -> Store:
        """Open, make or migrate the store in `folder`.

        Args:
            limit_bytes: size bound; None means 20 GiB or 10 % of the disk, whichever is smaller.
            read_only: take no lock and write nothing; puts are counted and dropped. Chosen by itself where the folder
                is there but may not be written.

        Raises `StoreTooNew`; `StoreError` where there is nothing to read and nothing may be made.
        """
        notices: list[str] = []
        if not read_only:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name in ("blobs", "tmp", "sessions", "profiles"):
                    (folder / name).mkdir(mode=0o700, exist_ok=True)
                with FolderLock(folder):
                    sessions.sweep(folder)
            except OSError as error:
                if not (folder / "index.db").exists():
                    raise StoreError(
                        f"no store can be made here: {error.strerror}",
                        file=str(folder),
                        next_step="set BUILDD_DIR to a folder that you may write",
                    ) from error
                read_only = True
                notices.append(f"the store in {folder} may not be written ({error.strerror}); it is only read")
        limit = default_limit(folder) if limit_bytes is None else limit_bytes
        try:
            return cls(folder, limit, read_only, notices)
        except StoreFull as error:
            if not (folder / "index.db").exists():
                raise
            notices.append(f"the disk of {folder} is full; the store is only read ({error.next_step})")
            return cls(folder, limit, True, notices)

    def take_notices(self) -> tuple[str, ...]:
        """Lines for people about what happened to the store, each given out once."""
        with self._lock:
            taken = tuple(self._notices)
            del self._notices[: len(taken)]
        return taken

    def close(self) -> None:
        """Write what is gathered and let go of everything."""
        self.tally.flush(wait=True)
        self.blobs.close()
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ blobs

    def put_bytes(self, data: bytes, batch: Batch | None = None) -> Digest:
        """Store bytes; until published they are safe from collections, for an hour. `StoreFull`, `StoreError`.

        Args:
            batch: takes them up instead, to be stored when that is published.
        """
        return self.blobs.put_bytes(data, batch)

    def put_file(self, path: Path, *, expect: Digest | None = None, batch: Batch | None = None) -> tuple[Digest, int]:
        """Store a file as it is read; digest and size of the bytes stored. `StoreError` where it is not `expect`."""
        return self.blobs.put_file(path, expect=expect, batch=batch)

    def get(self, digest: Digest) -> bytes | None:
        """A blob's bytes, checked; None is a miss."""
        return self.blobs.get(digest)

    def restore(self, digest: Digest, destination: Path, *, executable: bool = False) -> bool:
        """Write a checked copy of a blob to `destination`, by rename; False is a miss. `StoreFull`, `StoreError`."""
        return self.blobs.restore(digest, destination, executable=executable)

    def has(self, digest: Digest) -> bool:
        """Whether the index knows a blob; its bytes are not looked at."""
        return self.blobs.has(digest)

    def scratch_folder(self) -> Path:
        """A folder for private files of this process (jobs' folders); what is left in it goes with the process."""
        return self.blobs.scratch_folder()

    # ------------------------------------------------------------ results

    def input_sets(self, first: Digest) -> tuple[InputSet, ...]:
        """At most eight input sets under a first-level key, newest first."""
        return self._results.input_sets(first)

    def result(self, key: Digest) -> Result | None:
        """The result under a key; None is a miss."""
        return self._results.result(key)

    def publish(self, first: Digest, input_set: InputSet, result: Result, batch: Batch | None = None) -> None:
        """Make a result findable, and store a batch with it. `StoreError` where one of its blobs is not there; then
        nothing has changed."""
        self._results.publish(first, input_set, result, batch)

    def update_folders(self, first: Digest, input_set: InputSet) -> None:
        """Remember new folder stamps for an input set that is there."""
        self._results.update_folders(first, input_set)

    def forget(self, key: Digest) -> None:
        """Drop a result."""
        self._results.forget(key)

    def touch(self, keys: Iterable[Digest]) -> None:
        """These results were used just now. Gathered, and written every few seconds."""
        self.tally.touch("results", [raw for key in keys if (raw := raw_digest(key)) is not None])

    def lease(self, keys: Iterable[Digest]) -> Lease:
        """Protect results from collection by any process. Release it, or use it in a `with`."""
        leased = tuple(dict.fromkeys(keys))
        if self.read_only:
            return Lease(self, ())
        # Held over the transaction: nobody may believe in a lease that is not written yet.
        with self._lease_lock:
            fresh = [key for key in leased if key not in self._leased]
            if fresh:
                name = self.blobs.session().name
                self.database.transact(
                    lambda connection: connection.executemany(
                        "INSERT OR REPLACE INTO leases (key, session) VALUES (?, ?)",
                        [(raw_digest(key), name) for key in fresh],
                    )
                )
            for key in leased:
                self._leased[key] = self._leased.get(key, 0) + 1
        return Lease(self, leased)

    def _unlease(self, keys: tuple[Digest, ...]) -> None:
        with self._lease_lock:
            ended = []
            for key in keys:
                self._leased[key] -= 1
                if self._leased[key] == 0:
                    del self._leased[key]
                    ended.append(key)
            if ended:
                name = self.blobs.session().name
                self.database.transact(
                    lambda connection: connection.executemany(
                        "DELETE FROM leases WHERE key = ? AND session = ?", [(raw_digest(key), name) for key in ended]
                    )
                )

    # ------------------------------------------------------------ named values

    def remember_action(self, name_key: Digest, components: bytes) -> None:
        """Keep the last components of an action, for explanations."""
        self._put_value(Table.ACTIONS, name_key, components)

    def remember_actions(self, components: Sequence[tuple[Digest, bytes]]) -> None:
        """As `remember_action`, for several at once."""
        if self.read_only:
            self.tally.count(Counter.DROPPED_PUTS, len(components))
        else:
            self._values.put_many(Table.ACTIONS, components)

    def recall_action(self, name_key: Digest) -> bytes | None:
        return self._values.get(Table.ACTIONS, name_key)

    def save_probe_answer(self, digest: Digest, answer: bytes) -> None:
        self._put_value(Table.PROBES, digest, answer)

    def probe_answer(self, digest: Digest) -> bytes | None:
        return self._values.get(Table.PROBES, digest)

    def save_record(self, name: Digest, record: bytes) -> None:
        """Keep an up-to-date record."""
        self._put_value(Table.RECORDS, name, record)

    def record(self, name: Digest) -> bytes | None:
        return self._values.get(Table.RECORDS, name)

    def _put_value(self, table: Table, name: Digest, value: bytes) -> None:
        if self.read_only:
            self.tally.count(Counter.DROPPED_PUTS)
        else:
            self._values.put(table, name, value)

    # ------------------------------------------------------------ file digests, builds, counters

    def load_digests(self) -> list[DigestRow]:
        """Every remembered file digest."""
        return self._digests.load()

    def digests_for(self, files: Sequence[tuple[int, int]]) -> dict[tuple[int, int], DigestRow]:
        """The remembered digests of these (device, inode) pairs."""
        return self._digests.find(files)

    def save_digests(self, rows: Iterable[DigestRow]) -> None:
        self._digests.save(rows)

    def save_build(self, build: Build, events: bytes) -> None:
        """Keep a finished build and its events (plain bytes; they are compressed here)."""
        self._builds.save(build, events)

    def builds(self, limit: int = 20) -> list[Build]:
        """Past builds, latest first."""
        return self._builds.latest(limit)

    def build_events(self, build_id: RequestId | BuildId) -> bytes | None:
        return self._builds.events(build_id)

    # ------------------------------------------------------------ the bound

    def _limit_reached(self, total_bytes: int) -> None:
        """Called after every put with the store's size; collects in small steps when it is over the bound."""
        if total_bytes <= self.limit_bytes or time.monotonic() < self._next_collection_s:
            return
        if self._collecting.acquire(blocking=False):
            try:
                self.tally.flush()
                if not self._orphans_dropped:
                    # Once a process: what a crash or a lost index left behind is not in the total.
                    self._orphans_dropped = True
                    collect.drop_orphans(self)
                if not collect.step(self, total_bytes):
                    # Everything left is in use: looking again at every put would only cost.
                    self._next_collection_s = time.monotonic() + _COLLECT_EVERY_S
            finally:
                self._collecting.release()


def default_limit(folder: Path) -> int:
    """20 GiB or 10 % of the disk that `folder` is on, whichever is smaller; in bytes."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return DEFAULT_LIMIT_BYTES
    return min(DEFAULT_LIMIT_BYTES, disk.f_blocks * disk.f_frsize // 10)
