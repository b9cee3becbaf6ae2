"""Learned time and memory, and the log of past builds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.store import build_log
from buildd.store.build_log import Build, BuildSummary
from buildd.store.job_history import JobEnd, Source, estimate, estimates, record
from buildd.store.store import Store
from codegen.plan import Resources
from protocol.messages import BuildId, Outcome, RequestId, Timing

GUESS = Resources(cpus=2, memory_bytes=1000, wall_s=9.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def used(wall_s: float, peak: int) -> Timing:
    return Timing(wall_s=wall_s, user_s=wall_s / 2, system_s=wall_s / 4, peak_rss_bytes=peak)


def test_memory_is_the_most_seen_lately_and_time_the_median(store: Store) -> None:
    for wall_s, peak in ((1.0, 100), (9.0, 300), (2.0, 200)):
        record(store, "a", "cicc", used(wall_s, peak))
    found = estimate(store, "a", "cicc", GUESS)
    assert found.source is Source.HISTORY
    assert found.resources == Resources(cpus=2, memory_bytes=330, wall_s=2.0)
    assert (found.user_s, found.system_s) == (1.0, 0.5)


def test_old_samples_are_forgotten(store: Store) -> None:
    record(store, "a", "cicc", used(100.0, 10_000))
    for _ in range(20):
        record(store, "a", "cicc", used(1.0, 100))
    assert estimate(store, "a", "cicc", GUESS).resources == Resources(cpus=2, memory_bytes=110, wall_s=1.0)


def test_a_job_killed_for_memory_is_given_more_and_a_failed_one_teaches_no_time(store: Store) -> None:
    record(store, "a", "cicc", used(4.0, 100))
    record(store, "a", "cicc", used(0.1, 200), JobEnd.OUT_OF_MEMORY)
    record(store, "a", "cicc", used(0.1, 50), JobEnd.FAILED)
    assert estimate(store, "a", "cicc", GUESS).resources == Resources(cpus=2, memory_bytes=330, wall_s=4.0)


def test_an_unknown_action_gets_figures_of_its_kind_and_an_unknown_kind_the_guess(store: Store) -> None:
    for number in range(1, 11):
        record(store, f"a{number}", "cicc", used(number, number * 100))
    found = estimate(store, "new", "cicc", GUESS)
    assert found.source is Source.KIND
    assert found.resources == Resources(cpus=2, memory_bytes=330, wall_s=6.0)
    other = estimate(store, "new", "ptxas", GUESS)
    assert (other.source, other.resources) == (Source.DEFAULT, GUESS)


def test_the_last_runs_of_a_kind_count(store: Store) -> None:
    for number in range(200):
        record(store, f"small{number}", "cicc", used(1.0, 100))
    for number in range(40):
        record(store, f"large{number}", "cicc", used(50.0, 5000))
    record(store, "small0", "cicc", used(1.0, 100))
    assert estimate(store, "new", "cicc", GUESS).resources == Resources(cpus=2, memory_bytes=5500, wall_s=50.0)


def test_ten_thousand_actions_are_estimated_in_a_few_queries(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"a{n}", "cc", n, 1.0, 1.0, 0.0, 1000, b"") for n in range(10_000)]
    store.database.transact(
        lambda connection: connection.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    )
    ask, asked = store.database.rows, []
    monkeypatch.setattr(store.database, "rows", lambda *query: asked.append(query) or ask(*query))
    found = estimates(store, [(f"a{n}", "cc", GUESS) for n in range(10_000)])
    assert all(one.source is Source.HISTORY for one in found)
    assert len(asked) <= 100


def test_history_is_kept_for_the_next_process(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        record(store, "caf\udce9", "cc", used(3.0, 100))
    with Store.open(tmp_path / "store", read_only=True) as store:
        record(store, "other", "cc", used(3.0, 100))
        assert estimate(store, "caf\udce9", "cc", GUESS).resources.wall_s == 3.0


def build(number: int) -> Build:
    return Build(
        build_id=BuildId(f"b{number}"),
        request_id=RequestId(f"r{number}"),
        project="/p/caf\udce9",
        targets=("saxpy", "gemm"),
        started_ns=number,
        finished_ns=number + 1,
        outcome=Outcome.BUILT,
        summary=BuildSummary(hits=number, wall_s=0.5),
    )


def test_past_builds_are_listed_latest_first_with_their_events(store: Store) -> None:
    for number in range(3):
        store.save_build(build(number), b"events of %d" % number * 1000)
    assert [one.build_id for one in store.builds()] == ["b2", "b1", "b0"]
    (latest,) = store.builds(1)
    assert latest.targets == ("saxpy", "gemm")
    assert latest.summary == BuildSummary(hits=2, wall_s=0.5)
    assert store.build_events(BuildId("b1")) == b"events of 1" * 1000
    assert store.build_events(RequestId("r1")) == b"events of 1" * 1000
    assert store.build_events(BuildId("none")) is None


def test_the_build_log_is_bounded_in_builds_and_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_log, "MOST_BUILDS", 5)
    for number in range(9):
        store.save_build(build(number), b"x")
    assert [one.build_id for one in store.builds()] == ["b8", "b7", "b6", "b5", "b4"]
    monkeypatch.setattr(build_log, "MOST_BYTES", 3000)
    for number in range(9, 14):
        store.save_build(build(number), random.Random(number).randbytes(1000))
    assert [one.build_id for one in store.builds()] == ["b13", "b12"]
    for _ in range(5):
        store.save_build(build(13), random.Random(13).randbytes(1000))
    assert [one.build_id for one in store.builds()] == ["b13", "b12"], "a build that is saved again takes no more room"
    rows = store.database.rows("SELECT total(stored_bytes) FROM builds")
    assert store.database.rows("SELECT value FROM meta WHERE name = 'builds_bytes'") == [(int(rows[0][0]),)]
