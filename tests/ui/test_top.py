"""The screen of `buildd top`, from wide to 20 columns."""

from __future__ import annotations

import pytest

from buildd.commands.top import Meter
from buildd.host.gpu_load import GpuLoad
from buildd.shims.run_log import OngoingRun
from buildd.ui.top import Rates, Screen
from protocol.messages import BuildId, JobId, JobStatus, Mode, RequestId, RequestStatus, Status

NOW_NS = 10**18


def status(jobs: int = 2, queued: int = 3) -> Status:
    running = tuple(
        JobStatus(
            job_id=JobId(number),
            action=f"ops/src/kernel_{number}.cu.o",
            elapsed_s=2.0 + number,
            expected_s=9.0,
            memory_bytes=500 << 20,
        )
        for number in range(jobs)
    )
    work = (
        RequestStatus(
            request_id=RequestId("r1"),
            build_id=BuildId("b1"),
            mode=Mode.BUILD,
            project="/home/user/ops",
            what="ops\x1b[2J",
            elapsed_s=12.0,
            jobs_running=jobs,
            jobs_waiting=queued,
        ),
        RequestStatus(
            request_id=RequestId("c1"), build_id=BuildId("run1"), mode=Mode.COMPILE, project="/p", jobs_running=1
        ),
    )
    return Status(
        pid=1,
        daemon="buildd/1",
        instance="i",
        state="serving",
        uptime_s=3700,
        rss_bytes=50 << 20,
        requests=2,
        running=running,
        queued=queued,
        waiting_for="memory: needs 1.9 GiB, 0.8 GiB free" if queued else "",
        counters={"hits": 120, "misses": 1},
        work=work,
        cpus=16,
        budget_bytes=4 << 30,
    )


def screen(**fields: object) -> Screen:
    run = OngoingRun(build_id=BuildId("run1"), command="make -j8", project="/p", started_ns=NOW_NS - 5 * 10**9)
    gpu = GpuLoad(0, "NVIDIA H200", 0.34, 12 << 30, 140 << 30)
    given: dict = {"status": status(), "runs": (run,), "gpus": (gpu,), "rates": Rates(12.5, 0.5), "now_ns": NOW_NS}
    return Screen(**{**given, **fields})


def test_a_wide_screen() -> None:
    assert screen().lines(100, 40) == [
        "serving, up 61 min 40 s, 50.0 MiB",
        "jobs [##..................] 2 of 16",
        "wait 3 for memory: needs 1.9 GiB, 0.8 GiB free",
        "mem  [#####...............] 1000.0 MiB of 4.0 GiB",
        "gpu0 [#######.............] 34% 12.0 GiB of 140.0 GiB NVIDIA H200",
        "hits 12.5/s, misses 0.5/s; 120 hits, 1 miss",
        "5.0 s 1+0 run make -j8  /p",
        "12.0 s 2+3 build ops  /home/user/ops",
        " ops/src/kernel_1.cu.o 3.0 s/~9.0 s 500.0 MiB",
        " ops/src/kernel_0.cu.o 2.0 s/~9.0 s 500.0 MiB",
    ]


@pytest.mark.parametrize("columns", [20, 33, 49, 50, 200])
@pytest.mark.parametrize("rows", [1, 4, 12, 50])
def test_no_line_is_wider_and_no_screen_longer_than_the_terminal(columns: int, rows: int) -> None:
    lines = screen(status=status(jobs=40)).lines(columns, rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in "".join(lines)


def test_twenty_columns_still_say_what_waits_and_for_what() -> None:
    lines = screen().lines(20, 20)
    assert lines[1:4] == ["jobs 2 of 16", "wait 3 for memory: n", "mem 1000.0MiB/4.0GiB"]
    assert "hit 12/s miss 0.5/s" in lines
    assert any(line.startswith(" ops") and line.endswith("3.0 s") for line in lines)


def test_jobs_beyond_the_room_are_counted() -> None:
    lines = screen(status=status(jobs=40)).lines(80, 14)
    assert lines[-1] == " and 35 more" and len(lines) == 14


def test_without_a_daemon() -> None:
    assert screen(status=None, gpus=()).lines(80, 24) == ["no daemon is running; the next command starts one"]


def test_rates_begin_with_the_second_look_and_never_fall_below_zero() -> None:
    meter = Meter()
    assert meter.rates(1.0, 100, 5) == Rates()
    assert meter.rates(3.0, 150, 6) == Rates(25.0, 0.5)
    assert meter.rates(4.0, 0, 0) == Rates(), "another daemon"
