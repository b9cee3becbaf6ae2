"""One machine fills a tier, another one hits; and builds beside tiers that fail or lie are as builds without one."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from buildd.files.snapshot import Snapshot
from buildd.keys import fitting_list
from buildd.keys.text_digests import Stands
from buildd.store.store import Store
from buildd.store.tally import Reasoned
from buildd.tier.figures import TierAnswer
from buildd.tier.uploader import Uploader
from codegen.plan import Action
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.tier_builds import built, machine
from tests.support.tiers import ALICE, HTTP_AND_GRPC, MALLORY, Fault, HttpCache, tier_at, write_all
from tests.support.waiting import until

OVER_HTTP_AND_GRPC = pytest.mark.parametrize("cache", HTTP_AND_GRPC, indirect=True)


@pytest.fixture
def filled(tmp_path: Path, cache: HttpCache) -> Workspace:
    """A machine that has built, and has written its results to the tier."""
    first = machine(tmp_path, "first")
    built(first, tier_at(cache.url, writer=ALICE))
    assert write_all(first.store, cache.url) == 0
    assert len(cache.records()) >= 7 and len(cache.blobs()) >= 3, "two for each result, and a trail"
    return first


@OVER_HTTP_AND_GRPC
def test_another_machine_runs_nothing(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    second = machine(tmp_path, "second")
    tier = tier_at(cache.url)
    story = built(second, tier)
    assert story.ran() == []
    assert (story.done.hits, story.done.misses) == (3, 0)
    assert second.library == filled.library
    hits = story.of(m.CacheHit)
    assert {hit.reason for hit in hits} == {f"same inputs, from the tier {cache.url}, written by alice"}
    assert tier.figures.counts()[TierAnswer.HIT] == 3 and tier.figures.usual_s > 0
    with Store.open(second.store) as store:
        assert store.tally.reasons(Reasoned.TIER) == {"hits": 3}
    shutil.rmtree(second.project / "build")
    asked = len(cache.asked)
    assert built(second, tier_at(cache.url)).ran() == []
    assert len(cache.asked) == asked, "what is in the store is not asked for"


def test_what_was_compared_for_the_tier_is_not_compared_again(
    tmp_path: Path, filled: Workspace, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up after a hit in the tier finds this machine's stamps, and takes the comparison over."""
    compared: list[str] = []
    plain = fitting_list.stands

    def stands(snapshot: Snapshot, action: Action, path: str, digest: m.Digest) -> Stands:
        compared.append(f"{action.name} {path}")
        return plain(snapshot, action, path, digest)

    def update_folders(*_: object) -> None:
        raise AssertionError("the store got other stamps than this machine's")

    second = machine(tmp_path, "second")
    second.options["tier"] = tier_at(cache.url)
    monkeypatch.setattr(fitting_list, "stands", stands)
    monkeypatch.setattr(Store, "update_folders", update_folders)
    assert second.build().ran() == []
    assert compared and len(compared) == len(set(compared))


def test_a_reader_writes_nothing(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    second = machine(tmp_path, "second")
    second.write("include/h.h", "other\n")
    cache.asked.clear()
    built(second, tier_at(cache.url))
    assert not (second.store / "tier").exists()
    assert not any(line.startswith("PUT") for line in cache.asked)


def test_a_header_decides_which_run_is_found(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    """Two states of a header are two results under one first-level key; each machine gets its own."""
    other = machine(tmp_path, "other")
    other.write("include/h.h", "another H\n")
    assert len(built(other, tier_at(cache.url, writer=ALICE)).ran()) == 3
    assert write_all(other.store, cache.url) == 0
    for name, text, library in (("x", "H\n", filled.library), ("y", "another H\n", other.library)):
        second = machine(tmp_path, name)
        second.write("include/h.h", text)
        assert built(second, tier_at(cache.url)).ran() == []
        assert second.library == library
    third = machine(tmp_path, "z")
    third.write("include/h.h", "a third H\n")
    assert len(built(third, tier_at(cache.url)).ran()) == 3


def test_a_header_that_would_be_found_first_makes_it_a_miss(
    tmp_path: Path, filled: Workspace, cache: HttpCache
) -> None:
    second = machine(tmp_path, "second")
    second.write("first/h.h", "shadows\n")
    assert len(built(second, tier_at(cache.url)).ran()) == 3


@pytest.mark.usefixtures("usual_patience")
def test_uploads_wait_for_the_next_process(tmp_path: Path, cache: HttpCache) -> None:
    first = machine(tmp_path, "first")
    cache.fault = Fault.FROZEN
    began_s = time.monotonic()
    built(first, tier_at(cache.url, writer=ALICE))
    assert time.monotonic() - began_s < 30, "the build waited for its uploads"
    cache.fault = Fault.NONE
    cache.thawed.set()
    tier = tier_at(cache.url, writer=ALICE)
    with Store.open(first.store) as store:
        uploader = Uploader(tier, store, ALICE)
        assert len(uploader.queue) == 3
        uploader.start()
        until(lambda: len(cache.records()) >= 7, "the rest is sent")
        tier.close()
        uploader.close()
    assert tier.figures.counts()[TierAnswer.KEPT] == 3


@OVER_HTTP_AND_GRPC
def test_two_machines_with_one_key_lose_nothing_of_each_other(tmp_path: Path, cache: HttpCache) -> None:
    """The second writer has read before the first one wrote, and writes after it: the worst order."""
    machines = []
    for name, text in (("one", "H1\n"), ("two", "H2\n")):
        workspace = machine(tmp_path, name)
        workspace.write("include/h.h", text)
        built(workspace, tier_at(cache.url, writer=ALICE))
        machines.append(workspace)
    before = dict(cache.objects)
    write_all(machines[0].store, cache.url)
    blobs = dict(cache.objects)
    cache.objects = before
    write_all(machines[1].store, cache.url)
    cache.objects = {**blobs, **cache.objects}
    for workspace in machines:  # each looks again, when puts that were under way have ended
        write_all(workspace.store, cache.url, sure_after_s=0.0)
        with Store.open(workspace.store) as store:
            assert len(Uploader(tier_at(cache.url, writer=ALICE), store, ALICE).queue) == 0
    for name, text in (("x", "H1\n"), ("y", "H2\n")):
        second = machine(tmp_path, name)
        second.write("include/h.h", text)
        assert built(second, tier_at(cache.url)).ran() == []


def test_two_writers_have_records_of_their_own(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    before = dict(cache.objects)
    other = machine(tmp_path, "other")
    built(other, tier_at(cache.url, writer=MALLORY, believes=(MALLORY,)))
    write_all(other.store, cache.url, MALLORY)
    assert {path: cache.objects[path] for path in before} == before
    second = machine(tmp_path, "second")
    assert built(second, tier_at(cache.url, believes=(MALLORY, ALICE))).ran() == []


@OVER_HTTP_AND_GRPC
def test_requests_that_ask_at_once_fetch_each_object_once(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    second = machine(tmp_path, "second")
    second.options["tier"] = tier_at(cache.url)
    cache.asked.clear()

    async def ranks() -> list[Story]:
        async with Harness(second) as harness:
            logs = [harness.submit(second.request(mode=m.Mode.WARM)) for _ in range(16)]
            return [await harness.finish(log) for log in logs]

    stories = asyncio.run(ranks())
    assert all(story.ran() == [] and story.done.outcome is m.Outcome.BUILT for story in stories)
    assert len(cache.asked) == len(set(cache.asked)), "an object was fetched twice"


def test_explain_and_a_proof_know_the_tier(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    for mode in (m.Mode.EXPLAIN, m.Mode.PROVE):
        second = machine(tmp_path, mode.value)
        story = built(second, tier_at(cache.url), mode=mode)
        assert story.done.hits == 3
        if mode is m.Mode.EXPLAIN:
            said = [each.reasons[0] for each in story.of(m.Explained)]
            assert said == [f"hit: same inputs, from the tier {cache.url}, written by alice"] * 3


@OVER_HTTP_AND_GRPC
@pytest.mark.parametrize("path", ["/cas/", "/ac/"])
def test_a_result_without_its_blobs_is_a_miss_and_is_mended(
    tmp_path: Path, alone: None, filled: Workspace, cache: HttpCache, path: str
) -> None:
    cache.objects = {name: data for name, data in cache.objects.items() if path not in name}
    second = machine(tmp_path, "second")
    assert len(built(second, tier_at(cache.url, writer=ALICE)).ran()) == 3
    write_all(second.store, cache.url)
    assert built(machine(tmp_path, "third"), tier_at(cache.url)).ran() == []


CORE = (Fault.FROZEN, Fault.OTHER_BYTES)
"""The others take two seconds each; `test_carriers` has all of them for one operation."""
FAULTS = [
    pytest.param(fault, marks=() if fault in CORE else pytest.mark.slow)
    for fault in Fault
    if fault not in (Fault.NONE, Fault.FULL)
]


@OVER_HTTP_AND_GRPC
@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_build_beside_a_tier_that_fails_is_right_and_hardly_later(
    tmp_path: Path, filled: Workspace, cache: HttpCache, fault: Fault
) -> None:
    second = machine(tmp_path, "second")
    second.write("src/c.cu", "C\n")  # the plain build of it is the measure: it is in no tier
    plain = machine(tmp_path, "plain")
    plain.write("src/c.cu", "C\n")
    built(plain, None)
    cache.fault = fault
    tier = tier_at(cache.url)
    began_s = time.monotonic()
    story = built(second, tier)
    took_s = time.monotonic() - began_s
    cache.thawed.set()
    assert len(story.ran()) == 4
    for name in ("a.cu.o", "b.cu.o", "c.cu.o", "all.so"):
        assert (second.project / "build" / name).read_bytes() == (plain.project / "build" / name).read_bytes()
    assert took_s < 20, "it waited for the tier"
    counts = tier.figures.counts()
    assert counts[TierAnswer.HIT] == 0
    assert counts[TierAnswer.FAILED] + counts[TierAnswer.LATE] + counts[TierAnswer.REFUSED] > 0
    assert tier.figures.problem


@OVER_HTTP_AND_GRPC
def test_a_dead_tier_is_not_asked_again_and_again(tmp_path: Path, cache: HttpCache) -> None:
    cache.close()
    second = machine(tmp_path, "second")
    for number in range(30):
        second.write(f"src/n{number}.cu", f"{number}\n")
    tier = tier_at(cache.url)
    assert len(built(second, tier).ran()) == 33
    assert tier.paused_s()[0] > 0
    assert tier.figures.counts()[TierAnswer.FAILED] <= 32, "the link comes after the breaker has opened"


@OVER_HTTP_AND_GRPC
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NO_RIGHTS])
def test_a_tier_that_takes_nothing_loses_nothing(tmp_path: Path, cache: HttpCache, fault: Fault) -> None:
    first = machine(tmp_path, "first")
    cache.fault = fault
    built(first, tier_at(cache.url, writer=ALICE))
    assert write_all(first.store, cache.url) == 3
    assert len([line for line in cache.asked if line.startswith(("PUT", "Update", "BatchUpdate"))]) <= 8, (
        "it was asked again and again"
    )
    cache.fault = Fault.NONE
    assert write_all(first.store, cache.url) == 0
    assert built(machine(tmp_path, "second"), tier_at(cache.url)).ran() == []


def test_recache_asks_no_tier(tmp_path: Path, filled: Workspace, cache: HttpCache) -> None:
    cache.asked.clear()
    assert len(built(machine(tmp_path, "second"), tier_at(cache.url), recache=True).ran()) == 3
    assert cache.asked == []


@pytest.mark.slow  # six builds
def test_a_clock_that_is_off_changes_nothing(
    tmp_path: Path, filled: Workspace, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for name, shift_s in (("past", -4e8), ("future", 4e8)):
        with monkeypatch.context() as patch:
            patch.setattr("buildd.tier.uploader.time.time", lambda shift_s=shift_s: now + shift_s)
            first = machine(tmp_path, name)
            first.write("include/h.h", f"{name}\n")
            built(first, tier_at(cache.url, writer=ALICE))
            assert write_all(first.store, cache.url) == 0
        second = machine(tmp_path, f"{name}-reader")
        second.write("include/h.h", f"{name}\n")
        assert built(second, tier_at(cache.url)).ran() == []
