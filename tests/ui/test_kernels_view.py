"""`buildd build --kernels`: each kernel is one row, whether it hit or was compiled."""

from __future__ import annotations

import io

from buildd.ui.kernels_view import KernelsView
from buildd.ui.live import LiveView
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.view import Several, Writer
from protocol import messages as m
from tests.support.recorded import START_NS, events, finished, replay, started
from tests.support.screen import Screen

ONE, OTHER = (m.Kernel(name=name, arch="sm_80", registers=32, spill_store_bytes=0) for name in ("one", "other"))


def shown(*bodies: m.Body) -> str:
    stream = io.StringIO()
    view = KernelsView(Writer(stream))
    for number, body in enumerate(bodies):
        view.event(m.Event(request_id=m.RequestId("r"), sequence=number, time_ns=0, body=body))
    view.close()
    return stream.getvalue()


def test_hits_and_compiles_are_shown_once() -> None:
    hit = m.CacheHit(job_id=m.JobId(0), action="a.o", reason="same inputs", kernels=(ONE,))
    ran = m.Finished(job_id=m.JobId(1), action="b.o", timing=m.Timing(), kernels=(OTHER,))
    linked = m.Finished(job_id=m.JobId(2), action="lib.so", timing=m.Timing(), kernels=(ONE, OTHER))
    text = shown(hit, ran, linked, m.Done(outcome=m.Outcome.BUILT))
    assert text.startswith("2 kernels\n") and text.count("sm_80") == 2


def test_a_build_that_failed_shows_none_and_one_without_kernels_says_so() -> None:
    ran = m.Finished(job_id=m.JobId(1), action="b.o", timing=m.Timing(), kernels=(OTHER,))
    assert shown(ran, m.Done(outcome=m.Outcome.FAILED)) == ""
    assert shown(m.Done(outcome=m.Outcome.BUILT)) == "no kernels\n"


def test_on_a_terminal_the_table_stands_whole_below_the_summary() -> None:
    """The region of the progress is gone before the table is written, and takes no row of it away."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    narrator = Narrator(Telling(listing=False, build="b1"))
    live = LiveView(Writer(stream), narrator, quiet_s=0.0, now_ns=lambda: START_NS)
    view = Several((live, KernelsView(Writer(stream))))
    begin, *rest = events(
        (0, started(1, "a.o")),
        (1, finished(1, "a.o", 1.0, kernels=(ONE, OTHER))),
        (2, m.Done(outcome=m.Outcome.BUILT, misses=1, wall_s=2.0)),
    )
    view.event(begin)
    assert live.drawn.wait(20)
    replay(view, rest)
    screen = Screen(columns=80, rows=24)
    screen.write(stream.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "").encode())
    assert [line.split() for line in screen.text] == [
        ["built:", "0", "hits,", "1", "compiled,", "2.0", "s"],
        ["2", "kernels"],
        ["kernel", "arch", "regs", "occup", "threads"],
        ["one", "sm_80", "32", "100%", "1024"],
        ["other", "sm_80", "32", "100%", "1024"],
    ]
