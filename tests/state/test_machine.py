"""Stories on the state machine, and a random driver that checks its invariants after every event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildd.state.events import (
    Attach,
    Cancelled,
    Complete,
    Deliver,
    Delivered,
    Ending,
    Hit,
    Instruction,
    JobEnded,
    Kill,
    KillCause,
    LookUp,
    Missed,
    NodeFailed,
    NodeSpec,
    OwnLimit,
    Released,
    Relieve,
    Retry,
    Start,
    StateEvent,
    Submitted,
    Tick,
)
from buildd.state.machine import State
from buildd.state.nodes import PlanCycle
from protocol.messages import JobId, Outcome, Priority, RequestId
from tests.support.invariants import check

A, B, INNER = RequestId("a"), RequestId("b"), RequestId("inner")


def slots(count: int):
    """A gate of so many CPU slots."""

    def gate(cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str:
        if alone and running:
            return "must run alone"
        return "" if running < count else f"{running} of {count} slots taken"

    return gate


def nodes(*depends: tuple[int, ...], wall_s: float = 1.0) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(d, wall_s) for d in depends)


class Machine:
    """A state that checks itself after each event."""

    def __init__(self, count: int = 2, cpus: int = 0, there: int = 0) -> None:
        self.state = State(slots(count), cpus=cpus, slots=lambda memory_bytes: there if memory_bytes < 100 else 0)

    def __call__(self, event: StateEvent) -> list[Instruction]:
        out = self.state.handle(event)
        check(self.state)
        return out


def missed(request: RequestId, node: int, in_flight_key: str = "") -> Missed:
    return Missed(request, node, in_flight_key or f"{request}{node}", 1, 0)


def test_a_chain_is_looked_up_run_and_delivered_in_order() -> None:
    machine = Machine()
    assert machine(Submitted(A, nodes((), (0,)))) == [LookUp(A, 0, False)]
    assert machine(missed(A, 0)) == [Attach(A, 0, JobId(1)), Start(JobId(1), A, 0, False, False)]
    assert machine(JobEnded(JobId(1), Ending.SUCCESS)) == [Deliver(A, 0, JobId(1))]
    assert machine(Delivered(A, 0)) == [LookUp(A, 1, False)]
    assert machine(Hit(A, 1)) == [Complete(A, Outcome.BUILT)]


def test_an_empty_request_is_built() -> None:
    assert Machine()(Submitted(A, ())) == [Complete(A, Outcome.BUILT)]


def test_what_stands_as_it_did_is_not_looked_up() -> None:
    machine = Machine()
    assert machine(Submitted(A, nodes((), (), (0, 1)), done=frozenset({0}))) == [LookUp(A, 1, False)]
    assert machine(Hit(A, 1)) == [LookUp(A, 2, False)]
    assert machine(Hit(A, 2)) == [Complete(A, Outcome.BUILT)]
    assert machine(Submitted(B, nodes((), (0,)), done=frozenset({0, 1}))) == [Complete(B, Outcome.BUILT)]


def test_equal_jobs_of_two_requests_run_once() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(Submitted(B, nodes(())))
    assert Start(JobId(1), A, 0, False, False) in machine(missed(A, 0, "same"))
    assert machine(missed(B, 0, "same")) == [Attach(B, 0, JobId(1))]
    assert machine(JobEnded(JobId(1), Ending.SUCCESS)) == [Deliver(A, 0, JobId(1)), Deliver(B, 0, JobId(1))]


def test_a_miss_that_an_equal_job_overtook_is_looked_up_again() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(Submitted(B, nodes((), ())))
    machine(missed(A, 0, "same"))
    machine(JobEnded(JobId(1), Ending.SUCCESS))
    assert machine(missed(B, 0, "same")) == [LookUp(B, 0, False)]
    assert Start(JobId(2), B, 0, False, False) in machine(missed(B, 0, "same")), "once is enough: it is no loop"


def test_a_job_lives_while_one_follower_is_left() -> None:
    machine = Machine()
    for request in (A, B):
        machine(Submitted(request, nodes(())))
        machine(missed(request, 0, "same"))
    assert machine(Cancelled(A)) == [Complete(A, Outcome.CANCELLED)]
    assert machine(Cancelled(B)) == [Kill(JobId(1), KillCause.CANCELLED), Complete(B, Outcome.CANCELLED)]
    assert machine(JobEnded(JobId(1), Ending.KILLED)) == []
    assert not machine.state.jobs


def test_a_request_that_replaces_another_goes_on_with_what_both_want() -> None:
    """Whatever is looked up first: nothing that the other runs ends before it is known what both want."""
    machine = Machine()
    machine(Submitted(A, nodes((), (), (), (0, 1, 2))))
    machine(missed(A, 0, "old"))
    machine(missed(A, 1, "same"))
    machine(missed(A, 2, "unstarted"))
    assert machine(Submitted(B, nodes((), ()), replaces=(A,))) == [LookUp(B, 0, False), LookUp(B, 1, False)]
    assert JobId(3) not in machine.state.jobs, "it would start a job that no request wants"
    assert machine(missed(B, 0, "new")) == [Attach(B, 0, JobId(4))]
    assert machine(missed(B, 1, "same")) == [
        Attach(B, 1, JobId(2)),
        Kill(JobId(1), KillCause.CANCELLED),
        Complete(A, Outcome.CANCELLED),
    ]
    assert starts(machine(JobEnded(JobId(1), Ending.KILLED))) == [(B, 0)]


def test_a_request_that_is_replaced_hands_over_what_it_was_to_replace() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(()), replaces=(A, RequestId("gone"))))
    machine(missed(A, 0, "same"))
    machine(Submitted(B, nodes(()), replaces=(A,)))
    out = machine(Submitted(INNER, nodes(()), replaces=(B,)))
    assert Complete(B, Outcome.CANCELLED) in out and A in machine.state.requests
    assert machine(missed(INNER, 0, "same")) == [Attach(INNER, 0, JobId(1)), Complete(A, Outcome.CANCELLED)]
    machine(Cancelled(INNER))
    assert not machine.state.requests


def test_a_dying_job_is_not_joined() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(missed(A, 0, "same"))
    machine(Cancelled(A))
    machine(Submitted(B, nodes(())))
    assert Start(JobId(2), B, 0, False, False) in machine(missed(B, 0, "same"))


def test_the_longest_path_starts_first() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, (NodeSpec((), 1.0), NodeSpec((), 2.0), NodeSpec((), 3.0), NodeSpec((0,), 9.0))))
    first = [i for n in (1, 2, 0) for i in machine(missed(A, n)) if isinstance(i, Start)]
    assert [s.node for s in first] == [1], "the only one there when a slot was free"
    assert [i.node for i in machine(JobEnded(JobId(1), Ending.SUCCESS)) if isinstance(i, Start)] == [0]


def test_an_editor_goes_before_a_build() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, nodes((), ())))
    machine(Submitted(B, nodes(()), Priority.EDITOR))
    machine(missed(A, 0))
    machine(missed(A, 1))
    machine(missed(B, 0))
    assert Start(JobId(3), B, 0, False, False) in machine(JobEnded(JobId(1), Ending.SUCCESS))


def test_a_requests_cap_holds_only_for_it() -> None:
    machine = Machine(count=8)
    machine(Submitted(A, nodes((), (), ()), most_jobs=1))
    machine(Submitted(B, nodes((), ())))
    started = [i for e in (missed(A, 0), missed(A, 1), missed(A, 2), missed(B, 0), missed(B, 1)) for i in machine(e)]
    assert [s.request for s in started if isinstance(s, Start)] == [A, B, B]


def test_a_failure_skips_what_stands_on_it_and_starts_nothing_new() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, nodes((), (), (0,))))
    machine(missed(A, 0))
    machine(missed(A, 1))
    out = machine(JobEnded(JobId(1), Ending.FAILED))
    assert out == [NodeFailed(A, 0, JobId(1)), Complete(A, Outcome.FAILED)]


def test_keep_going_builds_what_does_not_depend_on_the_failure() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, nodes((), (), (0,), (1,)), keep_going=True))
    machine(missed(A, 0))
    machine(missed(A, 1))
    out = machine(JobEnded(JobId(1), Ending.FAILED))
    assert out == [NodeFailed(A, 0, JobId(1)), Start(JobId(2), A, 1, False, False)]
    machine(JobEnded(JobId(2), Ending.SUCCESS))
    assert machine(Delivered(A, 1)) == [LookUp(A, 3, False)]
    assert machine(Hit(A, 3)) == [Complete(A, Outcome.FAILED)]


def test_out_of_memory_runs_again_alone_and_then_fails() -> None:
    machine = Machine(count=2)
    machine(Submitted(A, nodes((), ())))
    machine(missed(A, 0))
    machine(missed(A, 1))
    assert machine(JobEnded(JobId(1), Ending.OUT_OF_MEMORY)) == [Retry(JobId(1), Ending.OUT_OF_MEMORY)]
    machine(JobEnded(JobId(2), Ending.SUCCESS))
    assert Start(JobId(1), A, 0, False, True) in machine(Tick()) or machine.state.jobs[JobId(1)].lead
    assert NodeFailed(A, 0, JobId(1)) in machine(JobEnded(JobId(1), Ending.OUT_OF_MEMORY))


def test_under_pressure_a_job_gives_way_and_comes_back() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(missed(A, 0))
    assert machine(Relieve(JobId(1))) == [Kill(JobId(1), KillCause.PRESSURE)]
    assert machine(JobEnded(JobId(1), Ending.KILLED)) == [
        Retry(JobId(1), Ending.KILLED),
        Start(JobId(1), A, 0, False, False),
    ]


def test_a_job_whose_result_is_being_stored_holds_no_slot() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, nodes((), ()), most_jobs=1))
    machine(missed(A, 0))
    machine(missed(A, 1))
    assert machine(Released(JobId(1))) == [Start(JobId(2), A, 1, False, False)]
    assert machine(JobEnded(JobId(1), Ending.SUCCESS)) == [Deliver(A, 0, JobId(1))]


def test_cancelled_while_it_is_stored_it_is_forgotten_at_its_end() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(missed(A, 0, "same"))
    machine(Released(JobId(1)))
    assert machine(Cancelled(A)) == [Complete(A, Outcome.CANCELLED)]
    machine(Submitted(B, nodes(())))
    assert machine(missed(B, 0, "same")) == [Attach(B, 0, JobId(1))], "its result is as good as any"
    assert machine(JobEnded(JobId(1), Ending.SUCCESS)) == [Deliver(B, 0, JobId(1))]


def test_while_all_cpus_are_taken_the_gate_is_not_asked() -> None:
    asked: list[int] = []

    def gate(cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str:
        asked.append(running)
        return ""

    state = State(gate, cpus=2)
    state.handle(Submitted(A, nodes(*[()] * 50)))
    for n in range(50):
        state.handle(missed(A, n))
    assert asked == [0, 1]
    assert state.waiting_for == "cpu: all 2 are taken" and state.table.queued == 48
    check(state)


def test_inputs_that_never_rest_are_delivered_at_the_third_run() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    finals = []
    for job in (1, 2, 3):
        out = machine(missed(A, 0))
        finals += [i.final for i in out if isinstance(i, Start)]
        if job < 3:
            assert machine(JobEnded(JobId(job), Ending.STALE)) == [LookUp(A, 0, True)]
    assert finals == [False, False, True]


def test_no_node_joins_a_job_that_delivers_though_its_inputs_changed() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    for job in (1, 2):
        machine(missed(A, 0, "same"))
        machine(JobEnded(JobId(job), Ending.STALE))
    assert Start(JobId(3), A, 0, True, False) in machine(missed(A, 0, "same"))
    machine(Submitted(B, nodes(())))
    assert Start(JobId(4), B, 0, False, False) in machine(missed(B, 0, "same"))


def test_a_big_job_is_not_overtaken_for_ever() -> None:
    def gate(cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str:
        return "memory" if memory_bytes and running else ""

    state = State(gate)
    state.handle(Submitted(A, (NodeSpec((), 1.0), NodeSpec((), 50.0), *(NodeSpec((), 1.0) for _ in range(100)))))
    state.handle(Missed(A, 0, "first", 1, 0))
    state.handle(Missed(A, 1, "big", 1, 1))
    started = 0
    for n in range(2, 102):
        started += sum(isinstance(i, Start) for i in state.handle(Missed(A, n, f"small{n}", 1, 0)))
    assert started <= 17
    check(state)


def spread(request: RequestId, node: int, in_flight_key: str = "") -> Missed:
    return Missed(request, node, in_flight_key or f"{request}{node}", 1, 0, steps=True)


STEPS = nodes((), (0,), (), (2,), (1, 3))
"""Two chains and what stands on both: host preprocess, cudafe++; preprocess, cicc; host compile."""


def starts(instructions: list[Instruction]) -> list[tuple[RequestId, int]]:
    return [(i.request, i.node) for i in instructions if isinstance(i, Start)]


def test_a_spread_job_holds_nothing_and_its_steps_run_side_by_side() -> None:
    machine = Machine(cpus=2)
    machine(Submitted(A, nodes(())))
    assert starts(machine(spread(A, 0))) == [(A, 0)]
    assert machine.state.running == [] and machine.state.table.queued == 0
    machine(Submitted(INNER, STEPS, owner=JobId(1)))
    machine(missed(INNER, 0))
    machine(missed(INNER, 2))
    assert [job.lead for job in machine.state.running] == [(INNER, 0), (INNER, 2)]
    for job in (2, 3):
        machine(JobEnded(JobId(job), Ending.SUCCESS))
    for node in (0, 2):
        assert machine(Delivered(INNER, node)) == [LookUp(INNER, node + 1, False)]
    assert machine(Hit(INNER, 1)) == [] and machine(Hit(INNER, 3)) == [LookUp(INNER, 4, False)]
    assert machine(Hit(INNER, 4)) == [Complete(INNER, Outcome.BUILT)]
    assert machine(JobEnded(JobId(1), Ending.SUCCESS)) == [Deliver(A, 0, JobId(1))]
    assert machine(Delivered(A, 0)) == [Complete(A, Outcome.BUILT)]


def test_a_further_job_is_spread_only_for_a_cpu_that_would_be_idle() -> None:
    machine = Machine(count=9, cpus=3)
    machine(Submitted(A, nodes((), ())))
    machine(spread(A, 0))
    machine(Submitted(INNER, nodes((), (), (), ()), owner=JobId(1)))
    for node in range(4):
        machine(missed(INNER, node))
    assert [job.lead for job in machine.state.running] == [(INNER, 0), (INNER, 1), (INNER, 2)]
    assert starts(machine(spread(A, 1))) == []
    assert starts(machine(JobEnded(JobId(2), Ending.SUCCESS))) == [(INNER, 3)], "what has begun goes first"
    assert starts(machine(JobEnded(JobId(3), Ending.SUCCESS))) == [(A, 1)]
    assert machine.state.jobs[JobId(6)].spread


def test_where_each_cpu_has_a_job_none_is_spread() -> None:
    machine = Machine(count=9, cpus=2)
    machine(Submitted(A, nodes(*([()] * 4))))
    for node in range(4):
        machine(spread(A, node))
    assert [machine.state.jobs[JobId(n)].spread for n in (1, 2, 3)] == [True, False, False]
    assert [job.lead for job in machine.state.running] == [(A, 1)], "the other CPU is for the steps of the first"
    machine(Submitted(INNER, nodes((), ()), owner=JobId(1)))
    machine(missed(INNER, 0))
    assert [job.lead for job in machine.state.running] == [(A, 1), (INNER, 0)]
    machine(Released(JobId(2)))
    assert [job.lead for job in machine.state.running] == [(INNER, 0), (A, 2)]
    for job in (2, 3, 4):
        machine(JobEnded(JobId(job), Ending.SUCCESS if job != 4 else Ending.STALE))
    assert starts(machine(spread(A, 3))) == [(A, 3)] and machine.state.jobs[JobId(6)].spread is False


def test_a_spread_job_keeps_its_cpu_between_two_steps() -> None:
    machine = Machine(count=9, cpus=2)
    machine(Submitted(A, nodes((), (), ())))
    for node in range(3):
        machine(spread(A, node))
    machine(Submitted(INNER, nodes((), (0,), (1,)), owner=JobId(1)))
    machine(missed(INNER, 0))
    machine(JobEnded(JobId(4), Ending.SUCCESS))
    assert starts(machine(Delivered(INNER, 0))) == [], "its next step is being looked up"
    assert starts(machine(missed(INNER, 1))) == [(INNER, 1)]
    machine(JobEnded(JobId(5), Ending.SUCCESS))
    machine(Delivered(INNER, 1))
    machine(Submitted(B, nodes(())))
    machine(missed(B, 0, "theirs"))
    assert starts(machine(missed(INNER, 2, "theirs"))) == [(B, 0)], "it is the next step as well"
    assert starts(machine(JobEnded(JobId(2), Ending.SUCCESS))) == [(A, 2)], "it waits for no CPU"


def test_a_job_that_does_its_steps_itself_is_spread_once_a_cpu_is_idle() -> None:
    machine = Machine(cpus=2)
    machine(Submitted(A, nodes((), (), ()), most_jobs=2))
    for node in range(3):
        machine(spread(A, node))
    machine(JobEnded(JobId(1), Ending.SUCCESS))
    assert [machine.state.jobs[JobId(n)].spread for n in (2, 3)] == [False, False]
    assert not any(machine.state.may_widen(JobId(n)) for n in (1, 2, 3)), "each CPU has a job"
    machine(JobEnded(JobId(2), Ending.SUCCESS))
    assert machine.state.may_widen(JobId(3))
    assert machine(Submitted(INNER, STEPS, owner=JobId(3), done=frozenset({0, 1}))) == [LookUp(INNER, 2, False)]
    assert machine.state.running == [] and machine.state.requests[A].running == 0
    machine(missed(INNER, 2))
    assert [job.lead for job in machine.state.running] == [(INNER, 2)]
    assert machine.state.requests[A].running == 1, "its steps count as the job's"
    machine(JobEnded(JobId(4), Ending.SUCCESS))
    machine(Delivered(INNER, 2))
    machine(Hit(INNER, 3))
    assert machine(Hit(INNER, 4)) == [Complete(INNER, Outcome.BUILT)]
    assert machine(JobEnded(JobId(3), Ending.SUCCESS)) == [Deliver(A, 2, JobId(3))]


@pytest.mark.parametrize("why", ["a job waits", "its request may have one job", "it is to end", "it runs alone", ""])
def test_a_job_goes_on_with_its_steps_itself(why: str) -> None:
    machine = Machine(count=1, cpus=2)
    machine(Submitted(A, nodes(())))
    machine(Submitted(B, nodes((), ()), most_jobs=1 if why.startswith("its request") else 0))
    machine(spread(A, 0))
    machine(spread(B, 0))
    last = JobId(2)
    assert [job.id for job in machine.state.running] == [last], "the first is spread"
    machine(JobEnded(JobId(1), Ending.SUCCESS))
    match why:
        case "a job waits":
            machine(Missed(B, 1, "large", 4, 0))
        case "it is to end":
            machine(Relieve(last))
        case "it runs alone":
            machine(JobEnded(last, Ending.OUT_OF_MEMORY))
    assert [job.id for job in machine.state.running] == [last]
    assert machine.state.may_widen(last) is (not why)


def test_where_nearly_each_cpu_has_a_job_no_further_one_is_spread() -> None:
    machine = Machine(count=99, cpus=8)
    machine(Submitted(A, nodes(*([()] * 8))))
    for node in range(8):
        machine(spread(A, node))
    kinds = [machine.state.jobs[JobId(n)].spread for n in range(1, 9)]
    assert kinds == [True] * 5 + [False] * 3


def test_a_job_that_memory_refuses_is_spread_after_all() -> None:
    machine = Machine(count=0, cpus=2)
    machine(Submitted(A, nodes((), ())))
    machine(spread(A, 0))
    machine(spread(A, 1))
    assert all(machine.state.jobs[JobId(n)].spread for n in (1, 2))


def test_a_job_that_ran_out_of_memory_is_not_spread() -> None:
    machine = Machine(count=9, cpus=2)
    machine(Submitted(A, nodes((), ())))
    machine(spread(A, 0))
    machine(spread(A, 1))
    machine(JobEnded(JobId(1), Ending.SUCCESS))
    machine(Delivered(A, 0))
    assert Start(JobId(2), A, 1, False, True, False) in machine(JobEnded(JobId(2), Ending.OUT_OF_MEMORY))


def test_after_a_failed_step_only_those_before_it_go_on() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(spread(A, 0))
    machine(Submitted(INNER, nodes((), (0,), (), (2,), (), (1, 3)), owner=JobId(1)))
    for node in (0, 2, 4):
        machine(missed(INNER, node))
    out = machine(JobEnded(JobId(3), Ending.FAILED))
    assert NodeFailed(INNER, 2, JobId(3)) in out and not any(isinstance(i, Complete) for i in out)
    assert JobId(4) not in machine.state.jobs, "the compiler would not have come to it"
    machine(JobEnded(JobId(2), Ending.SUCCESS))
    assert machine(Delivered(INNER, 0)) == [LookUp(INNER, 1, False)]
    assert machine(Hit(INNER, 1)) == [Complete(INNER, Outcome.FAILED)]
    assert machine(JobEnded(JobId(1), Ending.FAILED)) == [NodeFailed(A, 0, JobId(1)), Complete(A, Outcome.FAILED)]


def test_the_cap_of_a_request_counts_its_steps() -> None:
    machine = Machine(cpus=4)
    machine(Submitted(A, nodes((), ()), most_jobs=1))
    machine(spread(A, 0))
    machine(spread(A, 1))
    machine(Submitted(INNER, STEPS, owner=JobId(1)))
    machine(missed(INNER, 0))
    assert machine(missed(INNER, 2))[1:] == [], "one at a time"
    assert starts(machine(JobEnded(JobId(3), Ending.SUCCESS))) == [(INNER, 2)]


def test_an_editor_lifts_the_steps_of_a_job_that_it_joins() -> None:
    machine = Machine(count=1)
    machine(Submitted(A, nodes(()), priority=Priority.WARM))
    machine(spread(A, 0, "same"))
    machine(Submitted(INNER, STEPS, priority=Priority.WARM, owner=JobId(1)))
    machine(Submitted(B, nodes((), ())))
    machine(missed(B, 0))
    machine(missed(INNER, 0))
    machine(missed(B, 1))
    machine(Submitted(RequestId("editor"), nodes(()), priority=Priority.EDITOR))
    machine(spread(RequestId("editor"), 0, "same"))
    assert starts(machine(JobEnded(JobId(2), Ending.SUCCESS))) == [(INNER, 0)]


def test_the_last_follower_of_a_spread_job_ends_its_steps() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    machine(spread(A, 0))
    machine(Submitted(INNER, STEPS, owner=JobId(1)))
    machine(missed(INNER, 0))
    assert machine(Cancelled(A)) == [Kill(JobId(1), KillCause.CANCELLED), Complete(A, Outcome.CANCELLED)]
    assert machine(Cancelled(INNER)) == [
        Kill(JobId(2), KillCause.CANCELLED),
        Complete(INNER, Outcome.CANCELLED),
    ]
    machine(JobEnded(JobId(1), Ending.KILLED))
    machine(JobEnded(JobId(2), Ending.KILLED))
    assert not machine.state.jobs


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_order_of_events_keeps_the_invariants_and_ends(data: st.DataObject) -> None:
    count, cpus, there = (data.draw(st.integers(*bounds)) for bounds in ((1, 3), (0, 2), (0, 2)))
    machine = Machine(count, cpus, there)
    owners: dict[RequestId, JobId] = {}
    requests = [RequestId(f"r{i}") for i in range(data.draw(st.integers(1, 3)))]
    looking: list[tuple[RequestId, int]] = []
    delivering: list[tuple[RequestId, int]] = []
    running: set[JobId] = set()
    done: set[RequestId] = set()
    begin: list[tuple[RequestId, JobId]] = []
    ending: list[RequestId] = []
    over: list[tuple[JobId, Outcome]] = []

    def carry_out(instructions: list[Instruction]) -> None:
        for i in instructions:
            match i:
                case LookUp():
                    looking.append((i.request, i.node))
                case Start() if machine.state.jobs[i.job].spread:
                    inner = RequestId(f"inner{i.job}-{machine.state._clock}")
                    owners[inner] = i.job
                    begin.append((inner, i.job))
                case Start():
                    assert i.job not in running
                    running.add(i.job)
                case Kill() if i.job in owners.values():
                    ending.extend(inner for inner, job in owners.items() if job == i.job)
                case Deliver():
                    delivering.append((i.request, i.node))
                case Complete() if i.request in owners:
                    over.append((owners[i.request], i.outcome))
                case Complete():
                    assert i.request not in done
                    done.add(i.request)
        # What a shell does of its own accord: spread, tell of the end, cancel.
        while begin:
            inner, job = begin.pop()
            carry_out(machine(Submitted(inner, STEPS, owner=job)))
        while ending:
            carry_out(machine(Cancelled(ending.pop())))
        while over:
            job, outcome = over.pop()
            how = {Outcome.BUILT: Ending.SUCCESS, Outcome.CANCELLED: Ending.KILLED}.get(outcome, Ending.FAILED)
            carry_out(machine(JobEnded(job, how)))

    def submit(request: RequestId) -> None:
        size = data.draw(st.integers(0, 5))
        graph = tuple(
            NodeSpec(tuple(data.draw(st.sets(st.integers(0, n - 1)))) if n else (), float(n)) for n in range(size)
        )
        jobs, on = data.draw(st.integers(0, 2)), data.draw(st.booleans())
        before = tuple(data.draw(st.sets(st.sampled_from(requests), max_size=1)))
        carry_out(machine(Submitted(request, graph, most_jobs=jobs, keep_going=on, replaces=before)))

    unsubmitted = list(requests)
    for _ in range(400):
        if len(done) == len(requests) and not running:
            break
        if unsubmitted and data.draw(st.integers(0, 3)) == 0:
            submit(unsubmitted.pop())
            continue
        choices = ["idle"] + [c for c, there in (("look", looking), ("deliver", delivering), ("end", running)) if there]
        if data.draw(st.integers(0, 20)) == 0:
            choices.append("cancel")
        if running:
            choices += ["relieve", "release"]
        wide = [job for job in sorted(running) if machine.state.jobs[job].steps and machine.state.may_widen(job)]
        choices += ["widen"] * bool(wide)
        match data.draw(st.sampled_from(choices)):
            case "look":
                request, node = looking.pop(data.draw(st.integers(0, len(looking) - 1)))
                if data.draw(st.booleans()):
                    carry_out(machine(Hit(request, node)))
                else:
                    key, steps = data.draw(st.integers(0, 3)), request not in owners and data.draw(st.booleans())
                    name, travels = f"{request in owners}{steps}{key}", data.draw(st.booleans())
                    carry_out(machine(Missed(request, node, name, 1, 0, steps=steps, travels=travels)))
            case "deliver":
                carry_out(machine(Delivered(*delivering.pop())))
            case "end":
                job = data.draw(st.sampled_from(sorted(running)))
                running.remove(job)
                carry_out(machine(JobEnded(job, data.draw(st.sampled_from(list(Ending))))))
            case "relieve":
                carry_out(machine(Relieve(data.draw(st.sampled_from(sorted(running))))))
            case "widen":
                job = data.draw(st.sampled_from(wide))
                running.remove(job)
                inner = RequestId(f"inner{job}-{machine.state._clock}")
                owners[inner] = job
                carry_out(machine(Submitted(inner, STEPS, owner=job, done=frozenset({0}))))
            case "release":
                carry_out(machine(Released(data.draw(st.sampled_from(sorted(running))))))
            case "cancel":
                carry_out(machine(Cancelled(data.draw(st.sampled_from(requests)))))
    else:
        while unsubmitted:
            submit(unsubmitted.pop())
        while looking or delivering or running:
            while running:
                carry_out(machine(JobEnded(running.pop(), Ending.SUCCESS)))
            while looking:
                carry_out(machine(Hit(*looking.pop())))
            while delivering:
                carry_out(machine(Delivered(*delivering.pop())))
    assert done == set(requests), machine.state.story
    assert not machine.state.jobs


def test_jobs_of_a_client_at_its_own_limit_hold_nobody_up() -> None:
    def gate(cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str:
        return OwnLimit("one at a time") if request == A and running else ""

    state = State(gate, cpus=4)
    state.handle(Submitted(A, tuple(NodeSpec((), 100.0) for _ in range(60))))
    for node in range(60):
        state.handle(Missed(A, node, f"a{node}", 1, 0))
    for number in range(40):
        # Far more than may overtake a job that waits for the machine.
        other = RequestId(f"other{number}")
        state.handle(Submitted(other, (NodeSpec((), 1.0),)))
        (start,) = (i for i in state.handle(Missed(other, 0, f"key{number}", 1, 0)) if isinstance(i, Start))
        assert start.request == other
        state.handle(JobEnded(start.job, Ending.SUCCESS))
    assert state.waiting_for == "one at a time" and type(state.waiting_for) is str


def travelling(node: int, memory_bytes: int = 0) -> Missed:
    return Missed(A, node, f"{A}{node}", 1, memory_bytes, travels=True)


def placed(out: list[Instruction]) -> list[tuple[int, bool]]:
    return [(each.node, each.away) for each in out if isinstance(each, Start)]


def test_jobs_run_away_once_the_slots_here_are_taken() -> None:
    machine = Machine(1, cpus=1, there=1)
    machine(Submitted(A, nodes((), (), (), ())))
    assert placed(machine(travelling(0))) == [(0, False)]
    assert placed(machine(missed(A, 1))) == [], "it does not travel"
    assert placed(machine(travelling(2))) == [(2, True)]
    assert placed(machine(travelling(3))) == [], "the slot there is taken too"
    (there,) = machine.state.table.away
    assert [job.id for job in machine.state.running] == [JobId(1)], "admission counts what runs here alone"
    assert placed(machine(Released(there))) == [(3, True)]


def test_a_job_too_large_for_the_others_waits_for_this_machine() -> None:
    machine = Machine(1, cpus=1, there=5)
    machine(Submitted(A, nodes((), ())))
    machine(travelling(0))
    assert placed(machine(travelling(1, memory_bytes=100))) == []
    assert placed(machine(JobEnded(JobId(1), Ending.SUCCESS))) == [(1, False)]


def test_a_lost_job_runs_here() -> None:
    machine = Machine(1, cpus=1, there=5)
    machine(Submitted(A, nodes((), ())))
    machine(travelling(0))
    machine(travelling(1))
    out = machine(JobEnded(JobId(2), Ending.LOST))
    assert [each for each in out if isinstance(each, Retry)] == [Retry(JobId(2), Ending.LOST)] and not placed(out)
    assert placed(machine(JobEnded(JobId(1), Ending.SUCCESS))) == [(1, False)]


def test_the_requests_own_cap_bounds_both() -> None:
    machine = Machine(1, cpus=1, there=5)
    machine(Submitted(A, nodes((), (), ()), most_jobs=2))
    assert [placed(machine(travelling(node))) for node in range(3)] == [[(0, False)], [(1, True)], []]


def test_a_job_that_has_to_run_alone_waits_for_its_requests_cap_too() -> None:
    machine = Machine(2, cpus=2, there=5)
    machine(Submitted(B, nodes(())))
    machine(Missed(B, 0, "other", 1, 0))
    machine(Submitted(A, nodes((), (), ()), most_jobs=2))
    assert [placed(machine(travelling(node))) for node in range(3)] == [[(0, False)], [(1, True)], []]
    assert placed(machine(JobEnded(JobId(2), Ending.OUT_OF_MEMORY))) == [(2, True)]
    assert placed(machine(JobEnded(JobId(1), Ending.SUCCESS))) == [], "two run away"
    assert placed(machine(JobEnded(JobId(3), Ending.SUCCESS))) == [(0, False)]


def test_a_cancelled_job_is_killed_there_too() -> None:
    machine = Machine(1, cpus=1, there=5)
    machine(Submitted(A, nodes((), ())))
    machine(travelling(0))
    machine(travelling(1))
    kills = [each.job for each in machine(Cancelled(A)) if isinstance(each, Kill)]
    assert sorted(kills) == [JobId(1), JobId(2)]
    machine(JobEnded(JobId(2), Ending.LOST))
    machine(JobEnded(JobId(1), Ending.KILLED))
    assert not machine.state.jobs


def test_a_plan_that_waits_for_itself_is_not_taken_in() -> None:
    machine = Machine()
    machine(Submitted(A, nodes(())))
    with pytest.raises(PlanCycle):
        machine(Submitted(B, nodes((1,), (0,))))
    assert list(machine.state.requests) == [A]
    machine(Missed(A, 0, "k", 1, 10))
