"""The row of the build log that a call of `buildd profile` leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec

from buildd.profiling.log_row import events_of, keep
from buildd.profiling.reports import Summary, Tried
from buildd.store.store import Store
from buildd.web.timeline import Timeline
from protocol.described import described
from protocol.messages import BuildId, Event, Request, RequestId

REQUEST = Request(request_id=RequestId("r1"), build_id=BuildId("b1"), project="/p", targets=("gemm",))
SUMMARY = Summary(wall_s=9.0, built=1, hits=1, measured=2, measuring_s=1.0, gpu_idle=0.0, gpu_unused=0.0, failed=0)
TRIED = [
    Tried(
        target="gemm",
        problem="64x64x64",
        candidate="found",
        outcome="measured",
        time_us=8.0,
        measured_s=1.0,
        gpu="0",
        gpu_s=0.25,
    ),
    Tried(
        target="gemm",
        problem="64x64x64",
        candidate="made",
        outcome="wrong",
        built=True,
        began_s=0.5,
        cpu_s=3.0,
        ready_s=4.5,
        measured_s=5.0,
        gpu="1",
        gpu_s=0.25,
    ),
    Tried(target="gemm", problem="64x64x64", candidate="skipped", outcome="skipped"),
]


def test_compiles_are_on_slots_and_measurements_on_their_gpus() -> None:
    change = Timeline.of(events_of(REQUEST, TRIED, SUMMARY, 10**18)).since(0)
    assert change.lanes == ("cpu 1", "gpu 0", "gpu 1")
    (bar,) = change.bars
    assert (bar.name, bar.start_s, bar.end_s, bar.user_s) == ("gemm/made", 0.5, 4.5, 3.0)
    assert [(run.gpu, run.at_s, run.wall_s, run.outcome) for run in change.measurements] == [
        ("gpu 0", 0.75, 0.25, "measured"),
        ("gpu 1", 4.75, 0.25, "wrong"),
    ]
    assert (change.head.outcome, change.head.elapsed_s) == ("built", 9.0)


def test_a_call_that_did_nothing_leaves_no_row(tmp_path: Path) -> None:
    nothing = msgspec.structs.replace(SUMMARY, built=0, measured=0)
    with Store.open(tmp_path) as store:
        keep(store, REQUEST, TRIED, nothing, 10**18)
        assert store.builds() == []
        keep(store, REQUEST, TRIED, SUMMARY, 10**18)
        (row,) = store.builds()
        assert (row.build_id, row.targets, row.summary.wall_s) == ("b1", ("gemm",), 9.0)
        kept = msgspec.msgpack.decode(store.build_events(RequestId("r1")) or b"", type=described(list[Event]))
    assert kept == events_of(REQUEST, TRIED, SUMMARY, 10**18)
