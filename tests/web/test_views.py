"""Histories, kernels over builds, search, the cache and profiles, from a store's rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.store.library_times import LibraryTime, add_library_times, library_times
from buildd.store.profiles import Outcome as Measured
from buildd.store.store import Store
from buildd.web import cache_views, views
from buildd.web.archive import Archive
from protocol.messages import Done, EventBody, Outcome, ProgramStart
from tests.support.pages import History, a_build
from tests.support.profile_rows import H200, PROBLEM, profiles_of, row


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "store")


@pytest.fixture
def archive(history: History) -> Iterator[Archive]:
    made = Archive(history.folder)
    yield made
    made.close()


def test_before_the_first_build_there_is_nothing(archive: Archive) -> None:
    assert (archive.builds(), archive.find("x"), views.kernels(archive, ""), views.search(archive, "x")) == (
        [],
        None,
        [],
        [],
    )
    assert cache_views.cache(archive).stats is None
    assert cache_views.problems(archive, archive.folder) == []


def test_a_build_is_found_by_the_beginning_of_its_id(history: History, archive: Archive) -> None:
    first, second = history.add(a_build()), history.add(a_build(fails=True))
    assert [line.id for line in views.listed(archive.builds(), "")] == [second, first]
    found = archive.find(first[:12])
    assert found is not None and found.request_id == first
    assert [line.outcome for line in views.listed(archive.builds(), "FAILED ops")] == ["failed"]
    picture = archive.picture(first)
    assert picture is not None and archive.picture(first) is picture, "it is made once"
    assert archive.picture("unknown") is None


def test_a_kernel_has_a_point_for_each_build_that_changed_it(history: History, archive: Archive) -> None:
    for registers in (40, 40, 48):
        history.add(a_build(registers=registers))
    (line,) = views.kernels(archive, "add sm_80")
    assert (line.name, line.builds) == ("add(float*)", 3)
    assert [(point.registers, point.spill_bytes) for point in line.points] == [(40, 0), (48, 0)]
    assert line.points[0].occupancy == pytest.approx(0.75)
    assert views.kernels(archive, "sm_90") == []


def test_the_history_of_a_target_names_its_own_actions(history: History, archive: Archive) -> None:
    history.add(a_build(target="ops"))
    history.add(a_build(target="other"), targets=("other",))
    (point,) = views.target(archive, "/home/user/project", "ops")
    assert [action.name for action in point.actions] == ["ops/a.cu.o", "ops/lib.so"]
    assert views.target(archive, "/another", "ops") == []


def test_search_finds_each_thing_once_with_its_latest_build(history: History, archive: Archive) -> None:
    history.add(a_build())
    last = history.add(a_build())
    found = {(match.kind, match.text): match.build for match in views.search(archive, "a.cu")}
    assert found == {("action", "ops/a.cu.o"): last}
    assert {match.kind for match in views.search(archive, "add")} == {"kernel"}
    assert {match.kind for match in views.search(archive, "ops")} == {"build", "target", "action"}
    assert views.search(archive, "  ") == []


def test_a_list_reads_no_events_and_a_search_those_of_the_newest_builds(
    history: History, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of builds a page would otherwise take minutes."""
    bodies: list[tuple[float, EventBody]] = [(0.0, Done(outcome=Outcome.BUILT))]
    with Store.open(history.folder) as store:
        names = [history.add_to(store, bodies) for _ in range(views.READ_FIRST + 5)]
    read: list[str] = []
    events = archive.events
    monkeypatch.setattr(archive, "events", lambda name: read.append(name) or events(name))
    assert len(views.listed(archive.builds(), "")) == len(names)
    assert [line.id for line in views.listed(archive.builds(), names[0])] == names[:1]
    assert archive.find(names[0]) is not None and read == []
    assert views.search(archive, "ops") and len(views.search(archive, names[0])) == 1, "a build that was not read"
    assert read == names[: -views.READ_FIRST - 1 : -1]


def test_the_cache_names_the_dearest_misses_and_who_uses_it(history: History, archive: Archive) -> None:
    history.add(a_build())
    history.add(a_build(fails=True, name="slow.cu"), project="/home/user/other")
    found = cache_views.cache(archive)
    assert found.stats is not None
    assert [one.name for one in found.dear] == ["ops/slow.cu.o", "ops/a.cu.o", "ops/lib.so"]
    assert found.dear[0].reason == "input src/a.cu"
    assert {one.project: one.hits for one in found.users} == {"/home/user/project": 1, "/home/user/other": 1}
    assert found.missed == {"input": 3}
    (day,) = found.days
    assert (day.hits, day.misses) == (2, 4)


def test_profiles_stand_beside_the_library(history: History, archive: Archive) -> None:
    with Store.open(history.folder) as store:
        profiles_of(store).save(
            [row("fast", time_us=8.0), row("slow"), row("bad", outcome=Measured.WRONG, time_us=0.0)]
        )
    add_library_times(history.folder, [LibraryTime(gpu=H200.gpu, problem=PROBLEM, library="cuBLAS", time_us=9.0)])
    add_library_times(history.folder, [LibraryTime(gpu=H200.gpu, problem=PROBLEM, library="cuBLAS", time_us=7.5)])
    assert [one.time_us for one in library_times(history.folder)] == [7.5]
    (line,) = cache_views.problems(archive, history.folder)
    assert (line.problem, line.candidates, line.measured, line.best_us, line.library_us) == (PROBLEM, 3, 2, 8.0, 7.5)
    found = cache_views.candidates(archive, H200.gpu, PROBLEM)
    assert [one.candidate for one in found] == ["fast", "slow", "bad"]


def test_programs_are_listed_with_their_builds(history: History, archive: Archive) -> None:
    start = ProgramStart(program="python train.py", wall_s=3.0, phases={"imports": 2.0, "program": 1.0})
    name = history.add([(0.0, start), (3.0, Done(outcome=Outcome.BUILT))], command="python train.py")
    (program,) = views.programs(archive)
    assert (program.build, program.start) == (name, start)


def test_facts_of_all_builds_are_gathered_and_forgotten_with_them(history: History, archive: Archive) -> None:
    names = [history.add(a_build()) for _ in range(3)]
    archive.gather(threading.Event())
    assert set(archive._facts) == set(names)
    with Store.open(history.folder) as store:
        store.database.transact(
            lambda connection: connection.execute("DELETE FROM builds WHERE request_id = ?", (names[0],))
        )
    archive.gather(threading.Event())
    assert set(archive._facts) == set(names[1:])


def test_damaged_events_are_no_build(history: History, archive: Archive) -> None:
    name = history.add(a_build())
    with Store.open(history.folder) as store:
        store.database.transact(lambda connection: connection.execute("UPDATE builds SET events = x'00'"))
    assert archive.events(name) == []
    assert archive.picture(name) is None
