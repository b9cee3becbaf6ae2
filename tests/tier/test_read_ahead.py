"""Trails: records that lie near one another are read before they are asked for, and wrong trails cost little."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from buildd.store.signing import Signer
from buildd.store.store import Store
from buildd.tier import read_ahead, records, trail
from buildd.tier.carrier import CarrierError, for_up_to
from buildd.tier.figures import TierAnswer
from buildd.tier.pushing import push
from buildd.tier.read_ahead import ReadAhead
from buildd.tier.records import FORMAT, InputsRecord, Kind, RefusedRecord, TrailRecord, name_of, opened, sealed
from buildd.tier.upload_queue import UploadQueue
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.tier_builds import built, machine
from tests.support.tiers import ALICE, MALLORY, Fault, HttpCache, tier_at, write_all
from tests.support.waiting import until, until_async

DEADLINE_S = 20.0
TRAIL = b"t" * 32


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of tests is as if it were far away."""
    monkeypatch.setattr(read_ahead, "_NEAR_S", 0.0)


def first_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def place_of(kind: Kind, key: bytes, writer: Signer = ALICE) -> str:
    return f"/x/ac/{name_of(kind, key, writer.public).hex()}"


def lay(cache: HttpCache, firsts: list[bytes], *, signer: Signer = ALICE, key: bytes = TRAIL) -> None:
    """Put a trail past these actions."""
    name = name_of(Kind.TRAIL, key, ALICE.public)
    record = TrailRecord(FORMAT, Kind.TRAIL, name, key, ALICE.public, 1, firsts)
    cache.objects[place_of(Kind.TRAIL, TRAIL)] = sealed(record, signer)


def fill(cache: HttpCache, count: int) -> list[bytes]:
    firsts = [first_of(number) for number in range(count)]
    for first in firsts:
        cache.objects[place_of(Kind.INPUTS, first)] = b"record " + first
    return firsts


class Reader:
    """One store's reading ahead."""

    def __init__(self, cache: HttpCache, known: frozenset[bytes] = frozenset()) -> None:
        self.cache, self.tier = cache, tier_at(cache.url)
        self.ahead = ReadAhead(self.tier, lambda firsts: set(firsts) - known)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.close()
        self.ahead.close()

    def get(self, number: int) -> bytes | None:
        return self.ahead.get(name_of(Kind.INPUTS, first_of(number), ALICE.public), for_up_to(DEADLINE_S, DEADLINE_S))

    def follow(self, number: int) -> None:
        self.ahead.follow(TRAIL, first_of(number), ALICE.public, DEADLINE_S)

    def settle(self) -> None:
        """Wait until nothing is under way."""
        for _ in range(2):  # the trail, and what it led to
            idle = threading.Barrier(read_ahead.UNDER_WAY + 1)
            for _ in range(read_ahead.UNDER_WAY):
                self.ahead._pool.submit(idle.wait, DEADLINE_S)
            idle.wait(DEADLINE_S)

    def is_near(self, number: int) -> bool:
        return self.ahead.is_near(name_of(Kind.INPUTS, first_of(number), ALICE.public))

    def gets(self) -> int:
        return len([line for line in self.cache.asked if line.startswith("GET")])


def test_records_near_on_the_trail_are_here_before_they_are_asked_for(cache: HttpCache) -> None:
    lay(cache, fill(cache, 200))
    with Reader(cache) as reader:
        reader.get(100)
        reader.follow(100)
        until(lambda: reader.gets() == 2 + read_ahead.MOST_AHEAD)
        until(lambda: all(reader.is_near(number) for number in (101, 148, 99, 84)))
        assert not reader.is_near(149) and not reader.is_near(83)
        assert reader.get(101) == b"record " + first_of(101)
        assert reader.gets() == 66, "it was here"
        reader.follow(101)
        until(lambda: reader.is_near(149))
        reader.settle()
        assert reader.gets() == 67, "one asked for, one more ahead"
        assert reader.get(101) is not None and reader.gets() == 68, "who asks again gets today's"


def test_what_the_store_knows_is_not_read(cache: HttpCache) -> None:
    firsts = fill(cache, 20)
    lay(cache, firsts)
    with Reader(cache, known=frozenset(firsts[:19])) as reader:
        reader.get(3)
        reader.follow(3)
        until(lambda: reader.is_near(19))
        reader.settle()
        assert reader.gets() == 3


def test_a_record_on_its_way_is_not_fetched_twice(cache: HttpCache) -> None:
    lay(cache, fill(cache, 2))

    def slow_from_here(firsts: Collection[bytes]) -> Collection[bytes]:
        cache.fault = Fault.SLOW
        return firsts

    with Reader(cache) as reader:
        reader.ahead._lacking = slow_from_here
        reader.get(0)
        reader.follow(0)
        until(lambda: reader.is_near(1))
        found: list[bytes | None] = []
        asking = threading.Thread(target=lambda: found.append(reader.get(1)))
        asking.start()
        until(lambda: not reader.is_near(1))
        cache.thawed.set()
        asking.join(DEADLINE_S)
        assert found == [b"record " + first_of(1)] and reader.gets() == 3


@pytest.mark.parametrize(
    "count", [pytest.param(records.MOST_STEPS, id="of nothing"), pytest.param(10_000, id="longer than allowed")]
)
def test_a_trail_of_thousands_costs_a_bounded_number_of_questions(cache: HttpCache, count: int) -> None:
    lay(cache, [first_of(number) for number in range(count)])
    with Reader(cache) as reader:
        reader.get(500)
        for number in (500, *range(100, 900, 40)):
            reader.follow(number)
            reader.settle()
        assert reader.gets() == (2 if count > records.MOST_STEPS else 2 + read_ahead.MOST_AHEAD)
        assert reader.tier.figures.counts()[TierAnswer.REFUSED] == (count > records.MOST_STEPS)


@pytest.mark.parametrize(
    ("signer", "key"), [pytest.param(MALLORY, TRAIL, id="another key"), pytest.param(ALICE, b"o" * 32, id="replayed")]
)
def test_nobody_follows_a_trail_that_is_not_this_writers(cache: HttpCache, signer: Signer, key: bytes) -> None:
    lay(cache, fill(cache, 20), signer=signer, key=key)
    with Reader(cache) as reader:
        reader.get(0)
        reader.follow(0)
        reader.settle()
        assert reader.gets() == 2 and reader.tier.figures.counts()[TierAnswer.REFUSED] == 1


def test_large_records_are_not_held(cache: HttpCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for one gets it all the same; what is in memory stays below its bound."""
    lay(cache, fill(cache, 20))
    cache.objects[place_of(Kind.INPUTS, first_of(1))] = bytes(5 << 20)
    monkeypatch.setattr(read_ahead, "MOST_BYTES", 10 * 39)
    with Reader(cache) as reader:
        reader.get(0)
        reader.follow(0)
        reader.settle()
        assert not reader.is_near(1)
        assert sum(map(reader.is_near, range(20))) == 10
        assert reader.get(1) == bytes(5 << 20)
        assert reader.tier.paused_s()[0] == 0, "the tier has done nothing wrong"


def test_after_a_failure_nothing_is_read_ahead(cache: HttpCache) -> None:
    lay(cache, fill(cache, 100))
    with Reader(cache) as reader:
        reader.get(0)
        cache.fault = Fault.NO_RIGHTS
        reader.follow(0)
        until(lambda: reader.tier.paused_s()[0] > 0)
        cache.fault = Fault.NONE
        asked = reader.gets()
        reader.follow(0)
        reader.settle()
        assert reader.gets() == asked
        with pytest.raises(CarrierError):
            cache.fault = Fault.NO_RIGHTS
            reader.get(1)


def test_a_minute_later_the_tier_is_asked_again(cache: HttpCache, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(cache, fill(cache, 3))
    with Reader(cache) as reader:
        reader.get(0)
        reader.follow(0)
        until(lambda: reader.is_near(1) and reader.is_near(2))
        monkeypatch.setattr(read_ahead, "HELD_S", -1.0)
        cache.objects[place_of(Kind.INPUTS, first_of(1))] = b"today's"
        assert reader.get(1) == b"today's"
        reader.ahead.forget()
        assert not reader.is_near(2)


# -------------------------------------------------------------------- trails that uploaders leave


def trails(cache: HttpCache, firsts: set[bytes]) -> list[TrailRecord]:
    """The trails in a tier that records of these actions name."""
    named = set()
    for first in firsts:
        record = opened(cache.objects[place_of(Kind.INPUTS, first)], InputsRecord, Kind.INPUTS, first, ALICE.public)
        assert record.trail is not None
        named.add(record.trail)
    there = [key for key in named if place_of(Kind.TRAIL, key) in cache.objects]
    return [
        opened(cache.objects[place_of(Kind.TRAIL, key)], TrailRecord, Kind.TRAIL, key, ALICE.public) for key in there
    ]


def firsts_of(workspace: Workspace) -> list[bytes]:
    """The first-level keys of all actions, in the order of their last use."""
    with Store.open(workspace.store) as store:
        rows = store.database.rows(
            "SELECT first FROM input_sets JOIN results ON results.key = input_sets.key ORDER BY used"
        )
    return [first for (first,) in rows]


def many(tmp_path: Path, name: str) -> Workspace:
    workspace = machine(tmp_path, name)
    for number in range(5):
        workspace.write(f"src/n{number}.cu", f"{number}\n")
    return workspace


def test_a_push_leaves_a_trail_in_the_order_of_the_build_and_readers_follow_it(
    tmp_path: Path, cache: HttpCache
) -> None:
    first = many(tmp_path, "first")
    built(first, None)
    home = tmp_path / "home"
    (home / ".config/buildd").mkdir(parents=True)
    (home / ".config/buildd/signing.key").write_text((b"a" * 32).hex())
    (home / ".config/buildd/signing.key").chmod(0o600)
    environ = {"HOME": str(home), "BUILDD_TIER": cache.url, "BUILDD_TIER_WRITE": "1"}
    with Store.open(first.store) as store:
        assert push(store, environ).results == 8
    firsts = firsts_of(first)
    (left,) = trails(cache, set(firsts))
    assert left.firsts == firsts
    second = many(tmp_path, "second")
    cache.asked.clear()
    assert built(second, tier_at(cache.url)).ran() == []
    assert second.library == first.library
    assert len(cache.asked) == len(set(cache.asked)) == 9, "one for each action, and the trail"


def test_uploads_in_the_background_leave_one(tmp_path: Path, cache: HttpCache) -> None:
    first = many(tmp_path, "first")

    def is_written() -> bool:
        firsts = set(firsts_of(first))
        if not all(place_of(Kind.INPUTS, each) in cache.objects for each in firsts):
            return False
        return {each for trail in trails(cache, firsts) for each in trail.firsts} >= firsts

    async def built_and_written() -> None:
        """A daemon that ends sooner leaves results to the next one, and a trail that nobody writes."""
        async with Harness(first, tier=tier_at(cache.url, writer=ALICE)) as harness:
            assert (await harness.build(first.request())).done.outcome is m.Outcome.BUILT
            await until_async(is_written, "the uploads in the background")

    asyncio.run(built_and_written())
    assert write_all(first.store, cache.url) == 0
    cache.asked.clear()
    assert built(many(tmp_path, "second"), tier_at(cache.url)).ran() == []
    assert len(cache.asked) == len(set(cache.asked)) <= 10


def test_a_trail_ends_after_a_pause_or_when_it_is_long(cache: HttpCache, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = trail.Trail(tier_at(cache.url, writer=ALICE), ALICE)
    begun = grown.lead_past([first_of(1)])
    assert not grown.is_unwritten, "no record names it"
    grown.named()
    assert grown.is_unwritten
    assert grown.lead_past([first_of(2)]) == begun
    assert grown.catch_up(for_up_to(DEADLINE_S, DEADLINE_S))
    assert not grown.is_unwritten
    entry = cache.objects[place_of(Kind.TRAIL, begun)]
    assert opened(entry, TrailRecord, Kind.TRAIL, begun, ALICE.public).firsts == [first_of(1), first_of(2)]
    assert grown.lead_past([first_of(number) for number in range(2, records.MOST_STEPS + 2)]) != begun
    monkeypatch.setattr(trail, "PAUSE_S", -1.0)
    assert grown.lead_past([first_of(3)]) != grown.lead_past([first_of(3)])


def test_a_trail_is_no_record_of_an_action(cache: HttpCache) -> None:
    lay(cache, [first_of(1)])
    entry = cache.objects[place_of(Kind.TRAIL, TRAIL)]
    for form, kind in ((InputsRecord, Kind.INPUTS), (InputsRecord, Kind.TRAIL), (TrailRecord, Kind.INPUTS)):
        with pytest.raises(RefusedRecord):
            opened(entry, form, kind, TRAIL, ALICE.public)


def test_a_record_read_ahead_is_checked_as_any_other(tmp_path: Path, cache: HttpCache) -> None:
    """The records of two actions stand in each other's place: each is signed, and none is taken."""
    first = many(tmp_path, "first")
    built(first, None)
    with Store.open(first.store) as store:
        for key, led in store.database.rows("SELECT key, first FROM input_sets ORDER BY id"):
            UploadQueue(store.folder, cache.url).add(m.Digest(key.hex()), m.Digest(led.hex()))
    assert write_all(first.store, cache.url) == 0
    names = [place_of(Kind.INPUTS, one) for one in firsts_of(first)]
    kept = names.pop(0)
    changed = dict(zip(names, (cache.objects[name] for name in [*names[1:], names[0]]), strict=True))
    cache.objects.update(changed)
    second = many(tmp_path, "second")
    tier = tier_at(cache.url)
    story = built(second, tier)
    assert story.done.outcome is m.Outcome.BUILT and second.library == first.library
    assert len(story.ran()) == 7 and kept in {line.removeprefix("GET ") for line in cache.asked}
    assert tier.figures.counts()[TierAnswer.REFUSED] == 7
