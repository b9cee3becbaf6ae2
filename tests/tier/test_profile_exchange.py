"""Measurements in the tier: asked for at a store's door, checked, and written after a GPU has measured."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from buildd.hooks import tier_door
from buildd.store.profiles import Profile
from buildd.store.signing import Signer
from buildd.store.tally import Reasoned
from buildd.tier import shared_profiles
from buildd.tier.figures import TierAnswer
from buildd.tier.records import FORMAT, Kind, ProfilesRecord, name_of, sealed
from tests.support.profile_rows import H200, profiles_of, row
from tests.support.tier_machines import TierMachine, serving
from tests.support.tiers import ALICE, MALLORY, Fault, HttpCache, tier_at
from tests.support.waiting import until

NAME = name_of(Kind.PROFILES, shared_profiles.KEY, ALICE.public)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_door, "ANSWER_S", 20.0)


class Machine(TierMachine):
    """A daemon's side of a store, and the door as a command has it."""

    def fetch(self, gpu: str = H200.gpu) -> bool:
        found = tier_door.fetch_rows(self.folder, gpu)
        assert found is not None
        return found

    def rows(self) -> dict[str, Profile]:
        return {row.candidate: row for row in profiles_of(self.store).everything()}


def machine(
    folder: Path, url: str, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)
) -> AbstractContextManager[Machine]:
    return serving(Machine, folder, url, writer, believes)


def fill(cache: HttpCache, *rows: Profile, writer: Signer = ALICE) -> None:
    with closing(tier_at(cache.url, writer=writer)) as tier:
        shared_profiles.write(tier, writer, rows)


def test_the_rows_of_a_gpu_model_come_and_are_counted(tmp_path: Path, cache: HttpCache) -> None:
    fill(cache, row("a"), row("b", time_us=12.0), row("c", setting=H200.__class__(**{**fields(), "gpu": "another"})))
    with machine(tmp_path / "second", cache.url) as second:
        assert second.fetch() and sorted(second.rows()) == ["a", "b"]
        assert (tmp_path / "second/profiles/best.json").exists(), "plans see them"
        assert not second.fetch(), "nothing is new"
        assert (second.count(TierAnswer.MEASUREMENTS), second.count(TierAnswer.ABSENT)) == (2, 1)
        assert second.store.tally.reasons(Reasoned.TIER) == {"measurements": 2, "not there": 1}


def fields() -> dict[str, str]:
    return {name: getattr(H200, name) for name in H200.__struct_fields__}


def test_a_later_measurement_of_this_machine_stays(tmp_path: Path, cache: HttpCache) -> None:
    fill(cache, row("old", measured_ns=1), row("new", measured_ns=9, time_us=3.0))
    with machine(tmp_path / "second", cache.url) as second:
        profiles_of(second.store).save([row("old", measured_ns=5, time_us=7.0), row("new", measured_ns=5)])
        assert second.fetch()
        assert (second.rows()["old"].time_us, second.rows()["new"].time_us) == (7.0, 3.0)
        assert second.count(TierAnswer.MEASUREMENTS) == 1


def test_a_machine_that_writes_offers_what_it_has_measured(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "first", cache.url, ALICE) as first:
        profiles_of(first.store).save([row("a"), row("b")])
        tier_door.tell_measured(first.folder)
        until(lambda: f"/x/ac/{NAME.hex()}" in cache.objects)
    with machine(tmp_path / "second", cache.url) as second:
        profiles_of(second.store).save([row("own")])
        tier_door.tell_measured(second.folder)
        assert second.fetch() and sorted(second.rows()) == ["a", "b", "own"]
    assert len([line for line in cache.asked if line.startswith("PUT")]) == 1, "a reader writes nothing"


def test_rows_of_nobody_who_is_trusted_and_impossible_rows_stay_outside(tmp_path: Path, cache: HttpCache) -> None:
    fill(cache, row("evil"), writer=MALLORY)
    with machine(tmp_path / "victim", cache.url) as victim:
        assert not victim.fetch()
        record = ProfilesRecord(FORMAT, Kind.PROFILES, NAME, shared_profiles.KEY, ALICE.public, 1, [row("evil")])
        cache.objects[f"/x/ac/{NAME.hex()}"] = sealed(record, MALLORY)
        assert not victim.fetch() and victim.count(TierAnswer.REFUSED) == 1
        fill(cache, row("a", time_us=-1.0))
        assert not victim.fetch() and victim.rows() == {} and victim.count(TierAnswer.REFUSED) >= 2


@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("fault", [Fault.NO_RIGHTS, Fault.NO_HTTP, Fault.FROZEN])
def test_a_tier_that_fails_is_asked_a_few_times_only(tmp_path: Path, cache: HttpCache, fault: Fault) -> None:
    fill(cache, row("a"))
    cache.fault = fault
    with machine(tmp_path / "second", cache.url) as second:
        assert not any(second.fetch() for _ in range(6)) and second.rows() == {}
        assert 0 < second.count(TierAnswer.FAILED) <= 3
        cache.thawed.set()


def test_odd_names_and_a_store_without_a_daemon(tmp_path: Path, cache: HttpCache) -> None:
    with machine(tmp_path / "one", cache.url) as one:
        assert not one.fetch("x" * 300) and cache.asked == []
        folder = one.folder
    assert tier_door.fetch_rows(folder, H200.gpu) is None
    tier_door.tell_measured(folder)
