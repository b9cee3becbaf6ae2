"""What always holds in the state machine between two events."""

from __future__ import annotations

from buildd.state.machine import State
from buildd.state.nodes import ENDED, JobState, NodeState


def check(state: State) -> None:
    """Raises AssertionError, with the story, where something that must always hold does not."""
    told = state.story
    for asked in state.requests.values():
        assert asked.looking == sum(n.state is NodeState.LOOKING for n in asked.nodes), told
        assert asked.open == sum(n.state not in ENDED for n in asked.nodes) > 0, told
        assert asked.running >= 0, told
        assert asked.running == sum(j.charged == asked.id for j in state.jobs.values()), told
        assert asked.owner is None or state.jobs[asked.owner].within == asked.id, told
        assert not asked.most_jobs or asked.running <= asked.most_jobs, told
        for node in asked.nodes:
            undone = sum(asked.nodes[d].state is not NodeState.DONE for d in node.spec.depends)
            assert node.pending == undone, told
            if node.state not in (NodeState.WAITING, NodeState.SKIPPED):
                assert undone == 0, told
            if node.state is NodeState.ATTACHED:
                assert (asked.id, node.index) in state._job_of(node).followers, told
    held = (JobState.RUNNING, JobState.ENDING)
    tables = {(False, False): state.table.running, (True, False): state.table.spread, (False, True): state.table.away}
    for (spread, away), kept in tables.items():
        alike = {j.id for j in state.jobs.values() if j.state in held and (j.spread, j.away) == (spread, away)}
        assert set(kept) == alike, told
    assert state.table.keeping == sum(j.state is JobState.KEEPING for j in state.jobs.values()), told
    assert state.table.stepped == sum(j.steps for j in state.jobs.values()), told
    assert set(state.table.alone) == {j.id for j in state.jobs.values() if j.alone and j.state is JobState.READY}, told
    for job in state.jobs.values():
        assert bool(job.followers) or job.state in (JobState.ENDING, JobState.KEEPING), told
        assert (job.lead is None) == (job.state in (JobState.READY, JobState.KEEPING)), told
        for request, index in job.followers:
            node = state.requests[request].nodes[index]
            assert node.state is NodeState.ATTACHED and node.job == job.id, told
        if job.state is not JobState.ENDING and not job.final:
            assert state.table.in_flight[job.in_flight_key] == job.id, told
