"""The bound, leases, verification, and several processes at once; with writers that are killed at random moments."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from buildd.store import figures, garbage_collection, verification
from buildd.store.store import Counter, Store
from buildd.store.values import digest_of
from tests.support import crash_store_writer
from tests.support.crash_store_writer import content_of, is_served, key_of, publish

WRITER = Path(crash_store_writer.__file__)
ROOMY = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", limit_bytes=ROOMY) as opened:
        yield opened


def writer(folder: Path, seed: int, rounds: int, limit: int = ROOMY, mode: str = "own") -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(folder), str(seed), str(rounds), str(limit), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def served(store: Store, seeds: range) -> list[int]:
    return [seed for seed in seeds if is_served(store, seed)]


def test_the_least_recently_used_go_first(store: Store) -> None:
    for seed in range(0, 40, 4):
        publish(store, seed + 3)  # 300,000 bytes each where they do not pack
    noisy = [seed for seed in range(3, 43, 4) if seed % 3]
    store.touch([key_of("result", noisy[0])])
    found = garbage_collection.gc(store, limit_bytes=700_000)
    assert found.held_bytes <= 700_000 < found.held_bytes + found.freed_bytes
    assert is_served(store, noisy[0]), "it was touched last"
    assert is_served(store, noisy[-1]), "it was published last"
    assert not is_served(store, noisy[1])
    assert store.counters()[Counter.EVICTED_RESULTS] == found.results > 0


def test_a_clock_that_goes_backwards_changes_no_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, 7)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    monkeypatch.setattr(time, "time_ns", lambda: 10**9)
    publish(store, 11)
    garbage_collection.gc(store, limit_bytes=310_000)
    assert served(store, range(12)) == [11]


def test_puts_keep_the_store_within_its_bound(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", limit_bytes=2_000_000) as store:
        for seed in range(60):
            publish(store, seed)
            assert garbage_collection.held_bytes(store.database) <= 2_000_000
        assert is_served(store, 59)
        on_disk = sum(path.stat().st_size for path in (tmp_path / "store" / "blobs").rglob("*") if path.is_file())
        assert on_disk <= 2_000_000
        assert verification.verify(store).is_sound


def test_a_blob_shared_by_two_results_stays_for_the_second(store: Store) -> None:
    publish(store, 7)
    publish(store, 11)
    shared = store.result(key_of("result", 7))
    assert shared is not None
    other = store.result(key_of("result", 11))
    assert other is not None
    store.publish(key_of("first", 11), store.input_sets(key_of("first", 11))[0], replace(other, outputs=shared.outputs))
    held = garbage_collection.gc(store).held_bytes
    assert store.get(digest_of(content_of(11))) is None
    assert garbage_collection.gc(store, limit_bytes=held - 1).results == 1, "the older one goes"
    assert store.result(key_of("result", 7)) is None
    assert store.get(shared.outputs[0].digest) == content_of(7)
    store.forget(key_of("result", 11))
    garbage_collection.gc(store)
    assert store.get(shared.outputs[0].digest) is None


def test_what_was_put_and_not_yet_published_stays(store: Store) -> None:
    digest = store.put_bytes(content_of(7))
    with Store.open(store.folder, limit_bytes=ROOMY) as other:
        garbage_collection.gc(other, limit_bytes=0)
        garbage_collection.flush(other)
    assert store.get(digest) == content_of(7)


def test_a_lease_protects_in_every_process_and_ends_with_its_owner(store: Store) -> None:
    publish(store, 7)
    publish(store, 11)
    code = (
        "import sys; from pathlib import Path; from buildd.store.store import Store\n"
        "s = Store.open(Path(sys.argv[1])); s.lease([sys.argv[2]]); print('leased', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(store.folder), key_of("result", 7)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "leased\n"
        found = garbage_collection.gc(store, limit_bytes=0)
        assert (found.results, found.in_use) == (1, 1)
        assert garbage_collection.flush(store).in_use == 1
        assert is_served(store, 7) and not is_served(store, 11)
        assert figures.stats(store).leased == 1
    finally:
        owner.kill()
        owner.communicate()
    assert garbage_collection.gc(store, limit_bytes=0).results == 1, "the owner was killed: its lease is void"
    assert not is_served(store, 7)


def test_leases_of_one_process_are_counted(store: Store) -> None:
    publish(store, 7)
    first, second = store.lease([key_of("result", 7)]), store.lease([key_of("result", 7)])
    first.release()
    first.release()
    assert garbage_collection.gc(store, limit_bytes=0).results == 0
    second.release()
    assert garbage_collection.gc(store, limit_bytes=0).results == 1


def test_flush_by_name_and_of_everything(store: Store) -> None:
    for seed in (1, 2, 11):
        publish(store, seed)
    store.save_record(key_of("n", 1), b"record")
    assert garbage_collection.flush(store, "a1*").results == 2
    assert served(store, range(12)) == [2]
    assert store.record(key_of("n", 1)) == b"record"
    assert garbage_collection.flush(store).results == 1
    assert store.record(key_of("n", 1)) is None
    assert garbage_collection.held_bytes(store.database) == 0
    assert not [path for path in (store.folder / "blobs").rglob("*") if path.is_file()]


def test_verify_finds_everything_that_is_wrong_and_repairs_it(store: Store) -> None:
    for seed in range(12):
        publish(store, seed)
    assert verification.verify(store) == verification.Verified(blobs=24, results=12)
    flipped, gone = store.blobs.path_of(digest_of(content_of(7))), store.blobs.path_of(digest_of(content_of(11)))
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    gone.unlink()
    orphan = store.blobs.path_of("ab" * 32)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"nobody knows me")
    foreign = store.folder / "blobs" / "README"
    foreign.write_text("not ours")
    store.database.transact(lambda c: c.execute("UPDATE results SET body = body || x'00' WHERE action = 'a1'"))
    store.save_record(key_of("n", 1), b"record")
    store.database.transact(lambda c: c.execute("UPDATE records SET value = x'00'"))
    with Store.open(store.folder, read_only=True) as reader:
        found = verification.verify(reader)
    assert (found.bad_blobs, found.bad_results, found.areas["records"].removed, found.orphans) == (2, 1, 1, 0)
    assert found.read_only and not found.is_sound and orphan.exists()
    found = verification.verify(store)
    assert (found.bad_blobs, found.bad_results, found.areas["records"].removed, found.orphans) == (2, 3, 1, 1)
    assert found.foreign == (str(foreign),) and foreign.exists()
    assert not found.is_sound
    assert verification.verify(store).is_sound
    assert served(store, range(12)) == [0, 2, 3, 4, 5, 6, 8, 9, 10]


def test_a_wrong_running_total_does_not_empty_the_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", limit_bytes=5_000_000) as store:
        publish(store, 7)
        store.database.transact(lambda c: c.execute("UPDATE meta SET value = 1 << 50 WHERE name = 'bytes'"))
        publish(store, 11)
        assert served(store, range(12)) == [7, 11]


@pytest.mark.parametrize("loops", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_every_acknowledged_result_survives_kill(tmp_path: Path, loops: int) -> None:
    """Writers are killed at random moments, some of them two at once; the next opening serves all they acknowledged."""
    folder, chance = tmp_path / "store", random.Random(5)
    acknowledged: list[int] = []
    for loop in range(loops):
        writers = [writer(folder, 2 * loop + n, 100_000) for n in range(1 + loop % 2)]
        for one in writers:
            assert one.stdout is not None
            wanted = chance.randrange(1, 40)
            for _ in range(wanted):
                line = one.stdout.readline()
                assert line, one.communicate()
                acknowledged.append(int(line))
        for one in writers:
            one.kill()
            # What it said before it died was acknowledged too.
            rest, _ = one.communicate()
            acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        with Store.open(folder, limit_bytes=ROOMY) as store:
            assert store.take_notices() == ()
            assert [seed for seed in acknowledged if not is_served(store, seed)] == []
            assert list((folder / "tmp").iterdir()) == []
    with Store.open(folder, limit_bytes=ROOMY) as store:
        assert verification.verify(store).is_sound
    assert len(acknowledged) > 30


def test_collections_and_puts_of_the_same_blobs_never_lose_a_published_one(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    Store.open(folder).close()
    writers = [writer(folder, seed, 120, mode="shared") for seed in (1, 2)]
    collector = writer(folder, 3, 120, mode="collect")
    for one in (*writers, collector):
        _, stderr = one.communicate(timeout=60)
        assert one.returncode == 0, stderr
    with Store.open(folder, limit_bytes=ROOMY) as store:
        for seed in range(12):
            if store.result(key_of("result", seed)) is not None:
                assert is_served(store, seed)
        found = verification.verify(store)
        assert found.is_sound and found.orphans == 0


def test_two_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    both = [writer(tmp_path / "store", seed, 5) for seed in range(4)]
    for one in both:
        _, stderr = one.communicate(timeout=60)
        assert one.returncode == 0, stderr
    with Store.open(tmp_path / "store", limit_bytes=ROOMY) as store:
        assert all(is_served(store, seed * 10_000 + number) for seed in range(4) for number in range(5))
