"""The table of `buildd log`: a line a build, never wider than the terminal, and no command reads like another one."""

from __future__ import annotations

import re
import time

import msgspec
import pytest

from buildd.store.build_log import Build, BuildSummary
from buildd.ui.build_table import build_lines
from protocol.messages import BuildId, Outcome, RequestId

COMMAND = "cmake -S . -B dbg -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CUDA_ARCHITECTURES=90"


def build(outcome: Outcome, command: str = "", *, failures: int = 0) -> Build:
    return Build(
        build_id=BuildId("0123456789ab"),
        request_id=RequestId("r"),
        project="/home/somebody/a/rather/long/way/to/the/project",
        targets=("kern",),
        started_ns=1_700_000_000_000_000_000,
        finished_ns=1_700_000_010_000_000_000,
        outcome=outcome,
        summary=BuildSummary(command=command, hits=12, misses=3 + failures, failures=failures, wall_s=10.0),
    )


BUILDS = [build(Outcome.FAILED, COMMAND, failures=1), build(Outcome.BUILT), build(Outcome.CANCELLED, COMMAND)]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    lines = [line.text for line in build_lines(BUILDS, columns)]
    assert len(lines) == 3 and all(len(line) <= columns for line in lines)
    assert all(line.startswith("01234567") for line in lines)
    assert ("failed" in lines[0] and "kern" in lines[1]) or columns < 40
    assert "12 hits, 3 compiled, 1 failed" in lines[0] or columns < 60


def test_a_narrow_terminal_keeps_the_time_and_shortens_the_folder_in_the_middle() -> None:
    then = time.localtime(BUILDS[0].started_ns / 1e9)
    (line,) = (line.text for line in build_lines([build(Outcome.BUILT)], 60))
    assert line.startswith(f"01234567  {time.strftime('%m-%d %H:%M', then)}  built  12 hits, 3 compiled  kern")
    (failed,) = (line.text for line in build_lines([build(Outcome.FAILED, COMMAND, failures=1)], 60))
    assert failed.startswith(f"01234567  {time.strftime('%m-%d', then)}  failed  12 hits, 3 compiled, 1 failed")
    now = msgspec.structs.replace(build(Outcome.FAILED, failures=1), started_ns=time.time_ns())
    (failed,) = (line.text for line in build_lines([now], 60))
    assert re.match(r"01234567  \d\d:\d\d  failed  12 hits, 3 compiled, 1 failed", failed)
    (wider,) = (line.text for line in build_lines([build(Outcome.BUILT)], 80))
    assert re.search(r"  kern  /home\S*\u2026\S*project$", wider), wider


def test_in_a_pipe_a_line_says_all_but_the_middle_of_a_long_command() -> None:
    first, second, _ = (line.text.split("  ") for line in build_lines(BUILDS))
    assert first[-1] == second[-1] == BUILDS[0].project and second[-2] == "kern"
    assert first[-2] == f"run -- {COMMAND}"[:39] + "\u2026", "`cmake ..` is another command"
