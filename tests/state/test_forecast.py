"""What is left of a request: hits are no work, jobs are placed as the machine starts them."""

from __future__ import annotations

import random

import pytest

from buildd.state import forecast
from buildd.state.events import NodeSpec, Submitted
from buildd.state.forecast import Pace, open_runs, remaining_s
from buildd.state.nodes import Node, NodeState, graph_of
from protocol.messages import JobId, RequestId


def graph(*specs: tuple[float, tuple[int, ...]]) -> list[Node]:
    """Nodes from (expected seconds, what they depend on)."""
    submitted = Submitted(RequestId("r"), tuple(NodeSpec(depends, wall_s) for wall_s, depends in specs))
    return graph_of(submitted).nodes


def attach(*nodes: Node) -> None:
    for node in nodes:
        node.state, node.job = NodeState.ATTACHED, JobId(node.index + 1)


def test_hits_are_no_work_and_what_stands_behind_a_run_is() -> None:
    nodes = graph((3.0, ()), (4.0, ()), (5.0, ()), (1.0, (0, 1)), (2.0, (2,)))
    assert open_runs(nodes, set()) == set(), "nobody knows yet"
    nodes[1].state = nodes[2].state = NodeState.DONE
    attach(nodes[0])
    runs = open_runs(nodes, set())
    assert runs == {0, 3}
    assert remaining_s(nodes, runs, {0: 1.0}, 8, 1.0) == pytest.approx(3.0)
    # Between the end of one and the look-up of the next nothing is forgotten.
    nodes[0].state = NodeState.DONE
    assert open_runs(nodes, runs) == {3}
    nodes[3].state = NodeState.DONE
    assert open_runs(nodes, {3}) == set()


def test_the_longest_path_begins_first() -> None:
    nodes = graph((1.0, ()), (1.0, ()), (1.0, ()), (3.0, ()), (2.0, (3,)))
    attach(*nodes[:4])
    runs = open_runs(nodes, set())
    assert runs == {0, 1, 2, 3, 4}
    assert remaining_s(nodes, runs, {}, 2, 1.0) == pytest.approx(5.0)
    assert remaining_s(nodes, runs, {}, 1, 1.0) == pytest.approx(8.0)
    assert remaining_s(nodes, runs, {}, 2, 2.0) == pytest.approx(10.0), "jobs take twice as long today"


def test_a_job_that_takes_longer_than_it_did_is_not_about_to_end() -> None:
    nodes = graph((2.0, ()))
    attach(*nodes)
    assert remaining_s(nodes, {0}, {0: 10.0}, 1, 1.0) == pytest.approx(1.0)


def test_many_jobs_are_forecast_nearly_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(7)
    specs: list[tuple[float, tuple[int, ...]]] = [(dice.uniform(0.5, 3), ()) for _ in range(400)]
    nodes = graph(*specs, (1.0, tuple(range(400))))
    attach(*nodes[:400])
    runs = open_runs(nodes, set())
    exact = remaining_s(nodes, runs, {}, 16, 1.0)
    monkeypatch.setattr(forecast, "MOST_PLACED", 100)
    assert remaining_s(nodes, runs, {}, 16, 1.0) == pytest.approx(exact, rel=0.1)


def test_the_pace_follows_what_is_seen() -> None:
    pace = Pace()
    assert pace.factor == 1.0
    pace.learn(1.0, 2.0)
    assert 1.0 < pace.factor < 1.5, "one job says little"
    for _ in range(50):
        pace.learn(1.0, 2.0)
    assert pace.factor == pytest.approx(2.0, rel=0.05)
    pace.learn(0.0, 5.0)
    assert pace.jobs == 51, "nothing was expected of it"
