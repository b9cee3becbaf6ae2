"""The chain of jobs that a build waits for."""

from __future__ import annotations

from buildd.web.critical_path import Link, critical_path


def link(number: int, start_s: float, end_s: float, *, queued_s: float | None = None, after: str = "") -> Link:
    queued_s = start_s if queued_s is None else queued_s
    return Link(id=number, name=f"job {number}", after=after, queued_s=queued_s, start_s=start_s, end_s=end_s)


def chain(links: list[Link], *, by_time: bool = False) -> list[tuple[int, str]]:
    return [(one.id, one.waited_for) for one in critical_path(links, by_time=by_time)]


def test_nothing_ran() -> None:
    assert chain([]) == []


def test_files_make_a_chain() -> None:
    links = [link(1, 0, 1), link(2, 0, 3), link(3, 3, 4, after="job 2"), link(4, 0, 2)]
    assert chain(links) == [(2, ""), (3, "files")]


def test_a_job_without_a_slot_waits_for_the_one_that_held_it() -> None:
    links = [link(1, 0, 5), link(2, 0, 6), link(3, 5, 8, queued_s=0), link(4, 8, 9, after="job 3")]
    assert chain(links) == [(1, ""), (3, "slot"), (4, "files")]


def test_a_name_that_waits_for_itself_ends_the_chain() -> None:
    assert chain([link(1, 0, 1, after="job 1")]) == [(1, "")]
    circle = [link(1, 0, 1, after="job 2"), link(2, 0, 1, after="job 1")]
    assert len(chain(circle)) == 1


def test_by_time_a_job_follows_the_last_one_that_had_ended() -> None:
    assert chain([link(1, 0, 2), link(2, 0, 1.5), link(3, 2, 3)], by_time=True) == [(1, ""), (3, "files")]
