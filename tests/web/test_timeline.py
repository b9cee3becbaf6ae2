"""From a build's events to its picture."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from buildd.web.picture import BarOutcome
from buildd.web.timeline import Timeline
from protocol.messages import (
    Event,
    EventBody,
    Finished,
    JobId,
    Notice,
    Progress,
    Queued,
    RequestId,
    Started,
    Timing,
)
from tests.support.pages import a_build, a_large_build


def events(bodies: list[tuple[float, EventBody]]) -> list[Event]:
    return [
        Event(request_id=RequestId("r"), sequence=number, time_ns=10**18 + round(at_s * 1e9), body=body)
        for number, (at_s, body) in enumerate(bodies, 1)
    ]


def test_a_build_becomes_bars_on_lanes() -> None:
    change = Timeline.of(events(a_build())).since(0)
    compiled, found, linked = change.bars
    assert change.lanes == ("cpu 1", "hits")
    assert (compiled.lane, compiled.kind, compiled.outcome) == ("cpu 1", "nvcc", BarOutcome.BUILT)
    assert (compiled.queued_s, compiled.start_s, compiled.end_s) == (0.1, 0.2, 2.0)
    assert [step.name for step in compiled.steps] == ["cicc a", "ptxas a"]
    assert (found.outcome, found.saved_s, found.lane) == (BarOutcome.HIT, 3.0, "hits")
    assert (linked.after, linked.lane) == ("ops/a.cu.o", "cpu 1")
    assert [link.name for link in change.critical] == ["ops/a.cu.o", "ops/lib.so"]
    assert (change.head.outcome, change.head.hits, change.head.ended) == ("built", 1, True)
    assert [(s.used_bytes, s.budget_bytes) for s in change.samples] == [(400 << 20, 4 << 30)]


def test_jobs_side_by_side_have_lanes_of_their_own() -> None:
    change = Timeline.of(events(a_large_build(200, lanes=8))).since(0)
    assert 8 <= len(change.lanes) <= 9
    for lane in change.lanes:
        bars = sorted((bar for bar in change.bars if bar.lane == lane), key=lambda bar: bar.start_s)
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(bars))


def test_without_samples_memory_is_the_sum_of_peaks() -> None:
    change = Timeline.of(events([pair for pair in a_build() if not isinstance(pair[1], Progress)])).since(0)
    assert change.head.peaks_only
    assert max(sample.used_bytes for sample in change.samples) == 600 << 20
    assert change.samples[-1].used_bytes == 0


def test_a_job_that_never_ends_is_lost() -> None:
    timeline = Timeline.of(events(a_build()[:5]))
    (lost,) = (bar for bar in timeline.bars if bar.outcome is BarOutcome.LOST)
    assert lost.end_s == timeline.head.elapsed_s == 1.0


def test_a_run_links_jobs_by_time_and_takes_its_events_in_any_order() -> None:
    def compiled(number: int, began_s: float) -> list[tuple[float, EventBody]]:
        name, job = f"{number}.c", JobId(number)
        return [
            (began_s, Queued(job_id=job, action=name)),
            (began_s + 0.01, Started(job_id=job, action=name, command="gcc", kind="gcc")),
            (began_s + 1.0, Finished(job_id=job, action=name, timing=Timing(wall_s=0.9))),
        ]

    bodies: list[tuple[float, EventBody]] = [(0.0, Notice(text="command: make"))]
    bodies += compiled(2, 1.1) + compiled(1, 0.05) + compiled(3, 0.06)
    timeline = Timeline.of(events(bodies))
    change = timeline.since(0)
    assert (timeline.is_run, change.head.command) == (True, "make")
    assert [link.name for link in change.critical] == ["3.c", "2.c"]
    assert change.lanes == ("cpu 1", "cpu 2")


@given(st.lists(st.integers(1, 5), max_size=8))
def test_changes_put_together_are_the_whole(pauses: list[int]) -> None:
    timeline, told = Timeline(), events(a_build())
    bars: dict[int, object] = {}
    samples: list[object] = []
    revision, picture = 0, ""
    for pause in [*pauses, len(told)]:
        for event in told[:pause]:
            timeline.add(event)
        told = told[pause:]
        change = timeline.since(revision, picture)
        revision, picture = change.revision, change.picture
        bars |= {bar.id: bar for bar in change.bars}
        if change.head.peaks_only:
            samples = list(change.samples)
        else:
            samples = [*(samples if not change.full else []), *change.samples] if timeline._samples else []
    whole = timeline.since(0)
    assert list(bars.values()) == list(whole.bars)
    assert len(samples) >= len(whole.samples)


def test_another_pictures_revision_gives_everything() -> None:
    timeline = Timeline.of(events(a_build()))
    assert timeline.since(5, timeline.id).full is False
    assert timeline.since(5, "another").full is True
    assert timeline.since(0, timeline.id).full is True
