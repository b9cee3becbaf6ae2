"""Programs' entries are read ahead: a program that asks for kernels one by one waits for the tier at the first."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from buildd.hooks import tier_door
from buildd.hooks.entries import Entry, Shelf
from buildd.store.signing import Signer
from buildd.tier import entry_fetcher, entry_uploader, read_ahead
from buildd.tier.figures import TierAnswer
from buildd.tier.packed_blobs import packed
from buildd.tier.records import FORMAT, EntryRecord, Kind, entry_key, name_of, opened, sealed
from buildd.tier.tier import Tier
from tests.support.tier_machines import TierMachine, serving
from tests.support.tiers import ALICE, MALLORY, Fault, HttpCache
from tests.support.waiting import until

GROUP = "add.json"
KERNELS = 40


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "keys"))
    monkeypatch.setattr(tier_door._Pause, "until_s", 0.0)
    monkeypatch.setattr(tier_door, "ANSWER_S", 20.0)
    monkeypatch.setattr(read_ahead, "_NEAR_S", 0.0)


def kernel(number: int) -> Entry:
    return Entry(f"KEY{number}", GROUP, {GROUP: b"%d" % number})


class Machine(TierMachine):
    """A daemon's side of a store, and a program's."""

    def __init__(self, folder: Path, tier: Tier) -> None:
        super().__init__(folder, tier)
        self.shelf = Shelf(self.folder, "triton")
        assert self.shelf.open()

    def place(self, number: int) -> str:
        return f"triton/{self.shelf.name_of(f'KEY{number}', GROUP)}"

    def make(self, numbers: range) -> None:
        for number in numbers:
            self.shelf.put(kernel(number))
            tier_door.offer(self.shelf, f"KEY{number}", GROUP)

    def finds(self, number: int) -> bool:
        if not tier_door.fetch(self.shelf, f"KEY{number}", GROUP):
            return False
        found = self.shelf.take(f"KEY{number}", GROUP)
        return found is not None and found.files == kernel(number).files

    def is_near(self, number: int, writer: Signer = ALICE) -> bool:
        name = name_of(Kind.ENTRY, entry_key(self.place(number)), writer.public)
        return self.beside.entries.fetcher._ahead.is_near(name)


def machine(
    folder: Path, url: str, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)
) -> AbstractContextManager[Machine]:
    return serving(Machine, folder, url, writer, believes)


def fill(folder: Path, cache: HttpCache, writer: Signer = ALICE, numbers: range = range(KERNELS)) -> None:
    """A machine compiles kernels one after another. Each of its rounds of uploads ends with a trail."""
    with machine(folder, cache.url, writer) as first:
        first.make(numbers)
        until(lambda: first.count(TierAnswer.KEPT) == len(numbers) and first.beside.waiting == 0)
        uploader = first.beside.entries.uploader
        assert uploader is not None
        until(lambda: not uploader._trail.is_unwritten)


def asked_for(cache: HttpCache) -> int:
    return len([line for line in cache.asked if line.startswith("GET")])


def test_the_first_kernel_brings_those_after_it(tmp_path: Path, cache: HttpCache) -> None:
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "second", cache.url) as second:
        assert second.finds(0)
        until(lambda: all(second.is_near(number) for number in range(1, KERNELS)))
        until(lambda: asked_for(cache) == 1 + KERNELS)  # the trail, and each kernel once
        cache.fault = Fault.NO_RIGHTS
        assert all(second.finds(number) for number in range(1, KERNELS)), "nothing more is asked of the tier"
        assert asked_for(cache) == 1 + KERNELS and second.count(TierAnswer.HIT) == KERNELS


def test_large_kernels_come_with_their_records(
    tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their contents are in `cas/`, one round trip behind the records."""
    monkeypatch.setattr(entry_uploader, "MOST_CARRIED_BYTES", -1)
    fill(tmp_path / "first", cache)
    assert len(cache.blobs()) == KERNELS
    with machine(tmp_path / "second", cache.url) as second:
        assert second.finds(0)
        until(lambda: all(second.is_near(number) for number in range(1, KERNELS)))
        until(lambda: asked_for(cache) == 1 + 2 * KERNELS)
        cache.fault = Fault.NO_RIGHTS
        assert all(second.finds(number) for number in range(1, KERNELS)), "nothing more is asked of the tier"


def test_a_large_kernel_that_was_read_ahead_is_checked(
    tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_uploader, "MOST_CARRIED_BYTES", -1)
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "victim", cache.url) as victim:
        blob, _ = packed(kernel(1).encode())
        cache.objects[f"/x/cas/{blob.sha256.hex()}"] = b"of the attacker"
        assert victim.finds(0)
        until(lambda: victim.is_near(1))
        assert not victim.finds(1) and victim.count(TierAnswer.REFUSED) == 1


def test_what_the_store_has_is_not_read_ahead(tmp_path: Path, cache: HttpCache) -> None:
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "second", cache.url) as second:
        second.make(range(1, 30))
        assert second.finds(0)
        until(lambda: all(second.is_near(number) for number in range(30, KERNELS)))
        assert not any(second.is_near(number) for number in range(1, 30))
        until(lambda: asked_for(cache) == 2 + KERNELS - 30)


def test_a_kernel_that_was_read_ahead_is_checked_as_any_other(tmp_path: Path, cache: HttpCache) -> None:
    """Somebody who may write to the place has put her own record under the name of one on Alice's trail."""
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "victim", cache.url) as victim:
        key = entry_key(victim.place(1))
        name = name_of(Kind.ENTRY, key, ALICE.public)
        blob, stored = packed(Entry("KEY1", GROUP, {GROUP: b"of the attacker"}).encode())
        evil = EntryRecord(FORMAT, Kind.ENTRY, name, key, ALICE.public, 1, blob, stored)
        cache.objects[f"/x/ac/{name.hex()}"] = sealed(evil, MALLORY)
        assert victim.finds(0)
        until(lambda: victim.is_near(1))
        assert not victim.finds(1) and victim.count(TierAnswer.REFUSED) == 1
        assert victim.finds(2)


def test_a_damaged_kernel_of_one_writer_is_had_of_another(tmp_path: Path, cache: HttpCache) -> None:
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "third", cache.url, MALLORY) as third:
        third.make(range(2))
        until(lambda: third.count(TierAnswer.KEPT) == 2)
    with machine(tmp_path / "second", cache.url, believes=(ALICE, MALLORY)) as second:
        place = f"/x/ac/{name_of(Kind.ENTRY, entry_key(second.place(1)), ALICE.public).hex()}"
        cache.objects[place] = cache.objects[place][:-1]
        assert second.finds(0)
        until(lambda: second.is_near(1))
        assert second.finds(1) and second.count(TierAnswer.REFUSED) == 1


def test_a_long_list_of_kernels_has_several_trails(
    tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_fetcher, "_LISTED_S", 0.0)
    monkeypatch.setattr("buildd.tier.entry_uploader.MOST_STEPS", 10)
    monkeypatch.setattr("buildd.tier.trail.MOST_STEPS", 10)
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "second", cache.url) as second:
        assert all(second.finds(number) for number in range(KERNELS))
        trails = len(cache.records()) - KERNELS
        assert trails >= KERNELS // 10


def test_when_the_daemon_rests_nothing_is_held(tmp_path: Path, cache: HttpCache) -> None:
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "second", cache.url) as second:

        def leads_on(number: int) -> bool:
            """Whether the next one is read ahead. It is not if a round of uploads ended between the two."""
            assert second.finds(number)
            with contextlib.suppress(TimeoutError):
                return until(lambda: second.is_near(number + 1), timeout_s=5)
            return False

        last = next(number for number in range(KERNELS - 1) if leads_on(number))
        second.beside.rest()
        assert not second.is_near(last + 1)


def test_a_record_that_an_earlier_version_wrote_names_no_trail(tmp_path: Path, cache: HttpCache) -> None:
    fill(tmp_path / "first", cache)
    with machine(tmp_path / "second", cache.url) as second:
        for number in range(KERNELS):
            key = entry_key(second.place(number))
            name = name_of(Kind.ENTRY, key, ALICE.public)
            place = f"/x/ac/{name.hex()}"
            record = opened(cache.objects[place], EntryRecord, Kind.ENTRY, key, ALICE.public)
            assert record.trail is not None
            cache.objects[place] = sealed(without_trail(record), ALICE)
        assert second.finds(0) and second.finds(1)
        assert asked_for(cache) == 2


def without_trail(record: EntryRecord) -> EntryRecord:
    return EntryRecord(
        record.format, record.kind, record.name, record.entry, record.writer, record.time_s, record.blob, record.object
    )
