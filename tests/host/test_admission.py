"""The rules of admission, first as stories, then as properties over random jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildd.host.admission import (
    NOBODY,
    Admitted,
    Ask,
    Budget,
    Others,
    Running,
    Wait,
    budget_bytes,
    margin_bytes,
    outstanding_bytes,
)
from buildd.host.memory import HostMemory
from protocol.messages import JobId, Priority

MIB, GIB = 1 << 20, 1 << 30
HOST = HostMemory(32 * GIB, 20 * GIB)


def running(
    number: int,
    memory: int,
    resident: int = 0,
    *,
    cpus: int = 1,
    alone: bool = False,
    priority: Priority = Priority.BUILD,
) -> Running:
    return Running(JobId(number), cpus, memory, resident, alone, priority, started=float(number))


def why(answer: Admitted | Wait) -> str:
    return answer.reason if isinstance(answer, Wait) else ""


# ---------------------------------------------------------------- stories


def test_the_budget_is_what_jobs_use_and_what_is_free_for_more() -> None:
    jobs = [running(1, 4 * GIB, resident=GIB), running(2, GIB, resident=GIB)]
    host = HostMemory(64 * GIB, 10 * GIB)
    room = 2 * GIB + 10 * GIB - margin_bytes(host)
    assert budget_bytes(host, jobs, NOBODY) == room
    assert budget_bytes(host, jobs, Others(bytes=3 * GIB)) == room - 3 * GIB
    assert budget_bytes(host, jobs, NOBODY, 8 * GIB) == 8 * GIB
    assert budget_bytes(HostMemory(64 * GIB, 0), jobs, NOBODY) == 2 * GIB


def test_when_nothing_runs_anything_may_start() -> None:
    empty = HostMemory(8 * GIB, 0, pressure=99.0)
    for ask in (Ask(1, 0), Ask(64, 100 * GIB), Ask(1, GIB, alone=True)):
        assert Budget(4, memory_cap_bytes=1).can_start(ask, empty, [], Others(8 * GIB, 9)) == Admitted()


def test_cpu_tokens() -> None:
    budget = Budget(4)
    assert budget.can_start(Ask(2, 0), HOST, [running(1, 0, cpus=2)]) == Admitted()
    assert why(budget.can_start(Ask(2, 0), HOST, [running(1, 0, cpus=3)])) == "cpu: needs 2, 1 of 4 free"
    # More than there are counts as all: it waits for an empty machine, not for ever.
    assert why(budget.can_start(Ask(16, 0), HOST, [running(1, 0)])) == "cpu: needs 4, 3 of 4 free"


def test_a_program_whose_compiles_are_jobs_takes_no_token_from_them() -> None:
    budget, program = Budget(2), running(9, GIB, cpus=0)
    assert budget.can_start(Ask(2, 0), HOST, [program]) == Admitted()
    # Whatever they wait for it must not be the program, which waits for them.
    short, programs = HostMemory(32 * GIB, 0, pressure=99.0), [program, running(8, GIB, cpus=0, alone=True)]
    assert budget.can_start(Ask(1, 99 * GIB, alone=True), short, programs) == Admitted()
    # Programs among themselves are jobs like any others.
    assert budget.can_start(Ask(0, GIB), HOST, [program, running(1, 0, cpus=2)]) == Admitted()
    assert why(budget.can_start(Ask(0, 20 * GIB), HOST, [program])).startswith("memory: needs 20.0 GiB")
    assert why(budget.can_start(Ask(0, 0), HOST, [program, program])).startswith("cpu: 2 programs run already")
    assert "alone" in why(budget.can_start(Ask(0, 0, alone=True), HOST, [running(1, 0)]))


def test_memory_that_was_promised_is_not_free() -> None:
    budget = Budget(64)
    # 20 GiB available, 983 MiB margin, 10 of 12 GiB still to come.
    others = [running(1, 12 * GIB, 2 * GIB)]
    assert budget.can_start(Ask(1, 9 * GIB), HOST, others) == Admitted()
    assert why(budget.can_start(Ask(1, 10 * GIB), HOST, others)) == "memory: needs 10.0 GiB, 9.0 GiB free"


def test_a_job_beyond_its_estimate_promises_nothing_negative() -> None:
    assert outstanding_bytes([running(1, GIB, 3 * GIB), running(2, GIB, 0)]) == GIB


def test_the_reason_names_what_a_person_can_change() -> None:
    host = replace(HOST, available_bytes=GIB, limited_by="/sys/fs/cgroup/a/memory.max")
    answer = Budget(4).can_start(Ask(1, 2 * GIB), host, [running(1, 0)], Others(512 * MIB, 1))
    assert why(answer) == (
        "memory: needs 2.0 GiB, 0 MiB free (limited by /sys/fs/cgroup/a/memory.max, 512 MiB promised by other daemons)"
    )


def test_alone_means_nothing_beside_it() -> None:
    budget = Budget(64)
    assert why(budget.can_start(Ask(1, 0, alone=True), HOST, [running(1, 0)])).startswith("memory: it runs alone")
    assert "whole machine" in why(budget.can_start(Ask(1, 0), HOST, [running(1, 0, alone=True)]))


def test_a_job_bigger_than_the_machine_runs_alone() -> None:
    budget = Budget(64)
    assert why(budget.can_start(Ask(1, 33 * GIB), HOST, [running(1, 0)])) == (
        "memory: needs 33.0 GiB, this machine has 32.0 GiB: it runs alone"
    )
    assert budget.can_start(Ask(1, 33 * GIB), HOST, []) == Admitted()


def test_the_users_cap() -> None:
    budget = Budget(64, memory_cap_bytes=4 * GIB)
    others = [running(1, GIB, 2 * GIB)]
    assert budget.can_start(Ask(1, 2 * GIB), HOST, others) == Admitted()
    assert why(budget.can_start(Ask(1, 3 * GIB), HOST, others)) == (
        "memory: needs 3.0 GiB, 2.0 GiB left of the 4.0 GiB that BUILDD_MEMORY allows"
    )


def test_with_other_users_we_promise_our_share_at_most() -> None:
    host = HostMemory(32 * GIB, 30 * GIB)
    others = [running(1, 10 * GIB)]
    assert Budget(64).can_start(Ask(1, 8 * GIB), host, others, Others(0, 1)) == Admitted()
    assert why(Budget(64).can_start(Ask(1, 8 * GIB), host, others, Others(0, 2))) == (
        "memory: needs 8.0 GiB; 2 users share this machine"
    )


# ---------------------------------------------------------------- relief


SHORT = HostMemory(32 * GIB, 100 * MIB)
FULL = [
    running(1, 8 * GIB, 8 * GIB, priority=Priority.WARM),
    running(2, 8 * GIB, 8 * GIB, priority=Priority.WARM),
    running(3, 8 * GIB, 8 * GIB, priority=Priority.BUILD),
    running(4, 8 * GIB, 8 * GIB, priority=Priority.EDITOR),
    running(5, 8 * GIB, 1 * MIB, priority=Priority.WARM),
]


def test_relief_names_the_newest_of_the_lowest_priority_that_uses_anything() -> None:
    assert Budget(8).relieve(FULL, SHORT, 0.0) == 2
    assert Budget(8).relieve(FULL[2:], SHORT, 0.0) == 3
    assert Budget(8).relieve(list(reversed(FULL)), SHORT, 0.0) == 2


def test_relief_never_ends_the_only_job_nor_one_that_frees_nothing() -> None:
    assert Budget(8).relieve([], SHORT, 0.0) is None
    assert Budget(8).relieve(FULL[:1], SHORT, 0.0) is None
    assert Budget(8).relieve([running(1, GIB, MIB), running(2, GIB, MIB)], SHORT, 0.0) is None


@pytest.mark.parametrize(
    ("host", "acts"),
    [
        (HostMemory(32 * GIB, 20 * GIB, 0.0), False),
        (HostMemory(32 * GIB, 20 * GIB, 90.0), False),  # somebody else's cgroup is short, not we
        (HostMemory(32 * GIB, 7 * GIB, 90.0), True),
        (HostMemory(32 * GIB, 7 * GIB, 19.0), False),
        (HostMemory(32 * GIB, 480 * MIB, 0.0), True),
        (HostMemory(32 * GIB, 520 * MIB, 0.0), False),
    ],
)
def test_when_relief_acts(host: HostMemory, acts: bool) -> None:
    assert (Budget(8).relieve(FULL, host, 100.0) is not None) is acts


def test_relief_waits_for_its_effect_and_admits_nothing_meanwhile() -> None:
    budget = Budget(8)
    low = HostMemory(32 * GIB, 400 * MIB, 50.0)
    assert budget.relieve(FULL, low, 10.0) == 2
    assert budget.relieve(FULL, low, 14.9) is None
    assert budget.relieve(FULL, low, 15.0) == 2
    # Nearly nothing left: no time to wait for averages.
    assert budget.relieve(FULL, SHORT, 15.5) is None
    assert budget.relieve(FULL, SHORT, 16.0) == 2
    # There is room again, but the host is still recovering.
    recovering = HostMemory(32 * GIB, 6 * GIB, 10.0)
    assert budget.relieve(FULL[:2], recovering, 30.0) is None
    assert "short of memory" in why(budget.can_start(Ask(1, 0), recovering, FULL[:1]))
    assert budget.relieve(FULL[:2], replace(recovering, pressure=4.0), 31.0) is None
    assert budget.can_start(Ask(1, 0), replace(recovering, pressure=4.0), FULL[:1]) == Admitted()


# ---------------------------------------------------------------- properties


JOBS = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(0, 40 * GIB),
        st.booleans(),
        st.floats(0, 1),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(
    jobs=JOBS,
    cpus=st.integers(1, 8),
    total=st.integers(GIB, 32 * GIB),
    foreign=st.floats(0, 1),
    cap=st.sampled_from([0, 3 * GIB]),
    ends=st.lists(st.integers(0, 100), max_size=60),
)
def test_never_promises_more_than_there_is_and_never_stops(
    jobs: list[tuple[int, int, bool, float]], cpus: int, total: int, foreign: float, cap: int, ends: list[int]
) -> None:
    """Jobs in random order on a host where something else uses a share; each uses any part of its estimate."""
    budget = Budget(cpus, cap)
    used_by_strangers = int(total * foreign)
    active: list[Running] = []
    waiting = list(enumerate(jobs))
    steps = 0
    while waiting or active:
        steps += 1
        assert steps < 500
        for number, (need, estimate, alone, share) in list(waiting):
            available = max(0, total - used_by_strangers - sum(job.resident_bytes for job in active))
            host = HostMemory(total, available)
            answer = budget.can_start(Ask(need, estimate, alone), host, active)
            if isinstance(answer, Wait):
                assert active, "nothing runs, so it must start"
                assert answer.reason
                continue
            waiting.remove((number, (need, estimate, alone, share)))
            active.append(Running(JobId(number), need, estimate, int(estimate * share), alone))
            if len(active) > 1:
                assert sum(job.memory_bytes for job in active) <= total - used_by_strangers - margin_bytes(host)
                assert not cap or sum(job.memory_bytes for job in active) <= cap
                assert sum(min(job.cpus, cpus) for job in active) <= cpus
                assert not any(job.alone for job in active)
        active.pop(ends[steps % len(ends)] % len(active) if ends else 0)


@settings(max_examples=80, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8 * GIB), st.booleans(), st.floats(0, 1)), max_size=60)
)
def test_two_budgets_that_share_claims_do_not_add_up_to_more(turns: list[tuple[int, int, bool, float]]) -> None:
    """Two daemons by turns start or end jobs; only the first job of each may go beyond."""
    total = 24 * GIB
    budgets = (Budget(64), Budget(64))
    active: tuple[list[Running], list[Running]] = ([], [])
    for number, (side, estimate, end, share) in enumerate(turns):
        if end:
            if active[side]:
                active[side].pop(0)
            continue
        available = max(0, total - sum(job.resident_bytes for jobs in active for job in jobs))
        host = HostMemory(total, available)
        others = Others(outstanding_bytes(active[1 - side]), 2)
        first = not active[side]
        answer = budgets[side].can_start(Ask(1, estimate), host, active[side], others)
        if isinstance(answer, Admitted):
            active[side].append(Running(JobId(number), 1, estimate, int(estimate * share)))
            if not first:
                assert sum(job.memory_bytes for jobs in active for job in jobs) <= total - margin_bytes(host)
        else:
            assert not first


@settings(max_examples=80, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 8 * GIB), st.sampled_from(Priority)), max_size=8),
    available=st.integers(0, 16 * GIB),
    pressure=st.floats(0, 100),
)
def test_relief_never_ends_the_only_or_a_better_job(
    jobs: list[tuple[int, Priority]], available: int, pressure: float
) -> None:
    active = [running(n, size, size, priority=priority) for n, (size, priority) in enumerate(jobs)]
    victim = Budget(8).relieve(active, HostMemory(16 * GIB, available, pressure), 0.0)
    if victim is None:
        return
    assert len(active) > 1
    rank = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}
    ended = active[victim]
    assert ended.resident_bytes >= 64 * MIB
    for job in active:
        if job.resident_bytes >= 64 * MIB and job is not ended:
            assert (rank[job.priority], job.started) < (rank[ended.priority], ended.started)
