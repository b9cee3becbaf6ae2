"""Blobs: what is read is what was put, whatever happens to the files in between."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.errors import StoreError, StoreFull
from buildd.store.blob_reader import MEMORY_BYTES, BadBlob
from buildd.store.blobs import INLINE_BYTES
from buildd.store.packing import Encoding
from buildd.store.store import Counter, Store
from buildd.store.values import digest_of
from protocol.messages import Digest

NOISE = random.Random(3).randbytes(300_000)
TEXT = b"the same line again and again\n" * 20_000
LARGE = (NOISE + TEXT) * 12
SIZES = {"empty": b"", "one": b"x", "inline": NOISE[:INLINE_BYTES], "file": NOISE, "packed": TEXT, "large": LARGE}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", limit_bytes=1 << 30) as opened:
        yield opened


def row(store: Store, digest: Digest) -> tuple[int, int, int, bytes | None]:
    (found,) = store.database.rows(
        "SELECT size, stored, encoding, data FROM blobs WHERE digest = ?", (bytes.fromhex(digest),)
    )
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_and_files_of_any_size_come_back(store: Store, tmp_path: Path, size: str) -> None:
    content = SIZES[size]
    (tmp_path / "in").write_bytes(content)
    assert store.put_file(tmp_path / "in") == (digest_of(content), len(content))
    assert store.put_bytes(content) == digest_of(content)
    assert store.get(digest_of(content)) == content
    assert b"".join(store.blobs.chunks(digest_of(content))) == content
    assert store.restore(digest_of(content), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    assert store.counters()[Counter.STORED_BLOBS] == 1
    assert store.counters()[Counter.SHARED_BLOBS] == 1


def test_small_blobs_are_inside_the_index_and_what_packs_is_packed(store: Store) -> None:
    assert len(LARGE) > MEMORY_BYTES
    kept = {name: row(store, store.put_bytes(content)) for name, content in SIZES.items()}
    assert {name: data is not None for name, (_, _, _, data) in kept.items()} == {
        "empty": True, "one": True, "inline": True, "file": False, "packed": True, "large": False,
    }  # fmt: skip
    assert kept["packed"][1] < len(TEXT) / 10
    assert kept["file"][1:3] == (len(NOISE), Encoding.RAW)


def test_no_temporary_is_left(store: Store, tmp_path: Path) -> None:
    for content in SIZES.values():
        store.restore(store.put_bytes(content), tmp_path / "out" / "deep" / "file")
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
    assert [path.name for path in (tmp_path / "out" / "deep").iterdir()] == ["file"]


def test_the_mode_of_a_restored_file_is_the_umasks(store: Store, tmp_path: Path) -> None:
    digest = store.put_bytes(b"#!/bin/sh\n")
    old = os.umask(0o027)
    try:
        store.restore(digest, tmp_path / "tool", executable=True)
        store.restore(digest, tmp_path / "data", executable=False)
    finally:
        os.umask(old)
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o640


def test_a_symlink_is_replaced_and_a_hard_link_is_never_made(store: Store, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "out").symlink_to(tmp_path / "precious")
    digest = store.put_bytes(NOISE)
    assert store.restore(digest, tmp_path / "out")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (tmp_path / "out").is_symlink()
    assert store.blobs.path_of(digest).stat().st_nlink == 1
    (tmp_path / "out").write_bytes(b"the user writes over it")
    assert store.get(digest) == NOISE


def test_a_destination_that_is_a_folder_is_an_error_and_nothing_is_left(store: Store, tmp_path: Path) -> None:
    digest = store.put_bytes(b"x")
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError) as caught:
        store.restore(digest, tmp_path / "out")
    assert caught.value.file == str(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "gone"])
@pytest.mark.parametrize("content", [NOISE, LARGE], ids=["raw", "packed"])
def test_a_bad_file_is_a_miss_is_counted_and_is_rebuilt(
    store: Store, tmp_path: Path, damage: str, content: bytes
) -> None:
    digest = store.put_bytes(content)
    path = store.blobs.path_of(digest)
    stored = bytearray(path.read_bytes())
    if damage == "flip":
        stored[len(stored) // 2] ^= 4
    path.write_bytes({"flip": stored, "cut": stored[:-7], "longer": stored + b"more", "gone": b""}[damage])
    if damage == "gone":
        path.unlink()
    (tmp_path / "out").write_bytes(b"what was there")
    assert not store.restore(digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"what was there"
    assert store.get(digest) is None
    with pytest.raises(BadBlob):
        list(store.blobs.chunks(digest))
    assert store.counters()[Counter.BAD_BLOBS] == 1
    assert not path.exists()
    assert store.put_bytes(content) == digest
    assert store.get(digest) == content


def test_a_put_repairs_a_blob_whose_file_was_cut(store: Store) -> None:
    digest = store.put_bytes(NOISE)
    store.blobs.path_of(digest).write_bytes(NOISE[:10])
    store.put_bytes(NOISE)
    assert store.get(digest) == NOISE


def test_a_file_that_is_not_what_was_expected_is_not_stored(store: Store, tmp_path: Path) -> None:
    for content in (b"small", LARGE):
        (tmp_path / "in").write_bytes(content)
        with pytest.raises(StoreError, match="changed"):
            store.put_file(tmp_path / "in", expect=digest_of(b"else"))
        assert store.get(digest_of(content)) is None
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


def test_only_regular_files_are_stored(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "none"):
        with pytest.raises(StoreError) as caught:
            store.put_file(path)
        assert caught.value.file == str(path)


def test_what_is_not_a_digest_is_a_miss(store: Store, tmp_path: Path) -> None:
    for name in ("", "ab", "z" * 64, "../" * 21 + "x", "0" * 64):
        assert store.get(Digest(name)) is None
        assert not store.restore(Digest(name), tmp_path / "out")
        assert not store.has(Digest(name))


def test_leftovers_of_dead_processes_are_cleaned_and_those_of_live_ones_are_not(store: Store, tmp_path: Path) -> None:
    scratch = store.scratch_folder()
    mine = tmp_path / "store" / "tmp" / f"{store.blobs.session().name}.77"
    mine.write_bytes(b"being written")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; from pathlib import Path; from buildd.store.store import Store\n"
            "s = Store.open(Path(sys.argv[1])); (s.scratch_folder() / 'job').mkdir()\n"
            "(s.folder / 'tmp' / (s.blobs.session().name + '.1')).write_bytes(b'x'); os._exit(9)",
            str(tmp_path / "store"),
        ],
        check=False,
    )
    assert done.returncode == 9
    assert len(list((tmp_path / "store" / "tmp").iterdir())) == 4
    with Store.open(tmp_path / "store"):
        assert sorted((tmp_path / "store" / "tmp").iterdir()) == sorted([scratch, mine])


def test_many_threads_put_and_get_the_same_blobs(store: Store, tmp_path: Path) -> None:
    contents = [random.Random(n).randbytes(1000 << (n % 9)) for n in range(18)]
    failures: list[str] = []

    def work(seed: int) -> None:
        for content in random.Random(seed).sample(contents, len(contents)):
            digest = store.put_bytes(content)
            if store.get(digest) != content or not store.restore(digest, tmp_path / f"out{seed}"):
                failures.append(digest)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


FULL = """
import errno, os, sys
from pathlib import Path
from buildd.errors import StoreFull
from buildd.store.store import Store
from buildd.store.values import digest_of
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
store = Store.open(folder, limit_bytes=1 << 40)
good = store.put_bytes(b"good")
kept, full = [], 0
for number in range(200):
    content = os.urandom(30_000 if number % 2 else 150_000)
    try:
        store.put_bytes(content)
        kept.append((digest_of(content), content))
    except StoreFull as error:
        assert error.file and error.next_step, error
        full += 1
        if full == 4:
            break
assert full, "the disk never filled"
for digest, content in kept:
    assert store.get(digest) == content
assert store.get(good) == b"good"
store.close()
store = Store.open(folder, read_only=True)
assert all(store.get(digest) == content for digest, content in kept)
store.close()
filler = open(folder.parent / "filler", "wb", buffering=0)
try:
    while filler.write(bytes(4096)):
        pass
except OSError as error:
    assert error.errno == errno.ENOSPC
filler.close()
store = Store.open(folder)
assert all(store.get(digest) == content for digest, content in kept), "hits are served from a disk without a free byte"
try:
    store.put_bytes(os.urandom(5_000_000))
except StoreFull:
    pass
store.close()
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_full_disk_is_an_error_and_the_store_stays_sound(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(disk / "store"), str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        # Restoring onto the full disk is the same error, and leaves nothing behind.
        with Store.open(tmp_path / "roomy") as store:
            digest = store.put_bytes(LARGE)
            with pytest.raises(StoreFull) as caught:
                store.restore(digest, disk / "out")
            assert caught.value.file == str(disk / "out")
            assert sorted(path.name for path in disk.iterdir()) == ["filler", "store"]
        # With room again it works again, and everything is still there.
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        with Store.open(disk / "store", limit_bytes=1 << 30) as store:
            assert store.take_notices() == ()
            assert store.get(store.put_bytes(LARGE)) == LARGE
            assert store.get(digest_of(b"good")) == b"good"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_limit_on_file_sizes_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(NOISE * 40)
    with Store.open(tmp_path / "store") as store:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))
            with pytest.raises(StoreFull):
                store.put_file(tmp_path / "in")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list((tmp_path / "store" / "tmp").iterdir()) == []
        digest, _ = store.put_file(tmp_path / "in")
        assert store.get(digest) == NOISE * 40


@pytest.mark.parametrize("name", ["with blank", "with,comma", "with$dollar", "with'quote"])
def test_tools_get_no_private_folder_that_they_would_take_apart(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path / name) as store:
        assert name not in str(store.scratch_folder())
    with Store.open(tmp_path / "plain") as store:
        assert store.scratch_folder().is_relative_to(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["", "nfs4"])
def test_what_may_be_another_machines_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("buildd.store.scratch.network_file_system", lambda path: kind)
    theirs = tmp_path / f"buildd-scratch-{os.geteuid()}-theirs"
    theirs.mkdir()
    os.utime(theirs, (1e9, 1e9))
    with Store.open(tmp_path / "with blank") as store:
        assert store.scratch_folder().parent == tmp_path
    assert theirs.exists() == (kind == "nfs4")
