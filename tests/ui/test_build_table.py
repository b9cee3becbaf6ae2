"""The table of `buildd log`: a line a build, never wider than the terminal, and no command reads like another one."""

from __future__ import annotations

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
    assert "12 hits, 3 compiled, 1 failed" in lines[0] or columns < 80


def test_in_a_pipe_a_line_says_all_but_the_middle_of_a_long_command() -> None:
    first, second, _ = (line.text.split("  ") for line in build_lines(BUILDS))
    assert first[-1] == second[-1] == BUILDS[0].project and second[-2] == "kern"
    assert first[-2] == f"run -- {COMMAND}"[:39] + "\u2026", "`cmake ..` is another command"
