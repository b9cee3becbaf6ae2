"""The content-addressed store: one folder with an index and large blobs beside it, shared by any number of processes.

Puts the parts together (`database`, `blobs`, `results`, `values`, `file_digests`, `build_log`, `tally`,
`garbage_collection`); knows no key, no tool and no socket. Reading never raises for what is damaged: that is a miss.
Every method may be called from any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

from buildd.errors import BuilddError, StoreError, StoreFull
from buildd.store import garbage_collection, ownership, sessions
from buildd.store.answers import AnswerArea
from buildd.store.areas import Area
from buildd.store.batch import Batch
from buildd.store.build_log import Build, BuildArea, BuildLog
from buildd.store.file_digests import DigestArea, DigestRow, Digests
from buildd.store.hit_notes import HitArea
from buildd.store.job_history import HistoryArea
from buildd.store.parts import Parts
from buildd.store.profiles import ProfileArea
from buildd.store.result_rows import FileList, FileRows, InputSet, Result, StoredOutput
from buildd.store.results import Results
from buildd.store.sessions import FolderLock
from buildd.store.shared_kernels import KernelArea
from buildd.store.tally import Counter, next_tick
from buildd.store.values import NamedValues, Table, ValueArea, raw_digest
from protocol.messages import BuildId, Digest, RequestId

__all__ = ["Build", "Counter", "DigestRow", "InputSet", "Lease", "Result", "Store", "StoredOutput"]

DEFAULT_LIMIT_BYTES = 20 << 30
ONLY_READ = "its results are used, and new ones are not kept"
_COLLECT_EVERY_S = 2.0
_MOST_TOOLS = 1 << 10


class Lease:
    """Protects results: while it is held, no garbage collection in any process removes them. Ends with its process."""

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


class Store(Parts):
    """A store. Open it with `Store.open`."""

    def __init__(
        self, folder: Path, limit_bytes: int, read_only: bool, notices: list[str], areas: Sequence[Area]
    ) -> None:
        super().__init__(
            folder, limit_bytes, read_only=read_only, notice=notices.append, limit_reached=self._limit_reached
        )
        self._notices = notices
        self.unkept: BuilddError | None = None
        """Why new results are not kept, where they could be if the disk or the folder were in order."""
        self._results = Results(self.database, self.blobs, self.tally, self._limit_reached)
        self._values = NamedValues(self.database, next_tick, lambda table, name: self.tally.touch(table, [name]))
        self._digests = Digests(self.database, next_tick)
        self._builds = BuildLog(self.database)
        self.areas = (
            AnswerArea(folder),
            HitArea(self),
            KernelArea(folder),
            *(ValueArea(self.database, table) for table in Table),
            DigestArea(self.database),
            HistoryArea(self.database),
            BuildArea(self.database),
            ProfileArea(self.database, folder),
            *areas,
        )
        self._tools: set[Digest] = set()
        """Tools whose components this process has written."""
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()
        self._leased: dict[Digest, int] = {}
        self._collecting = threading.Lock()
        self._next_collection_s = 0.0
        self._orphans_dropped = False

    @classmethod
    def open(
        cls, folder: Path, *, limit_bytes: int | None = None, read_only: bool = False, areas: Sequence[Area] = ()
    ) -> Store:
        """Open, make or migrate the store in `folder`.

        Args:
            limit_bytes: size bound; None means 20 GiB or 10 % of the disk, whichever is smaller.
            read_only: take no lock and write nothing; puts are counted and dropped. A store whose folder exists but may
                not be written is opened so in any case.
            areas: what rooms above the store keep in its folder, beside the store's own areas.

        Raises `StoreTooNew`; `StoreError` where there is no store and none can be made, or others may write to it.
        """
        ownership.check(folder)
        notices: list[str] = []
        if not read_only:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name in ("blobs", "tmp", "sessions", "profiles"):
                    (folder / name).mkdir(mode=0o700, exist_ok=True)
                with FolderLock(folder):
                    sessions.sweep(folder)
            except OSError as error:
                if not os.path.exists(folder / "index.db"):
                    raise StoreError(
                        f"no store can be made here: {error.strerror}",
                        file=str(folder),
                        next_step="set BUILDD_DIR to a folder that you may write",
                    ) from error
                read_only = True
                notices.append(f"the store in {folder} may not be written ({error.strerror}): {ONLY_READ}")
        limit = default_limit(folder) if limit_bytes is None else limit_bytes
        try:
            return cls(folder, limit, read_only, notices, areas)
        except StoreFull as error:
            if not os.path.exists(folder / "index.db"):
                raise
            try:
                opened = cls(folder, limit, True, notices, areas)
            except StoreError:
                raise error from None  # there was no room to make the index
            opened.unkept = error
            notices.append(f"the disk of {folder} is full: {ONLY_READ} ({error.next_step})")
            return opened

    def take_notices(self) -> tuple[str, ...]:
        """Lines for people about what happened to the store, each returned once."""
        with self._lock:
            taken = tuple(self._notices)
            del self._notices[: len(taken)]
        return taken

    def close(self) -> None:
        """Write gathered counts and release everything."""
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
            batch: takes the blob instead, and stores it when the batch is published.
        """
        return self.blobs.put_bytes(data, batch)

    def put_file(self, path: Path, *, expect: Digest | None = None, batch: Batch | None = None) -> tuple[Digest, int]:
        """Store a file's bytes as they are read; their digest and size. `StoreError` if that is not `expect`."""
        return self.blobs.put_file(path, expect=expect, batch=batch)

    def get(self, digest: Digest) -> bytes | None:
        """A blob's bytes, checked; None is a miss."""
        return self.blobs.get(digest)

    def restore(self, digest: Digest, destination: Path, *, executable: bool = False, umask: int | None = None) -> bool:
        """Write a checked copy of a blob to `destination`, by rename; False is a miss. `StoreFull`, `StoreError`.

        Args:
            umask: of the file; None: this process's own.
        """
        return self.blobs.restore(digest, destination, executable=executable, umask=umask)

    def has(self, digest: Digest) -> bool:
        """Whether the index lists a blob; its bytes are not read."""
        return self.blobs.has(digest)

    def scratch_folder(self) -> Path:
        """A folder for private files of this process (jobs' folders); see `Scratch`. Raises OSError, `StoreError`."""
        return self.blobs.scratch.folder()

    def scratch_folders(self) -> tuple[str, ...]:
        """All folders that `scratch_folder` has given."""
        return tuple(map(str, self.blobs.scratch.folders()))

    # ------------------------------------------------------------ results

    def input_sets(self, first: Digest) -> tuple[InputSet, ...]:
        """At most eight input sets under a first-level key, newest first."""
        return self._results.input_sets(first)

    def result(self, key: Digest) -> Result | None:
        """The result under a key; None is a miss."""
        return self._results.result(key)

    def known_files(self, rows: FileRows) -> FileList:
        """A list of files from elsewhere, as input sets have it; one object for equal lists."""
        return self._results.known_files(rows)

    def publish(self, first: Digest, input_set: InputSet, result: Result, batch: Batch | None = None) -> None:
        """Make a result findable, and store its batch in the same transaction.

        Raises `StoreError` where one of its blobs is not in the store; nothing has changed then.
        """
        self._results.publish(first, input_set, result, batch)

    def update_folders(self, first: Digest, input_set: InputSet) -> None:
        """Remember new folder stamps for a stored input set."""
        self._note(lambda: self._results.update_folders(first, input_set))

    def forget(self, key: Digest) -> None:
        """Drop a result."""
        self._results.forget(key)

    def touch(self, keys: Iterable[Digest]) -> None:
        """Note that these results were used just now. Notes are written every few seconds."""
        self.tally.touch("results", [raw for key in keys if (raw := raw_digest(key)) is not None])

    def lease(self, keys: Iterable[Digest]) -> Lease:
        """Protect results from garbage collection by any process. Release the lease, or use it in a `with`."""
        leased = tuple(dict.fromkeys(keys))
        if self.read_only:
            return Lease(self, ())
        # Held over the transaction: no thread may rely on a lease that is not written yet.
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

    def remember_tool(self, digest: Digest, components: bytes) -> None:
        """Keep the components of a tool under their digest, for explanations. They are written once by each process."""
        if digest in self._tools:
            self.tally.touch(Table.ACTIONS.value, filter(None, [raw_digest(digest)]))
            return
        if len(self._tools) >= _MOST_TOOLS:
            self._tools.clear()
        self._tools.add(digest)
        self._put_value(Table.ACTIONS, digest, components)

    def remember_actions(self, components: Sequence[tuple[Digest, bytes]]) -> None:
        """As `remember_action`, for several at once."""
        self._note(lambda: self._values.put_many(Table.ACTIONS, components), len(components))

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
        self._note(lambda: self._values.put(table, name, value))

    def _note(self, write: Callable[[], None], count: int = 1) -> None:
        """Write what only saves time later. A store that is read-only, full or busy loses it, and no build fails."""
        try:
            if not self.read_only:
                write()
                return
        except StoreError:
            pass
        self.tally.count(Counter.DROPPED_PUTS, count)

    # ------------------------------------------------------------ file digests, builds, counters

    def load_digests(self) -> list[DigestRow]:
        """Every remembered file digest."""
        return self._digests.load()

    def digests_for(self, files: Sequence[tuple[int, int]]) -> dict[tuple[int, int], DigestRow]:
        """The remembered digests of these (device, inode) pairs."""
        return self._digests.find(files)

    def save_digests(self, rows: Iterable[DigestRow]) -> None:
        self._note(lambda: self._digests.save(rows))

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
        """Collect a bounded piece if the store is over its bound; called after every put with the store's size."""
        if total_bytes <= self.limit_bytes or time.monotonic() < self._next_collection_s:
            return
        if self._collecting.acquire(blocking=False):
            try:
                self.tally.flush()
                if not self._orphans_dropped:
                    # Once a process: files that a crash or a lost index left behind are not in the total.
                    self._orphans_dropped = True
                    garbage_collection.drop_orphans(self)
                if not garbage_collection.step(self, total_bytes):
                    # Everything left is in use: trying again at every put would only cost time.
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
