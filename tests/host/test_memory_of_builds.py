"""Wide builds of heavy sources on a simulated machine: admission, held jobs and history together."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from buildd.host.admission import Ask, Budget, Hold, Running, Wait
from buildd.host.memory import HostMemory
from buildd.store.store import Store
from codegen.foreign.compile_plan import NVCC
from protocol.messages import JobId
from tests.support.simulated_build import GIB, SimulatedBuild, four_of_flash_attention, fp4_gemm, plain, varied

TOTAL = 16 * GIB
SHORT, LOW, ROOMY = (HostMemory(TOTAL, int(gib * GIB)) for gib in (0.5, 1.0, 4.0))


def job(number: int, *, held: bool = False) -> Running:
    return Running(JobId(number), 1, GIB, GIB, started=float(number), held=held)


def test_the_youngest_is_held_first_and_goes_on_last() -> None:
    budget = Budget(8)
    running = [job(1), job(2), job(3)]
    assert budget.hold(running, ROOMY) == ()
    assert Budget(8).hold(running, LOW) == (Hold(JobId(3)),)
    assert Budget(8).hold([job(1), job(2), job(3, held=True)], LOW) == (Hold(JobId(2)),)
    held = [job(1), job(2, held=True), job(3, held=True)]
    assert Budget(8).hold(held, LOW) == ()
    assert Budget(8).hold(held, ROOMY) == (Hold(JobId(2), go_on=True),)


def test_all_but_the_oldest_are_held_when_memory_ends_before_the_next_look() -> None:
    budget = Budget(8)
    running = [job(1), job(2), job(3)]
    assert budget.hold(running, ROOMY) == ()
    falling = HostMemory(TOTAL, int(1.7 * GIB))
    assert budget.hold(running, falling) == (Hold(JobId(2)), Hold(JobId(3)))


def test_a_held_job_goes_on_when_nothing_else_runs() -> None:
    assert Budget(8).hold([job(2, held=True), job(3, held=True)], SHORT) == (Hold(JobId(2), go_on=True),)


def test_no_job_starts_while_one_is_held() -> None:
    answer = Budget(8).can_start(Ask(1, GIB), HostMemory(TOTAL, 8 * GIB), [job(1), job(2, held=True)])
    assert isinstance(answer, Wait) and "jobs that have begun wait for memory" in answer.reason


def test_a_held_job_is_ended_when_the_only_one_that_runs_needs_its_memory() -> None:
    budget = Budget(8)
    running = [job(1), job(2, held=True), job(3, held=True)]
    assert budget.hold(running, SHORT) == ()
    assert budget.relieve(running, SHORT, 0.0) == JobId(3)


def test_one_held_job_gives_way_to_the_one_that_runs() -> None:
    budget = Budget(8)
    running = [job(1), job(2, held=True)]
    assert budget.hold(running, SHORT) == ()
    assert budget.relieve(running, SHORT, 0.0) == JobId(2)


def test_the_only_held_job_waits_as_long_as_there_is_memory_at_all() -> None:
    """Its work would be lost, and the other one's peak may be over soon."""
    budget = Budget(8)
    running = [job(1), job(2, held=True)]
    assert budget.hold(running, LOW) == () and budget.relieve(running, LOW, 0.0) is None
    running = [job(1), job(2, held=True), job(3, held=True)]
    assert budget.hold(running, LOW) == () and budget.relieve(running, LOW, 0.0) == JobId(3)


@pytest.mark.parametrize("seed", range(12))
def test_two_peaks_at_once_cost_no_work(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    compiles = [replace(each, wall_s=each.wall_s * rng.uniform(0.97, 1.03)) for each in four_of_flash_attention()]
    total, others = 8 * GIB, GIB // 3
    with Store.open(tmp_path) as store:
        outcome = SimulatedBuild(compiles, cpus=2, total_bytes=total, held_bytes=others, guess=NVCC, store=store).run()
    assert not outcome.kills and not outcome.gave_way
    assert outcome.wall_s <= 1.1 * plain(compiles, 2, total, others).wall_s


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_build_of_heavy_sources_is_not_killed_and_as_fast_as_the_best_width(tmp_path: Path, seed: int) -> None:
    compiles = varied(fp4_gemm(), seed)
    assert any(plain(varied(fp4_gemm(), other), 4, TOTAL, GIB).kills for other in range(20)), "too wide by hand"
    with Store.open(tmp_path) as store:
        outcome = SimulatedBuild(compiles, cpus=4, total_bytes=TOTAL, held_bytes=GIB, guess=NVCC, store=store).run()
    assert not outcome.kills
    assert outcome.wall_s <= 1.1 * plain(compiles, 2, TOTAL, GIB).wall_s
