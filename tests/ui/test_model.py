"""The model of a build's progress: what counts as work, and when an expected end may move."""

from __future__ import annotations

from buildd.ui.model import BuildModel
from buildd.ui.progress_words import counted, timed
from protocol import messages as m
from protocol.messages import JobId
from tests.support.recorded import START_NS, events, finished, hit, started


def model_of(*steps: tuple[float, m.EventBody]) -> BuildModel:
    model = BuildModel()
    for event in events(*steps):
        model.apply(event)
    return model


def at(seconds: float) -> int:
    return START_NS + int(seconds * 1e9)


def test_hits_are_no_work() -> None:
    planned = (0.0, m.Planned(targets=("t",), actions=4))
    hits = [(0.1, hit(number, f"t/{number}.o")) for number in range(3)]
    model = model_of(planned, *hits)
    assert (model.done, model.total, model.hits, model.fraction(at(0.2))) == (0, 0, 3, 0.0)
    model = model_of(planned, *hits, (0.2, m.Progress(done=3, total=4, hits=3, running=1, to_run=1, eta_s=2.0)))
    assert (model.done, model.total) == (0, 1) and model.remaining_s(at(0.2)) == 2.0
    assert counted(model.done, model.total, model.hits) == "[0/1] 3 hits"


def test_at_the_end_all_is_done() -> None:
    queued = [(0.0, m.Queued(job_id=JobId(n), action=f"{n}.o")) for n in (1, 2)]
    ran = [(0.1, started(1, "1.o")), (1.0, finished(1, "1.o", 0.9))]
    model = model_of((0.0, m.Planned(targets=("t",), actions=2)), *queued, *ran)
    assert (model.done, model.total) == (1, 2)
    # The second one was found after all: its inputs came out as they were.
    model.apply(events(*[(0.0, m.Notice(text=""))] * 7, (1.1, hit(2, "2.o")))[-1])
    model.apply(events(*[(0.0, m.Notice(text=""))] * 8, (1.2, m.Done(outcome=m.Outcome.BUILT, hits=1, misses=1)))[-1])
    assert (model.done, model.total, model.fraction(at(1.2))) == (1, 1, 1.0)


def test_the_expected_end_comes_nearer_and_moves_away_only_with_a_reason() -> None:
    def told(*reports: tuple[float, float]) -> BuildModel:
        return model_of(*((now, m.Progress(done=0, total=9, to_run=9, eta_s=eta_s)) for now, eta_s in reports))

    assert told((0.0, 20.0)).remaining_s(at(4.0)) == 16.0, "it counts down between reports"
    assert told((0.0, 20.0), (1.0, 12.0)).remaining_s(at(1.0)) == 12.0
    assert told((0.0, 20.0), (1.0, 19.9)).remaining_s(at(1.0)) == 19.0, "noise"
    assert told((0.0, 2.0), (1.0, 1.9)).remaining_s(at(1.0)) == 1.0
    assert told((0.0, 20.0), (1.0, 30.0)).remaining_s(at(1.0)) == 30.0, "more work was found"
    assert told((0.0, 3.0), (1.0, 0.0)).remaining_s(at(1.5)) == 1.5, "a report that knows no end"


def test_words() -> None:
    assert [counted(1, 2, 0), counted(0, 0, 0), counted(3, 0, 1), counted(1, 3, 2, 1)] == [
        "[1/2]",
        "0 hits",
        "3 compiled, 1 hit",
        "[1/3] 2 hits, 1 failed",
    ]
    assert [timed(1.44), timed(1.44, 1.8)] == ["1.4 s", "1.4 s / ~1.8 s"]
