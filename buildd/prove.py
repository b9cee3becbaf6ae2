"""Answers without running anything: what would hit, what would run and why.

The same look-ups as a build, in the order of the plan's graph; nothing is written outside the store.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

from buildd.building import Building
from buildd.lookup import Found, Missing
from codegen.plan import Plan
from protocol import messages as m


def answer(building: Building, found: list[m.Digest]) -> None:
    """Say for each action whether it would run, then `Done`; PROVE fails where one would. In a worker thread.

    Args:
        building: the request, with its plan.
        found: gets the keys of the results that are there.
    """
    plan = building.plan
    everything = building.request.mode is m.Mode.EXPLAIN
    blocked: dict[str, str] = {}
    would_run = 0
    for index in order(plan):
        action = plan.actions[index]
        waits_for = next((blocked[path] for path in action.inputs if path in blocked), "")
        if waits_for:
            reasons: tuple[str, ...] = (f"an input is made by {waits_for}, which would run",)
        else:
            known = building.look(index, fresh=False)
            reasons = known.reasons if isinstance(known, Missing) else ()
            if isinstance(known, Found):
                found.append(known.result.key)
        if reasons:
            would_run += 1
            blocked.update({output.path: action.name for output in action.outputs})
        else:
            building.counts.hits += 1
        building.counts.done += 1
        if reasons or everything:
            building.log.append(
                m.Explained(action=action.name, would_run=bool(reasons), reasons=reasons or ("hit: same inputs",))
            )
    building.counts.misses = would_run
    if would_run and not everything:
        building.tell_done(m.Outcome.FAILED, message=f"{would_run} of {len(plan.actions)} actions would run")
    else:
        building.tell_done(m.Outcome.BUILT)


def order(plan: Plan) -> list[int]:
    """The actions of a plan, each after those that make its inputs."""
    maker = {output.path: i for i, action in enumerate(plan.actions) for output in action.outputs}
    graph = {i: {maker[p] for p in action.inputs if p in maker} for i, action in enumerate(plan.actions)}
    return list(TopologicalSorter(graph).static_order())
