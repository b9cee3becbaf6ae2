"""The ledger of a program's start: what adds up, and beside the clock on the wall."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from buildd.hooks import ledger
from buildd.hooks.ledger import Ledger
from protocol.messages import ProgramStart
from tests.support.program_starts import started
from tests.support.triton_program import DRIVER
from tests.support.user import User

KERNELS = """
import triton.language as tl

@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

@triton.jit
def thrice(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)

for kernel in (twice, thrice):
    kernel[(1,)](Tensor(), 64, BLOCK=64)
    kernel[(1,)](Tensor(), 64, BLOCK=64)
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ledger.time, "monotonic", lambda: made.now_s)
    return made


def lines(path: Path) -> list[ProgramStart]:
    return [
        ProgramStart(**{k: v for k, v in json.loads(line).items() if k != "type"})
        for line in path.read_text().splitlines()
    ]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The file of the ledgers of the run "b"."""
    path = Path(ledger.path_of(str(tmp_path), "b"))
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_no_moment_counts_twice(clock: Clock, tmp_path: Path, programs: Path) -> None:
    made = Ledger(str(tmp_path), "b", {"interpreter": 0.5}, 0.0)
    clock.pass_by(1.0)
    imports = made.enter("imports")
    clock.pass_by(2.0)
    kernels = made.enter("kernels compiled")
    clock.pass_by(3.0)
    made.leave(kernels, "kernels found", parts=1)
    clock.pass_by(0.25)
    made.leave(imports)
    clock.pass_by(9.0)
    made.write()
    (start,) = lines(programs)[-1:]
    assert start.phases == {"interpreter": 0.5, "program": 1.0, "imports": 2.0, "kernels found": 3.0}
    assert (start.wall_s, start.counts) == (6.5, {"kernels found": 1}), "it ends with the last kernel"


def test_a_program_without_a_kernel_is_counted_to_its_end(clock: Clock, tmp_path: Path, programs: Path) -> None:
    made = Ledger(str(tmp_path), "b", {}, 0.0)
    clock.pass_by(4.0)
    made.write()
    assert lines(programs)[0].phases == {"program": 4.0}


def test_a_phase_that_never_ended_ends_with_the_one_around_it(clock: Clock, tmp_path: Path, programs: Path) -> None:
    """A graph that was compiled and never called, a launch that failed: what comes later has its own name."""
    made = Ledger(str(tmp_path), "b", {}, 0.0)
    tracing = made.enter("tracing")
    lost = made.enter("first call")
    clock.pass_by(1.0)
    made.leave(tracing)
    clock.pass_by(2.0)
    made.leave(lost)
    assert made.phase == "program"
    with made.during("imports"):
        clock.pass_by(4.0)
    made.enter("tracing")
    made.leave(1)
    made.write()
    assert lines(programs)[-1].phases == {"first call": 1.0, "program": 2.0, "imports": 4.0}


def test_without_a_run_there_is_no_file_and_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_BUILD_ID", "abc")
    ledger.begin(str(tmp_path), object(), 0.0)
    assert ledger._ledger is None


@pytest.mark.triton
def test_the_phases_of_a_triton_program_add_up_to_the_wall_clock(triton_user: User) -> None:
    program = DRIVER + KERNELS
    wall_s, cold = started(triton_user, program)
    assert cold["counts"] == {"kernels compiled": 2}
    phases = cold["phases"]
    assert {"interpreter", "imports", "kernels compiled", "first call"} <= set(phases)
    assert sum(phases.values()) == pytest.approx(cold["wall_s"], rel=0.001)
    assert sum(phases.values()) == pytest.approx(wall_s, rel=0.05)
    _, warm = started(triton_user, program)
    assert warm["counts"] == {"kernels found": 2}
    assert warm["phases"]["kernels found"] < phases["kernels compiled"]


@pytest.mark.triton
def test_a_failed_import_has_pythons_own_traceback(triton_user: User) -> None:
    (triton_user.folder / "broken.py").write_text("import does_not_exist\n")
    (triton_user.folder / "program.py").write_text("import broken\n")
    command = [sys.executable, str(triton_user.folder / "program.py")]
    plain = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    status, said = triton_user.buildd("run", "--quiet", "--", *command)
    assert status == 1
    assert said == plain


def test_counting_imports_costs_next_to_nothing(user: User) -> None:
    """An import that has been done is not even seen."""
    code = textwrap.dedent(
        """
        import time
        def work():
            import os
        began = time.process_time()
        for _ in range(200_000):
            work()
        print(time.process_time() - began)
        """
    )
    place = user.folder / "loop.py"
    place.write_text(code)
    status, said = user.buildd("run", "--quiet", "--", sys.executable, str(place))
    assert status == 0
    plain = subprocess.run([sys.executable, str(place)], capture_output=True, text=True, check=True).stdout
    assert float(said) < 5 * float(plain) + 0.05
