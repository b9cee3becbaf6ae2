"""One request's events: numbered, encoded once, bounded."""

from __future__ import annotations

import threading
import time

import pytest

from buildd.builds.event_log import MAX_LINE_CHARACTERS, RequestLog
from protocol import wire
from protocol.messages import (
    Diagnostic,
    Done,
    Event,
    Explained,
    Failed,
    FailureKind,
    JobId,
    Lagged,
    LogLine,
    Notice,
    Outcome,
    Progress,
    RequestId,
    Severity,
)


def a_log(limit_bytes: int = 1 << 20) -> RequestLog:
    ticks = iter(range(1, 1_000_000))
    return RequestLog(RequestId("r"), limit_bytes=limit_bytes, clock_ns=lambda: next(ticks))


def line(text: str) -> LogLine:
    return LogLine(job_id=JobId(1), stream="stdout", text=text)


def test_events_are_numbered_from_one() -> None:
    log = a_log()
    first = log.append(Notice(text="a"))
    second = log.append(Notice(text="b"))
    assert first is not None and second is not None
    assert (first.sequence, second.sequence, log.last) == (1, 2, 2)
    assert first.time_ns < second.time_ns
    assert log.after(0) == [first, second] and log.after(1) == [second] and log.after(2) == [] and log.after(99) == []
    assert log.after(0, limit=1) == [first]


def test_all_readers_share_the_encoded_bytes() -> None:
    log = a_log()
    event = log.append(Notice(text="a"))
    (one,), (two,) = log.encoded_after(0), log.encoded_after(0)
    assert one.frames[1] is two.frames[1]
    assert wire.decode_from_daemon(one.frames) == event and one.sequence == 1


def test_nothing_follows_done() -> None:
    log = a_log()
    done = log.append(Done(outcome=Outcome.BUILT))
    assert log.done == Done(outcome=Outcome.BUILT)
    assert log.append(line("late")) is None
    assert log.after(0) == [done] and log.late == 1


def test_listeners_hear_until_they_stop() -> None:
    log = a_log()
    heard: list[Event] = []
    stop = log.listen(heard.append)
    event = log.append(line("x"))
    stop()
    stop()
    log.append(line("y"))
    assert heard == [event]


def test_old_lines_go_first_and_a_late_reader_is_told() -> None:
    log = a_log(limit_bytes=20_000)
    log.append(Notice(text="kept"))
    for number in range(200):
        log.append(line(str(number)))
    log.append(Done(outcome=Outcome.FAILED))
    assert log.size_bytes <= 20_000
    events = log.after(0)
    assert events[0].body == Notice(text="kept")
    gap = events[1].body
    assert isinstance(gap, Lagged)
    assert gap.first == 2 and gap.last == events[1].sequence == events[2].sequence - 1 and gap.last > 50
    assert isinstance(events[2].body, LogLine) and events[2].body.text == str(gap.last - 1)
    assert isinstance(events[-1].body, Done)
    assert log.dropped == gap.last - gap.first + 1
    # A reader in the middle of the hole is told of its rest only.
    (middle, *_) = log.after(20)
    assert middle.body == Lagged(first=21, last=gap.last)


def test_progress_goes_before_what_matters() -> None:
    log = a_log(limit_bytes=10_000)
    for number in range(5):
        log.append(Notice(text=str(number)))
    for number in range(100):
        log.append(Progress(done=number, total=100))
    kept = [event.body for event in log.after(0)]
    assert kept[:5] == [Notice(text=str(number)) for number in range(5)]
    assert log.size_bytes <= 10_000


def test_the_newest_event_stays_however_small_the_limit() -> None:
    log = a_log(limit_bytes=1)
    for number in range(3):
        log.append(Notice(text=str(number)))
    gap, last = log.after(0)
    assert gap.body == Lagged(first=1, last=2) and last.body == Notice(text="2")


def test_a_long_line_is_cut_and_says_so() -> None:
    log = a_log()
    event = log.append(line("x" * (MAX_LINE_CHARACTERS + 7)))
    assert event is not None and isinstance(event.body, LogLine)
    assert event.body.text.endswith("[7 characters cut]") and len(event.body.text) < MAX_LINE_CHARACTERS + 100


def test_bytes_that_are_not_utf8_do_not_stop_a_job() -> None:
    log = a_log()
    event = log.append(line("caf\udce9"))
    assert event is not None and isinstance(event.body, LogLine) and event.body.text == "caf?"
    assert wire.decode_from_daemon(log.encoded_after(0)[0].frames) == event


def test_an_enormous_failure_is_cut_and_stays_a_failure() -> None:
    log = a_log()
    finding = Diagnostic(severity=Severity.ERROR, message="m" * 5000, file="f" * 5000)
    event = log.append(
        Failed(
            job_id=JobId(1),
            action="a" * 3_000_000,
            kind=FailureKind.COMPILE_ERROR,
            message="x" * 3_000_000,
            diagnostics=(finding,) * 5000,
        )
    )
    assert event is not None and isinstance(event.body, Failed)
    assert event.body.kind is FailureKind.COMPILE_ERROR and event.body.diagnostics
    assert len(log.encoded_after(0)[0].frames[1]) <= wire.MAX_EVENT_BYTES


def test_an_enormous_done_is_still_done() -> None:
    log = a_log()
    log.append(Done(outcome=Outcome.FAILED, message="\udcff" * 2_000_000))
    assert log.done is not None and log.done.outcome is Outcome.FAILED


@pytest.mark.parametrize("threads", [4])
def test_threads_may_append_together(threads: int) -> None:
    log = a_log(limit_bytes=64 << 20)
    workers = [threading.Thread(target=lambda: [log.append(line("x")) for _ in range(500)]) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [event.sequence for event in log.after(0, limit=10_000)] == list(range(1, 500 * threads + 1))


def test_a_long_log_costs_as_much_for_each_event_as_a_short_one() -> None:
    """Dropping the oldest event must not walk over all that were dropped before."""

    def cpu_s(count: int, limit_bytes: int) -> float:
        log = RequestLog(RequestId("r"), limit_bytes=limit_bytes)
        body = Explained(action="a", would_run=True, reasons=("never built before",))
        began_s = time.process_time()
        for _ in range(count):
            log.append(body)
        return time.process_time() - began_s

    whole_s = cpu_s(150_000, 1 << 30)
    assert cpu_s(150_000, 12 << 20) < 4 * whole_s
