"""The store as its callers see it: results, values, leases' neighbours, damage, migration, several processes."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from buildd.errors import StoreError, StoreTooNew
from buildd.store import file_digests, schema, values
from buildd.store.batch import Batch
from buildd.store.results import MOST_INPUT_SETS
from buildd.store.store import Counter, InputSet, Result, Store, StoredOutput
from buildd.store.values import digest_of
from protocol.messages import Digest, Timing


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", limit_bytes=1 << 30) as opened:
        yield opened


def key(text: str) -> Digest:
    return digest_of(text.encode())


def publish(store: Store, name: str, content: bytes, *, files: int = 3) -> Result:
    """One action's result with an output and a log, under keys made from its name."""
    output, said = store.put_bytes(content), store.put_bytes(b"log of " + name.encode())
    result = Result(
        key=key("result " + name),
        action=name,
        outputs=(StoredOutput("object", output, len(content), False),),
        stderr=said,
        timing=Timing(wall_s=1.5, user_s=1.25, system_s=0.25, peak_rss_bytes=123 << 20),
        created_ns=1,
    )
    listed = tuple((f"include/{number}.h", key(f"header {number}")) for number in range(files))
    store.publish(key("first " + name), InputSet(files=listed, key=result.key), result)
    return result


def test_a_published_result_is_found_by_another_opening(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        published = publish(store, "a.o", b"object" * 1000)
    with Store.open(tmp_path / "store") as store:
        (found,) = store.input_sets(key("first a.o"))
        assert found.files == tuple((f"include/{number}.h", key(f"header {number}")) for number in range(3))
        assert store.result(found.key) == published
        assert store.get(published.outputs[0].digest) == b"object" * 1000
        assert published.stderr is not None
        assert store.get(published.stderr) == b"log of a.o"
        assert store.result(key("other")) is None
        assert store.input_sets(key("other")) == ()


def test_a_result_whose_blob_is_missing_is_not_published(store: Store) -> None:
    there = store.put_bytes(b"there")
    result = Result(
        key=key("r"),
        action="a",
        outputs=(StoredOutput("x", there, 5), StoredOutput("y", key("never put"), 5)),
    )
    with pytest.raises(StoreError, match="not stored"):
        store.publish(key("f"), InputSet(files=(), key=key("r")), result)
    assert store.result(key("r")) is None
    assert store.input_sets(key("f")) == ()


def test_a_batch_is_stored_with_its_result_or_not_at_all(store: Store, tmp_path: Path) -> None:
    large, small = os.urandom(200_000), b"small"
    (tmp_path / "large").write_bytes(large)

    def put(batch: Batch, *more: StoredOutput) -> Result:
        digest, size = store.put_file(tmp_path / "large", batch=batch)
        assert (digest, store.put_file(tmp_path / "large", batch=batch)[0]) == (digest_of(large), digest)
        outputs = (StoredOutput("x", digest, size), StoredOutput("y", store.put_bytes(small, batch), 5), *more)
        assert not store.has(digest), "nobody finds it before the result"
        return Result(key=key("r"), action="a", outputs=outputs)

    for more in ((StoredOutput("z", key("never put"), 5),), ()):
        with Batch() as batch:
            result = put(batch, *more)
            if more:
                with pytest.raises(StoreError, match="not stored"):
                    store.publish(key("f"), InputSet(files=(), key=key("r")), result, batch)
        assert not store.has(digest_of(small)) and not store.has(digest_of(large))
        assert not [path for path in (tmp_path / "store/blobs").rglob("*") if path.is_file()]
    with Batch() as batch:
        store.publish(key("f"), InputSet(files=(), key=key("r")), put(batch), batch)
    assert store.result(key("r")) is not None
    assert (store.get(digest_of(large)), store.get(digest_of(small))) == (large, small)
    assert not [path for path in (tmp_path / "store/tmp").rglob("*") if path.is_file()], "nothing is left behind"
    assert len([path for path in (tmp_path / "store/blobs").rglob("*") if path.is_file()]) == 1
    with Batch() as batch:
        assert store.put_bytes(small, batch) == digest_of(small) and not batch.ready, "it is there"


def test_names_that_are_not_utf8_come_back(store: Store) -> None:
    name = os.fsdecode(b"caf\xe9.o")
    blob = store.put_bytes(b"x")
    result = Result(key=key("r"), action=name, outputs=(StoredOutput(name, blob, 1, True),))
    known = InputSet(files=((name, key("h")),), folders=((name, 7),), roots=((name, name),), key=key("r"))
    store.publish(key("f"), known, result)
    assert store.result(key("r")) == result
    assert store.input_sets(key("f")) == (known,)


def test_input_sets_are_newest_first_and_bounded(store: Store) -> None:
    blob = store.put_bytes(b"x")
    for number in range(MOST_INPUT_SETS + 4):
        made = Result(key=key(f"r{number}"), action="a", outputs=(StoredOutput("x", blob, 1),))
        store.publish(key("f"), InputSet(files=((f"{number}.h", key("h")),), key=made.key), made)
    assert [found.files[0][0] for found in store.input_sets(key("f"))] == [
        f"{n}.h" for n in range(MOST_INPUT_SETS + 3, 3, -1)
    ]
    again = Result(key=key("r5"), action="a", outputs=(StoredOutput("x", blob, 1),))
    store.publish(key("f"), InputSet(files=(("5.h", key("h")),), key=again.key), again)
    assert [found.files[0][0] for found in store.input_sets(key("f"))][:2] == ["5.h", f"{MOST_INPUT_SETS + 3}.h"]


def test_folder_stamps_are_updated_in_place(store: Store) -> None:
    publish(store, "a", b"x")
    (known,) = store.input_sets(key("first a"))
    store.update_folders(key("first a"), replace(known, folders=(("/usr/include", 42),)))
    (after,) = store.input_sets(key("first a"))
    assert after.folders == (("/usr/include", 42),)
    assert after.files == known.files


def test_a_list_of_files_is_kept_once_for_all_actions_that_share_it(store: Store) -> None:
    for number in range(50):
        publish(store, f"a{number}", b"x", files=1000)
    assert store.database.rows("SELECT count(*) FROM lists") == [(2,)]
    assert len(store.input_sets(key("first a49"))[0].files) == 1000


def test_forgetting_a_result(store: Store) -> None:
    publish(store, "a", b"x")
    store.forget(key("result a"))
    assert store.result(key("result a")) is None
    assert store.input_sets(key("first a")) == ()


def test_a_tool_is_written_once(store: Store) -> None:
    """Each compile of a build asks for it, and a write costs as much as the rest of its look-up."""
    store.remember_tool(key("t"), b"components")
    with closing(sqlite3.connect(store.folder / "index.db")) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        store.remember_tool(key("t"), b"components")
        assert other.execute("PRAGMA data_version").fetchone() == before
        store.remember_tool(key("u"), b"components")
        assert other.execute("PRAGMA data_version").fetchone() != before
    assert store.recall_action(key("t")) == store.recall_action(key("u")) == b"components"


def test_named_values(store: Store) -> None:
    store.remember_action(key("n"), b"components")
    store.save_probe_answer(key("n"), b"answer" * 1000)
    store.save_record(key("n"), b"")
    assert store.recall_action(key("n")) == b"components"
    assert store.probe_answer(key("n")) == b"answer" * 1000
    assert store.record(key("n")) == b""
    assert store.record(key("m")) is None


def test_file_digests(store: Store) -> None:
    rows = [
        (1, 10, 100, 5, 6, b"d" * 32, 3, b""),
        (1, 2**64 - 2, 2**40, -1, 2**62, b"e" * 32, 2**64 - 1, b"b" * 64),
        (2**63 + 5, 10, 0, 0, 0, b"f" * 32, 0, b""),
    ]
    store.save_digests(rows)
    assert sorted(store.load_digests()) == sorted(rows)
    wanted = [(1, 10), (1, 2**64 - 2), (9, 9)]
    assert store.digests_for(wanted) == {(1, 10): rows[0], (1, 2**64 - 2): rows[1]}
    store.save_digests([(1, 10, 101, 5, 6, b"g" * 32, 3, b"")])
    assert store.digests_for([(1, 10)])[(1, 10)][2] == 101


def test_counters_survive_and_touches_are_batched(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        first, second = publish(store, "a", b"x"), publish(store, "b", b"y")
        store.count(Counter.HITS, 2)
        store.count(Counter.SAVED_MS, 1500)
        ticks = store.database.rows("SELECT used FROM results")
        store.touch([second.key, first.key])
        assert store.database.rows("SELECT used FROM results") == ticks, "not written at once"
        assert store.counters()[Counter.HITS] == 2
    with Store.open(tmp_path / "store") as store:
        assert store.counters()[Counter.HITS] == 2
        assert store.counters()[Counter.SAVED_MS] == 1500
        order = [row[0] for row in store.database.rows("SELECT key FROM results ORDER BY used")]
        assert order == [bytes.fromhex(second.key), bytes.fromhex(first.key)]


# ---------------------------------------------------------------- versions


OLD = """
BEGIN;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER);
CREATE TABLE blobs (digest BLOB PRIMARY KEY, size INTEGER, stored INTEGER, encoding INTEGER, data BLOB);
CREATE TABLE results (key BLOB PRIMARY KEY, action TEXT, used INTEGER, created_ns INTEGER, body BLOB);
CREATE TABLE refs (key BLOB, digest BLOB, PRIMARY KEY (key, digest));
CREATE TABLE lists (digest BLOB PRIMARY KEY, data BLOB);
CREATE TABLE input_sets (id INTEGER PRIMARY KEY, first BLOB, key BLOB, files BLOB, folders BLOB, body BLOB);
CREATE TABLE sessions (name TEXT PRIMARY KEY, pid INTEGER, start_ticks INTEGER, boot_id TEXT);
CREATE TABLE pins (digest BLOB, session TEXT, boottime_s INTEGER, PRIMARY KEY (digest, session));
CREATE TABLE leases (key BLOB, session TEXT, PRIMARY KEY (key, session));
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER);
CREATE TABLE digests (device INTEGER, inode INTEGER, used INTEGER, value BLOB, PRIMARY KEY (device, inode));
CREATE TABLE actions (name BLOB PRIMARY KEY, used INTEGER, value BLOB);
CREATE TABLE probes (name BLOB PRIMARY KEY, used INTEGER, value BLOB);
CREATE TABLE history (identity TEXT PRIMARY KEY, kind TEXT, used INTEGER, wall_s FLOAT, user_s FLOAT, system_s FLOAT,
  memory_bytes INTEGER, samples BLOB);
CREATE TABLE builds (id INTEGER PRIMARY KEY, build_id TEXT, request_id TEXT, project TEXT, targets TEXT,
  started_ns INTEGER, finished_ns INTEGER, outcome TEXT, summary TEXT, events BLOB);
INSERT INTO meta VALUES ('tick', 5), ('bytes', 261), ('version', 1);
INSERT INTO counters VALUES ('hits', 77);
INSERT INTO builds VALUES (1, 'b', 'r', '/p', '[]', 1, 2, 'built', '{}', x'000102');
PRAGMA user_version = 1;
PRAGMA application_id = 1651862628;
COMMIT;
"""


def old_store(folder: Path, content: bytes) -> Digest:
    """A store exactly as version 1 wrote it, holding one blob."""
    folder.mkdir()
    connection = sqlite3.connect(folder / "index.db")
    connection.executescript(OLD)
    digest = digest_of(content)
    connection.execute(
        "INSERT INTO blobs VALUES (?, ?, ?, 0, ?)", (bytes.fromhex(digest), len(content), len(content), content)
    )
    connection.commit()
    connection.close()
    return digest


def test_an_older_store_is_migrated_with_what_it_holds(tmp_path: Path) -> None:
    digest = old_store(tmp_path / "store", b"hello")
    with Store.open(tmp_path / "store") as store:
        assert store.get(digest) == b"hello"
        assert store.counters()[Counter.HITS] == 77
        assert store.database.rows("SELECT stored_bytes FROM builds") == [(3,)]
        store.save_record(key("n"), b"new table")
        assert store.record(key("n")) == b"new table"
        assert store.take_notices() == ()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(tmp_path / "store", b"hello")

    def broken(database: object) -> None:
        schema._second(database)  # type: ignore[arg-type]
        raise RuntimeError("the power went")

    monkeypatch.setattr(schema, "MIGRATIONS", (schema._first, broken))
    with pytest.raises(RuntimeError):
        Store.open(tmp_path / "store")
    connection = sqlite3.connect(tmp_path / "store" / "index.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records'").fetchone() == (0,)
    connection.close()


def make_newer(folder: Path) -> None:
    connection = sqlite3.connect(folder / "index.db")
    connection.execute("UPDATE meta SET value = 99 WHERE name = 'version'")
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()


def test_a_newer_store_is_not_opened_and_not_touched(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store"):
        pass
    make_newer(tmp_path / "store")
    before = (tmp_path / "store" / "index.db").read_bytes()
    with pytest.raises(StoreTooNew) as caught:
        Store.open(tmp_path / "store")
    assert "upgrade" in caught.value.next_step
    assert (tmp_path / "store" / "index.db").read_bytes() == before


def test_a_store_migrated_under_an_open_one_is_left_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        publish(store, "a", b"x")
        make_newer(tmp_path / "store")
        with pytest.raises(StoreError):
            store.put_bytes(b"new")
        connection = sqlite3.connect(tmp_path / "store" / "index.db")
        connection.execute("ALTER TABLE results RENAME TO outcomes")
        connection.close()
        assert store.result(key("result a")) is None
    assert not list((tmp_path / "store").glob("index.db.corrupt-*"))


def test_an_up_to_date_store_opens_without_sqlite_utils(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store"):
        pass
    code = (
        "import sys; from pathlib import Path; from buildd.store.store import Store\n"
        "Store.open(Path(sys.argv[1])).close(); sys.exit('sqlite_utils' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=False).returncode == 0


# ---------------------------------------------------------------- damage


def test_a_file_that_is_no_database_is_set_aside_and_said_once(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "index.db").write_bytes(b"not a database at all" * 1000)
    with Store.open(tmp_path / "store") as store:
        (notice,) = store.take_notices()
        assert "index.db.corrupt-" in notice
        assert store.take_notices() == ()
        publish(store, "a", b"x")
        assert store.result(key("result a")) is not None
    assert len(list((tmp_path / "store").glob("index.db.corrupt-*"))) == 1


@pytest.mark.parametrize("count", [110, pytest.param(2000, marks=pytest.mark.slow)])
def test_flipped_bytes_never_give_wrong_bytes_or_an_exception(tmp_path: Path, count: int) -> None:
    """Any byte of the index and of the blob files: a reader gets what was stored, or a miss."""
    folder = tmp_path / "store"
    contents = {f"a{n}": random.Random(n).randbytes(40 << (n % 3 * 6)) for n in range(8)}
    with Store.open(folder) as store:
        published = {name: publish(store, name, content) for name, content in contents.items()}
        store.remember_action(key("n"), b"components")
        store.save_digests([(1, n, n, n, n, bytes([n]) * 32, 0, b"") for n in range(20)])
    victims = [folder / "index.db", *sorted((folder / "blobs").rglob("*"))]
    sound = {path: path.read_bytes() for path in victims if path.is_file()}
    assert len(sound) > 2
    chance = random.Random(7)
    hits = misses = 0
    # The header and the first pages (schema, root pages) in full detail, the rest at random.
    index = folder / "index.db"
    places = [(index, offset) for offset in range(0, 100, 3)]
    places += [
        (path, chance.randrange(len(data))) for path, data in sound.items() for _ in range(40 if path == index else 4)
    ]
    places += [(index, chance.randrange(len(sound[index]))) for _ in range(max(160, count))]
    chance.shuffle(places)
    for path, offset in places[:count]:
        for stale in folder.glob("index.db?*"):
            stale.unlink()
        for other, data in sound.items():
            if other in (index, path) or not other.exists():
                other.parent.mkdir(parents=True, exist_ok=True)
                other.write_bytes(data)
        damaged = bytearray(sound[path])
        damaged[offset] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with Store.open(folder) as store:
            for name, content in contents.items():
                known = store.input_sets(key("first " + name))
                result = store.result(known[0].key) if known else store.result(key("result " + name))
                if result is not None:
                    assert result == published[name]
                    assert result.stderr is not None
                for digest, right in ((published[name].outputs[0].digest, content),):
                    found = store.get(digest)
                    assert found is None or found == right
                    restored = store.restore(digest, tmp_path / "out")
                    assert not restored or (tmp_path / "out").read_bytes() == right
                    hits, misses = hits + restored, misses + (not restored)
            assert store.recall_action(key("n")) in (None, b"components")
            for row in store.load_digests():
                assert row == (1, row[1], row[1], row[1], row[1], bytes([row[1]]) * 32, 0, b"")
            # It heals: what is put again is there again, at the latest the second time (the first may find the damage).
            try:
                again = publish(store, "a1", contents["a1"])
            except StoreError:
                again = publish(store, "a1", contents["a1"])
            assert store.get(again.outputs[0].digest) == contents["a1"]
    assert hits > 0 and misses > 0


def test_an_index_damaged_while_it_is_open_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with Store.open(folder) as store:
        published = publish(store, "a", b"x" * 100_000)
        store.database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # type: ignore[union-attr]
        size = (folder / "index.db").stat().st_size
        with open(folder / "index.db", "r+b") as file:
            file.write(os.urandom(size))
        store.database._reader.execute("PRAGMA shrink_memory").fetchall()  # type: ignore[union-attr]
        other = Store.open(folder)
        assert other.result(published.key) is None
        assert store.result(published.key) is None, "it follows the other process to the new index"
        publish(store, "a", b"x" * 100_000)
        assert other.result(published.key) == published
        other.close()


def test_a_store_removed_while_it_is_open_is_made_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        publish(store, "a", b"x" * 1000)
        shutil.rmtree(tmp_path / "store")
        assert store.result(key("result a")) is None
        assert store.get(digest_of(b"x" * 1000)) is None
        publish(store, "a", random.Random(1).randbytes(200_000))
        assert store.result(key("result a")) is not None


def test_on_a_network_file_system_the_index_maps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores from elsewhere are converted, and two of them at once see what the other writes."""
    folder = tmp_path / "store"
    with Store.open(folder) as local:
        before = publish(local, "before", b"before")
        assert (folder / "index.db-shm").exists()
    monkeypatch.setattr("buildd.store.database.network_file_system", lambda path: "nfs4")
    with Store.open(folder) as one, Store.open(folder) as other:
        for number, (writer, reader) in enumerate(((one, other), (other, one)) * 3):
            published = publish(writer, f"{number}", f"{number}".encode())
            assert reader.result(published.key) == published
        assert one.result(before.key) == before
        assert not (folder / "index.db-shm").exists() and not (folder / "index.db-wal").exists()
        with closing(sqlite3.connect(folder / "index.db")) as index:
            assert index.execute("PRAGMA journal_mode").fetchone()[0] != "wal"


# ---------------------------------------------------------------- read-only


def test_a_read_only_store_serves_hits_and_drops_puts(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        published = publish(store, "a", b"x" * 100_000)
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.result(published.key) == published
        assert store.get(published.outputs[0].digest) == b"x" * 100_000
        assert store.restore(published.outputs[0].digest, tmp_path / "out")
        publish(store, "b", b"y")
        store.touch([published.key])
        store.save_record(key("n"), b"v")
        with store.lease([published.key]):
            pass
        assert store.result(key("result b")) is None
        assert store.counters()[Counter.DROPPED_PUTS] == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user to be refused by the folder's mode")
def test_a_folder_of_somebody_else_is_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name, "store")
        with Store.open(folder) as store:
            published = publish(store, "a", b"x" * 1000)
        for path in (folder, *folder.rglob("*")):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        child = os.fork()
        if child == 0:
            # Forked, not started: the other user may not be able to read this Python installation.
            status = 1
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                store = Store.open(folder)
                assert store.read_only and len(store.take_notices()) == 1
                assert store.get(published.outputs[0].digest) == b"x" * 1000
                store.put_bytes(b"new")
                store.close()
                with pytest.raises(StoreError) as caught:
                    Store.open(Path(name, "none"))
                assert caught.value.next_step
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_tables_with_a_bound_of_their_own_do_not_grow_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "MOST_ROWS", 100)
    monkeypatch.setattr(values.Table, "most", property(lambda table: 50))
    monkeypatch.setattr(values, "TRIM_EVERY_TICKS", 16)
    for number in range(120):
        store.save_record(key(f"n{number}"), b"record")
    assert 50 <= store.database.rows("SELECT count(*) FROM records")[0][0] <= 50 + 16
    assert store.record(key("n119")) == b"record"
    store.save_digests([(1, n, n, n, n, b"d" * 32, 0, b"") for n in range(20_000)])
    assert len(store.load_digests()) == 100


def test_a_look_up_is_few_queries_that_scan_no_table(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, "a", b"x")
    ask, asked = store.database.rows, []
    with monkeypatch.context() as patched:
        patched.setattr(store.database, "rows", lambda *query: asked.append(query) or ask(*query))
        (known,) = store.input_sets(key("first a"))
        assert store.result(known.key) is not None
    assert 2 <= len(asked) <= 5
    for statement, given in asked:
        steps = [row[-1] for row in ask(f"EXPLAIN QUERY PLAN {statement}", given)]
        assert steps and not [step for step in steps if step.startswith(b"SCAN")], steps
