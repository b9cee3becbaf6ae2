"""Bundles: what was exported is what is imported; anything else is refused and changes nothing."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from buildd.errors import StoreError
from buildd.hooks.entries import Entry, Shelf, name_of
from buildd.store import shared_kernels, verification
from buildd.store.bundle_export import export
from buildd.store.bundle_format import BundleError, Contents, UntrustedBundle
from buildd.store.bundle_import import import_
from buildd.store.profiles import Outcome, Profile, Profiles
from buildd.store.result_rows import PRESENT, UNKNOWN
from buildd.store.signing import signer_of
from buildd.store.store import Result, Store, StoredOutput
from codegen.gemm.best_kernels import Setting
from tests.support.crash_store_writer import content_of, is_served, key_of, publish

Manifest = list[list[Any]]


SIGNER = signer_of(b"s" * 32)
TRUSTED = {SIGNER.public}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", limit_bytes=1 << 30) as opened:
        for seed in range(12):
            publish(opened, seed)
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "other", limit_bytes=1 << 30) as opened:
        yield opened


def counts(store: Store) -> list[tuple[Any, ...]]:
    return [
        store.database.rows(f"SELECT count(*) FROM {table}")[0]
        for table in ("blobs", "results", "refs", "lists", "input_sets")
    ]


def test_everything_arrives_in_another_store(store: Store, other: Store, tmp_path: Path) -> None:
    exported = export(store, None, tmp_path / "b", SIGNER)
    assert import_(other, tmp_path / "b", TRUSTED) == exported
    assert (exported.results, exported.blobs) == (12, 24)
    assert all(is_served(other, seed) for seed in range(12))
    before, after = store.result(key_of("result", 7)), other.result(key_of("result", 7))
    assert before is not None and after is not None
    assert replace(after, created_ns=0) == replace(before, created_ns=0)
    assert counts(other) == counts(store)


def test_the_same_content_gives_the_same_bytes(store: Store, other: Store, tmp_path: Path) -> None:
    for seed in random.Random(1).sample(range(12), 12):
        publish(other, seed)
    export(store, None, tmp_path / "one", SIGNER)
    export(other, [key_of("result", seed) for seed in range(12)], tmp_path / "two", SIGNER)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_profiles_come_along_and_never_replace_a_later_one(store: Store, other: Store, tmp_path: Path) -> None:
    here, there = Profiles(store.database, tmp_path / "here"), Profiles(other.database, tmp_path / "there")
    setting = Setting(gpu="NVIDIA H200", driver="580.1", toolkit="13.0.88", library="4.2.0", flags="")

    def row(candidate: str, time_us: float, measured_ns: int) -> Profile:
        numbers: dict[str, Any] = {"time_us": time_us, "measured_ns": measured_ns, "checked": True}
        return Profile(setting=setting, problem="p", candidate=candidate, outcome=Outcome.MEASURED, **numbers)

    here.save([row("a", 5.0, 10), row("b", 6.0, 10), row("c", 7.0, 10)])
    there.save([row("b", 4.0, 11), row("c", 8.0, 9)])
    exported = export(store, [], tmp_path / "b", SIGNER, here.everything())
    assert import_(other, tmp_path / "b", TRUSTED, lambda rows: _kept(there, rows)) == exported
    assert exported.profiles == 3
    assert {one.candidate: one.time_us for one in there.everything()} == {"a": 5.0, "b": 4.0, "c": 7.0}
    assert "NVIDIA H200" in (tmp_path / "there/best.json").read_text()
    export(store, [], tmp_path / "bad", SIGNER, [row("d", float("nan"), 1)])
    with pytest.raises(BundleError, match="impossible numbers"):
        import_(other, tmp_path / "bad", TRUSTED, lambda rows: _kept(there, rows))


def _kept(profiles: Profiles, rows: list[Profile]) -> None:
    assert profiles.save(rows, older=False)


def test_only_what_was_asked_for_is_exported(store: Store, other: Store, tmp_path: Path) -> None:
    assert export(store, [key_of("result", 3)], tmp_path / "b", SIGNER).results == 1
    import_(other, tmp_path / "b", TRUSTED)
    assert [seed for seed in range(12) if is_served(other, seed)] == [3]


def test_folder_stamps_do_not_travel(store: Store, other: Store, tmp_path: Path) -> None:
    (known,) = store.input_sets(key_of("first", 3))
    store.update_folders(key_of("first", 3), replace(known, folders=(("/usr/include", 42), ("src/unused.h", PRESENT))))
    export(store, [key_of("result", 3)], tmp_path / "b", SIGNER)
    import_(other, tmp_path / "b", TRUSTED)
    (arrived,) = other.input_sets(key_of("first", 3))
    assert arrived.folders == (("/usr/include", UNKNOWN), ("src/unused.h", PRESENT))
    assert arrived.files == known.files


def test_large_blobs_and_odd_names(store: Store, other: Store, tmp_path: Path) -> None:
    content = random.Random(9).randbytes(1 << 20) * 12
    (known,) = store.input_sets(key_of("first", 3))
    digest = store.put_bytes(content)
    result = Result(key=known.key, action="caf\udce9", outputs=(StoredOutput("\udcff.so", digest, len(content), True),))
    store.publish(key_of("first", 3), replace(known, files=(("../\udce9.h", key_of("h", 1)),)), result)
    export(store, [known.key], tmp_path / "b", SIGNER)
    import_(other, tmp_path / "b", TRUSTED)
    found = other.result(known.key)
    assert found is not None and found.outputs == result.outputs and found.action == result.action
    assert other.get(digest) == content
    assert other.input_sets(key_of("first", 3))[0].files == (("../\udce9.h", key_of("h", 1)),)


def test_a_missing_result_and_a_damaged_blob_stop_an_export(store: Store, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"an older export")
    with pytest.raises(StoreError, match="no result"):
        export(store, [key_of("result", 99)], tmp_path / "b", SIGNER)
    result = store.result(key_of("result", 7))
    assert result is not None
    store.blobs.path_of(result.outputs[0].digest).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="damaged"):
        export(store, [key_of("result", 7)], tmp_path / "b", SIGNER)
    assert (tmp_path / "b").read_bytes() == b"an older export"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "store"]
    assert export(store, None, tmp_path / "b", SIGNER).results == 11, "everything means everything that is sound"


def test_a_bundle_that_is_cut_or_flipped_anywhere_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    file = tmp_path / "b"
    export(store, [key_of("result", seed) for seed in (1, 2, 5)], file, SIGNER)
    sound, chance = file.read_bytes(), random.Random(2)
    damaged = [sound[:cut] for cut in (0, 5, 20, 60, len(sound) // 2, len(sound) - 1)]
    damaged += [sound + b"x", b"", b"\0" * 4096]
    for offset in [*range(30), *(chance.randrange(len(sound)) for _ in range(60))]:
        flipped = bytearray(sound)
        flipped[offset] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for data in damaged:
        file.write_bytes(data)
        with pytest.raises(BundleError) as caught:
            import_(other, file, TRUSTED)
        assert caught.value.file == str(file)
    assert counts(other) == [(0,)] * 5
    file.write_bytes(sound)
    assert import_(other, file, TRUSTED).results == 3


def forged(
    manifest: Manifest, blobs: bytes, *, plain_bytes: int | None = None, packed: bytes | None = None, version: int = 2
) -> bytes:
    """A bundle with a right checksum, and signed: what somebody can make who is trusted and should not be."""
    plain = msgspec.msgpack.encode(manifest)
    packed = zstandard.ZstdCompressor().compress(plain) if packed is None else packed
    size = len(plain) if plain_bytes is None else plain_bytes
    body = struct.pack("<8sHHQQ", b"buildd\0B", version, 0, len(packed), size) + packed + blobs
    check = blake3(body).digest()
    return body + check + SIGNER.public + SIGNER.sign(b"buildd bundle\0" + check)


CONTENT = b"object"
DIGEST = blake3(CONTENT).digest()
RAW = struct.pack("<BQ", 0, len(CONTENT)) + CONTENT


def manifest() -> Manifest:
    sets = [[b"f" * 32, 0, [], []]]
    entry = [b"k" * 32, b"a", [[b"o", DIGEST, len(CONTENT), False]], None, None, [0.0, 0.0, 0.0, 0], sets]
    return [[entry], [[[b"x.h", b"h" * 32]]], [[DIGEST, len(CONTENT)]]]


def edited(edit: Callable[[Manifest], object]) -> bytes:
    made = manifest()
    edit(made)
    return forged(made, RAW)


BOMB = zstandard.ZstdCompressor(level=19).compress(b"\0" * (300 << 20))

HOSTILE: dict[str, Callable[[], bytes]] = {
    "an output that leaves its folder": lambda: edited(lambda m: m[0][0][2][0].__setitem__(0, b"../../etc/passwd")),
    "an absolute output": lambda: edited(lambda m: m[0][0][2][0].__setitem__(0, b"/etc/passwd")),
    "an empty output name": lambda: edited(lambda m: m[0][0][2][0].__setitem__(0, b"")),
    "a name with NUL": lambda: edited(lambda m: m[0][0].__setitem__(1, b"a\0b")),
    "a very long name": lambda: edited(lambda m: m[1][0][0].__setitem__(0, b"x" * 5000)),
    "a short digest": lambda: edited(lambda m: m[1][0][0].__setitem__(1, b"short")),
    "a short key": lambda: edited(lambda m: m[0][0].__setitem__(0, b"short")),
    "a missing blob": lambda: edited(lambda m: m[0][0].__setitem__(3, b"z" * 32)),
    "a wrong size": lambda: edited(lambda m: m[0][0][2][0].__setitem__(2, 7)),
    "a list that is not there": lambda: edited(lambda m: m[0][0][6][0].__setitem__(1, 1)),
    "a negative list": lambda: edited(lambda m: m[0][0][6][0].__setitem__(1, -1)),
    "nothing leads to it": lambda: edited(lambda m: m[0][0].__setitem__(6, [])),
    "no time at all": lambda: edited(lambda m: m[0][0][5].__setitem__(0, float("nan"))),
    "twice the same result": lambda: edited(lambda m: m[0].append(m[0][0])),
    "twice the same output": lambda: edited(lambda m: m[0][0][2].append(m[0][0][2][0])),
    "no list at all": lambda: forged([[1], [2], [3]], RAW),
    "other content": lambda: forged(manifest(), struct.pack("<BQ", 0, 6) + b"obJect"),
    "an unknown packing": lambda: forged(manifest(), struct.pack("<BQ", 9, 6) + CONTENT),
    "a blob beyond the end": lambda: forged(manifest(), struct.pack("<BQ", 0, 1 << 60) + CONTENT),
    "no blob": lambda: forged(manifest(), b""),
    "something behind": lambda: forged(manifest(), RAW + b"more"),
    "a blob that is a bomb": lambda: forged(manifest(), struct.pack("<BQ", 1, len(BOMB)) + BOMB),
    "a manifest that is a bomb": lambda: forged(manifest(), RAW, plain_bytes=1000, packed=BOMB),
    "a manifest too large": lambda: forged(manifest(), RAW, plain_bytes=1 << 40),
    "millions of empty lists": lambda: edited(lambda m: m[1].extend([[]] * (3 << 20))),
    "a kernel that leaves its folder": lambda: edited(lambda m: m.append([[b"../kernel", DIGEST, len(CONTENT)]])),
    "a kernel that is not there": lambda: edited(lambda m: m.append([[b"a" * 32, DIGEST, len(CONTENT)]])),
    "a version of before": lambda: forged(manifest(), RAW, version=1),
    "a manifest that is deep": lambda: forged(
        manifest(), RAW, plain_bytes=1 << 20, packed=zstandard.ZstdCompressor().compress(b"\x91" * (1 << 20))
    ),
}


def test_a_bundle_made_by_hand_after_the_documented_format_is_read(other: Store, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(forged(manifest(), RAW))
    assert import_(other, tmp_path / "b", TRUSTED) == Contents(results=1, blobs=1, blob_bytes=6)


IMPOSSIBLE_FACTS = (
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"key": 1, "group": 2, "files": []}',
    b'{"key": "k", "group": "g", "files": [["x"]]}',
    b'{"key": "k", "group": "g", "files": [["y", -7], ["x", 14]]}',
)


@pytest.mark.parametrize("facts", IMPOSSIBLE_FACTS)
def test_a_kernel_with_impossible_facts_is_left_out(other: Store, tmp_path: Path, facts: bytes) -> None:
    rest = struct.pack("<I", len(facts)) + facts + b"content"
    entry = b"buildd-entry 2\n\0" + bytes(96) + blake2b(rest, digest_size=32).digest() + rest
    made = [*manifest(), [], [[b"a" * 32, blake3(entry).digest(), len(entry)]]]
    (tmp_path / "b").write_bytes(forged(made, RAW + struct.pack("<BQ", 0, len(entry)) + entry))
    assert import_(other, tmp_path / "b", TRUSTED).results == 1
    assert shared_kernels.held(other.folder) == (0, 0)
    assert counts(other)[:2] == [(1,), (1,)]


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_bundle_is_refused_and_changes_nothing(other: Store, tmp_path: Path, case: str) -> None:
    (tmp_path / "b").write_bytes(HOSTILE[case]())
    with pytest.raises(BundleError) as caught:
        import_(other, tmp_path / "b", TRUSTED)
    assert "nothing was imported" in caught.value.message
    assert counts(other) == [(0,)] * 5
    assert verification.verify(other).is_sound


def test_more_than_the_store_may_hold_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    zeros = bytes(3 << 20)
    packed = zstandard.ZstdCompressor().compress(zeros)
    made = manifest()
    made[0][0][2] = [[b"o", blake3(zeros).digest(), len(zeros), False]]
    made[2] = [[blake3(zeros).digest(), len(zeros)]]
    (tmp_path / "b").write_bytes(forged(made, struct.pack("<BQ", 1, len(packed)) + packed))
    with Store.open(tmp_path / "small", limit_bytes=2 << 20) as small:
        with pytest.raises(BundleError, match="needs 3 MiB, and the store's bound is 2 MiB; nothing was imported"):
            import_(small, tmp_path / "b", TRUSTED)
        assert counts(small) == [(0,)] * 5
    with Store.open(tmp_path / "large", limit_bytes=4 << 20) as large:
        assert import_(large, tmp_path / "b", TRUSTED).results == 1


def test_only_who_is_trusted_is_believed(store: Store, other: Store, tmp_path: Path) -> None:
    file, stranger = tmp_path / "b", signer_of(b"t" * 32)
    export(store, None, file, stranger)
    with pytest.raises(UntrustedBundle, match=stranger.public.hex()) as caught:
        import_(other, file, TRUSTED)
    assert "nothing was imported" in caught.value.message
    assert caught.value.next_step.endswith(f"buildd cache trust {stranger.public.hex()} NAME")
    # Under the name of somebody who is: the signature is not theirs.
    content = file.read_bytes()
    file.write_bytes(content[:-96] + SIGNER.public + content[-64:])
    with pytest.raises(BundleError, match="its signature"):
        import_(other, file, TRUSTED)
    export(store, [key_of("result", 1)], tmp_path / "signed", SIGNER)
    # A signature of theirs that belongs to another bundle.
    file.write_bytes(content[:-96] + (tmp_path / "signed").read_bytes()[-96:])
    with pytest.raises(BundleError, match="its signature"):
        import_(other, file, TRUSTED)
    assert counts(other) == [(0,)] * 5
    file.write_bytes(content)
    assert import_(other, file, {stranger.public}).results == 12


def test_a_bundle_says_whose_entries_it_holds(store: Store, other: Store, tmp_path: Path) -> None:
    for folder, number in (("triton", 1), ("inductor", 4), ("jax", 2), ("ccache", 3)):
        shelf = Shelf(str(store.folder), folder)
        assert shelf.open()
        for key in range(number):
            shelf.put(Entry(f"KEY{key}", "file", {"file": b"{}"}))
    exported = export(store, None, tmp_path / "b", SIGNER)
    found = (exported.kernels, exported.graph_entries, exported.programs, exported.values)
    assert found == (1, 4, 2, 3) and import_(other, tmp_path / "b", TRUSTED) == exported


def test_the_content_is_the_same_with_another_signer(store: Store, tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        export(store, None, tmp_path / name, signer_of(bytes([number]) * 32))
    one, two = ((tmp_path / name).read_bytes() for name in ("one", "two"))
    assert one != two and one[:-96] == two[:-96]


def test_tritons_kernels_travel_with_everything(store: Store, other: Store, tmp_path: Path) -> None:
    shelf, arrived = Shelf(str(store.folder), "triton"), Shelf(str(other.folder), "triton")
    assert shelf.open()
    for number in range(3):
        shelf.put(Entry(f"KEY{number}", "add.json", {"add.json": b"{}", "add.cubin": bytes([number]) * 5000}))
    damaged = store.folder / "triton" / name_of("KEY1", "add.json")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert export(store, [key_of("result", 3)], tmp_path / "b", SIGNER).kernels == 0
    exported = export(store, None, tmp_path / "b", SIGNER)
    assert (exported.results, exported.kernels) == (12, 2), "what is damaged stays behind"
    assert import_(other, tmp_path / "b", TRUSTED) == exported
    for number, there in enumerate((True, False, True)):
        found = arrived.take(f"KEY{number}", "add.json")
        assert (found is not None) is there
        assert found is None or found.files["add.cubin"] == bytes([number]) * 5000
    assert shared_kernels.verify(other.folder) == (2, 0)
    assert {path.stat().st_mode & 0o777 for path in (other.folder / "triton").iterdir()} == {0o600}


def test_a_bundle_that_is_not_there(other: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        import_(other, tmp_path / "none", TRUSTED)
    assert str(tmp_path / "none") in caught.value.message and caught.value.is_usage


def test_contents_are_large_enough_to_mean_something() -> None:
    assert {len(content_of(seed)) > 64 << 10 for seed in range(12)} == {True, False}
