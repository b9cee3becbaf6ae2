"""The facts of a build: its view of its files, for the watches of its targets.

The facts are taken once. Each look at a file adds to the build's snapshot, and a file that is first looked at after the
build may differ from the file that the build has read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from buildd.builds.active_build import ActiveBuild
from codegen.plan import Action, Plan
from protocol.messages import Digest


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """Facts of one build. Paths but for `folders` are spelled as in its plan and its look-ups."""

    plan: Plan
    begun_s: float
    """On the monotonic clock; no file was looked at before."""
    started_ns: int
    """The same by the file system's clock."""
    read: Mapping[str, None]
    """All files that the build depends on, as far as is known."""
    seen: Mapping[str, Digest | None]
    """Their digests; None: absent. Without files whose content at the time of the build is not known."""
    is_whole: bool
    """Whether it is known for every action what it read."""
    unknown: Mapping[tuple[str, ...], tuple[str, ...]]
    """Search path -> sources of the actions for which that is not known."""
    folders: frozenset[str]
    """Absolute paths of folders in which another file would have been found first."""


def facts_of(build: ActiveBuild) -> BuildFacts:
    """The facts of a build. In a worker thread, before anything else looks at its snapshot."""
    plan, lookup, snapshot = build.plan, build.inputs.lookup, build.inputs.snapshot
    read = dict.fromkeys(named_in(plan, snapshot.absolute))
    # Inputs of a joined job, of one that failed, of one whose inputs changed under it: the job began before the
    # snapshot last looked, or what it read was not compared with the snapshot.
    unsure: set[str] = set()
    unfiled: list[tuple[Action, tuple[str, ...]]] = []
    unknown: dict[tuple[str, ...], list[str]] = {}
    for action in plan.actions:
        used = lookup.used_by(action)
        if used is None:
            unsure.update(action.inputs)
            if action.name in build.inputs.was_read:
                used = _undeclared(build, action)
                unsure.update(used)
                unfiled.append((action, used))
            else:
                unknown.setdefault((*action.search, *build.tool(action).search), []).extend(action.inputs)
        read.update(dict.fromkeys(used or ()))
    seen = {path: snapshot.digest(path) for path in read if path not in unsure and snapshot.has_seen(path)}
    folders = {*lookup.folders, *build.inputs.searched}
    for action, used in unfiled:  # last: it looks
        folders.update(lookup.around(action, build.tool(action), used))
    return BuildFacts(
        plan,
        build.begun_s,
        build.started_ns,
        read,
        seen,
        not unknown,
        {search: tuple(sources) for search, sources in unknown.items()},
        frozenset(os.path.normpath(snapshot.absolute(folder)) for folder in folders),
    )


def named_in(plan: Plan, absolute: Callable[[str], str]) -> Iterator[str]:
    """The files that a plan names: those it was made from, and inputs of its actions."""
    yield from (path for path in plan.read if not os.path.isdir(absolute(path)))
    for action in plan.actions:
        yield from action.inputs


def _undeclared(build: ActiveBuild, action: Action) -> tuple[str, ...]:
    """The undeclared files that a run of an action read, by the names that its request has for files."""
    mine = tuple(f"{os.path.realpath(folder)}/" for folder in build.store.scratch_folders())
    names = dict.fromkeys(map(build.inputs.lookup.normal, build.inputs.was_read[action.name]))
    return tuple(
        name
        for name in names
        if name not in action.inputs and not build.inputs.snapshot.absolute(name).startswith(mine)
    )
