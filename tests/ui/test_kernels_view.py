"""`buildd build --kernels`: each kernel is one row, whether it hit or was compiled."""

from __future__ import annotations

import io

from buildd.ui.kernels_view import KernelsView
from buildd.ui.view import Writer
from protocol import messages as m

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
