"""What a build has seen of its files, for all who watch its targets.

Taken once: to look is to have seen, and what a build's snapshot looks at after the build was not what the build read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from buildd.building import Building
from codegen.plan import Action, Plan
from protocol.messages import Digest


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of one build. Paths are spelled as in its plan and its look-ups, but for folders."""

    plan: Plan
    begun_s: float
    """On the monotonic clock; no file was looked at before."""
    started_ns: int
    """The same by the file system's clock."""
    read: Mapping[str, None]
    """All files that it stands on, as far as is known."""
    seen: Mapping[str, Digest | None]
    """What was in those; None: not there. Without those of which nobody can say what the build has read."""
    is_whole: bool
    """It is known of every action what it read."""
    unknown: Mapping[tuple[str, ...], tuple[str, ...]]
    """Search path -> sources of actions of which that is not known."""
    folders: frozenset[str]
    """Absolute: where another file would have been found first."""


def lesson_of(building: Building) -> Lesson:
    """What a build has seen. In a worker thread, before anything else looks at its snapshot."""
    plan, lookup, snapshot = building.plan, building.lookup, building.snapshot
    read = dict.fromkeys(named_in(plan, snapshot.absolute))
    # A joined job, one that failed, one whose inputs changed under it: it began before the snapshot last looked, or
    # nobody compared what it read with that.
    unsure: set[str] = set()
    unfiled: list[tuple[Action, tuple[str, ...]]] = []
    unknown: dict[tuple[str, ...], list[str]] = {}
    for action in plan.actions:
        used = lookup.used_by(action)
        if used is None:
            unsure.update(action.inputs)
            if action.name in building.was_read:
                used = _undeclared(building, action)
                unsure.update(used)
                unfiled.append((action, used))
            else:
                unknown.setdefault((*action.search, *building.tool(action).search), []).extend(action.inputs)
        read.update(dict.fromkeys(used or ()))
    seen = {path: snapshot.digest(path) for path in read if path not in unsure and snapshot.has_seen(path)}
    folders = {*lookup.folders, *building.searched}
    for action, used in unfiled:  # last: it looks
        folders.update(lookup.around(action, building.tool(action), used))
    return Lesson(
        plan,
        building.begun_s,
        building.started_ns,
        read,
        seen,
        not unknown,
        {search: tuple(sources) for search, sources in unknown.items()},
        frozenset(os.path.normpath(snapshot.absolute(folder)) for folder in folders),
    )


def named_in(plan: Plan, absolute: Callable[[str], str]) -> Iterator[str]:
    """The files that a plan names: what it was made of, and inputs of its actions."""
    yield from (path for path in plan.read if not os.path.isdir(absolute(path)))
    for action in plan.actions:
        yield from action.inputs


def _undeclared(building: Building, action: Action) -> tuple[str, ...]:
    """What a run of an action read that is not declared, by the names that its request has for files."""
    mine = os.path.realpath(building.store.scratch_folder()) + "/"
    names = dict.fromkeys(map(building.lookup.normal, building.was_read[action.name]))
    return tuple(
        name for name in names if name not in action.inputs and not building.snapshot.absolute(name).startswith(mine)
    )
