"""Answers EXPLAIN, and PROVE if nothing is to be traced: which actions would hit, which would run and why.

Does the same look-ups as a build, in the order of the plan's graph; writes nothing outside the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from graphlib import TopologicalSorter

from buildd.builds import shared_results
from buildd.builds.active_build import ActiveBuild
from buildd.builds.includes import mentioned
from buildd.keys.lookup import Found, Missing
from codegen.errors import RequestError, nearest
from codegen.plan import Action, Plan, Unwanted
from protocol import messages as m

_NAMED = 5
"""Changed sources that are named."""


def answer(build: ActiveBuild, found: list[m.Digest], is_unwanted: Callable[[], bool]) -> None:
    """Say for each action whether it would run, then `Done`; PROVE fails where one would. In a worker thread.

    Args:
        build: the request, with its plan.
        found: gets the keys of the results that are there.
        is_unwanted: whether nobody waits for the answer any more.

    Raises:
        Unwanted: nobody waits for it any more.
        RequestError: it asks about a file or an action that there is not.
    """
    plan = build.plan
    everything = build.request.mode is m.Mode.EXPLAIN
    asked = Asked(build) if everything and build.request.inputs else None
    blocked: dict[str, str] = {}
    changed: dict[str, Action] = {}
    would_run = 0
    told: set[str] = set()
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
        is_told = asked is None or above in told or asked.concerns(plan.actions[index])
        if is_told:
            told.add(action.name)
        if reasons:
            would_run += is_told
            blocked.update({output.path: action.name for output in action.outputs})
            changed.update((path, action) for path in _changed(action, reasons))
        else:
            build.counts.hits += is_told
        build.counts.done += 1
        if is_told and (reasons or everything):
            said = reasons or (f"hit: {build.why_hit(index)}",)
            build.log.append(m.Explained(action=action.name, would_run=bool(reasons), reasons=said))
    message = ""
    if asked is not None and not told:
        asked.check()
        message = asked.unread(changed)
    build.counts.misses = would_run
    if would_run and not everything:
        build.report.tell_done(m.Outcome.FAILED, message=f"{would_run} of {len(plan.actions)} actions would run")
    else:
        build.report.tell_done(m.Outcome.BUILT, message=message)


def _changed(action: Action, reasons: tuple[str, ...]) -> Iterable[str]:
    """The inputs of an action that changed since it was last built; its source if it was never built."""
    if reasons[0].startswith("never built"):
        return action.inputs[:1]
    return [path for path in action.inputs if any(reason.startswith(f"input {path}: ") for reason in reasons)]


class Asked:
    """The actions that an EXPLAIN request is about: those with one of the names in its `inputs`, and those that read or
    make a file, or a file in a folder, of such a name."""

    def __init__(self, build: ActiveBuild) -> None:
        self._build = build
        given = build.request.inputs
        self._names = {*given, *map(build.inputs.lookup.normal, given)}
        self._folders = tuple(f"{name.rstrip('/')}/" for name in self._names)

    def concerns(self, action: Action) -> bool:
        """Whether the request is about an action that was just looked up, or waits for one that would run."""
        lookup = self._build.inputs.lookup
        made = (output.path for output in action.outputs)
        read = (*action.inputs, *lookup.last_used(action, self._build.tool(action)))
        return action.name in self._names or any(
            path in self._names or path.startswith(self._folders) for path in (*made, *map(lookup.normal, read))
        )

    def unread(self, changed: Mapping[str, Action]) -> str:
        """What is known of a file that no action has read; empty if no source that changed includes it.

        Args:
            changed: sources that changed since their last build, each with the action that compiles it.
        """
        absolute, name = self._build.inputs.snapshot.absolute, self._build.request.inputs[0]
        meant = set(map(absolute, self._names))
        inside = f"{self._build.project}/"
        by = [
            source
            for source, action in changed.items()
            if not meant.isdisjoint(
                mentioned([absolute(source)], list(map(absolute, action.search)), lambda path: path.startswith(inside))
            )
        ]
        more = f" and {len(by) - _NAMED} more" if len(by) > _NAMED else ""
        words = f"no build has read {name} yet; new or changed sources that include it"
        return f"{words}: {', '.join(by[:_NAMED])}{more}" if by else ""

    def check(self) -> None:
        """Raises RequestError if there is no file of a name either."""
        given, plan = self._build.request.inputs, self._build.plan
        if not any(os.path.lexists(self._build.inputs.snapshot.absolute(name)) for name in given):
            near = nearest(given[0], [*plan.targets, *(action.name for action in plan.actions)])
            raise RequestError(
                "unknown-target",
                f'there is no target, action or file "{given[0]}"{near}',
                file=self._build.request.file,
                next_step=f"name a target ({', '.join(sorted(plan.targets))}); buildd explain lists the actions",
            )


def waits_for(action: str) -> str:
    """The reason for which an action that reads another one's output would run."""
    return f"an input is made by {action}, which would run"


def order(plan: Plan) -> list[int]:
    """The actions of a plan, each after those that make its inputs."""
    maker = {output.path: i for i, action in enumerate(plan.actions) for output in action.outputs}
    graph = {i: {maker[p] for p in action.inputs if p in maker} for i, action in enumerate(plan.actions)}
    return list(TopologicalSorter(graph).static_order())
