"""Answers EXPLAIN, and PROVE if nothing is to be traced: which actions would hit, which would run and why.

Does the same look-ups as a build, in the order of the plan's graph; writes nothing outside the store.
"""

from __future__ import annotations

from collections.abc import Callable
from graphlib import TopologicalSorter

from buildd.builds import shared_results
from buildd.builds.active_build import ActiveBuild
from buildd.keys.lookup import Found, Missing
from codegen.plan import Plan, Unwanted
from protocol import messages as m


def answer(build: ActiveBuild, found: list[m.Digest], is_unwanted: Callable[[], bool]) -> None:
    """Say for each action whether it would run, then `Done`; PROVE fails where one would. In a worker thread.

    Args:
        build: the request, with its plan.
        found: gets the keys of the results that are there.
        is_unwanted: whether nobody waits for the answer any more.

    Raises:
        Unwanted: nobody waits for it any more.
    """
    plan = build.plan
    everything = build.request.mode is m.Mode.EXPLAIN
    blocked: dict[str, str] = {}
    would_run = 0
    for index in order(plan):
        if is_unwanted():
            raise Unwanted
        action = plan.actions[index]
        above = next((blocked[path] for path in action.inputs if path in blocked), "")
        if above:
            reasons: tuple[str, ...] = (waits_for(above),)
        else:
            known = shared_results.look(build, index)
            reasons = known.reasons if isinstance(known, Missing) else ()
            if isinstance(known, Found):
                found.append(known.result.key)
        if reasons:
            would_run += 1
            blocked.update({output.path: action.name for output in action.outputs})
        else:
            build.counts.hits += 1
        build.counts.done += 1
        if reasons or everything:
            said = reasons or (f"hit: {build.why_hit(index)}",)
            build.log.append(m.Explained(action=action.name, would_run=bool(reasons), reasons=said))
    build.counts.misses = would_run
    if would_run and not everything:
        build.report.tell_done(m.Outcome.FAILED, message=f"{would_run} of {len(plan.actions)} actions would run")
    else:
        build.report.tell_done(m.Outcome.BUILT)


def waits_for(action: str) -> str:
    """The reason for which an action that reads another one's output would run."""
    return f"an input is made by {action}, which would run"


def order(plan: Plan) -> list[int]:
    """The actions of a plan, each after those that make its inputs."""
    maker = {output.path: i for i, action in enumerate(plan.actions) for output in action.outputs}
    graph = {i: {maker[p] for p in action.inputs if p in maker} for i, action in enumerate(plan.actions)}
    return list(TopologicalSorter(graph).static_order())
