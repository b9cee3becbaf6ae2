"""The last good build of targets, action by action: actions that an edit left as they were are not looked up.

Knows files, folders and plans. The caller knows which paths were touched, and that no others were: of watched targets
by hints (`watched`), of others by stamps (`last_builds`). Content decides. In doubt nothing is carried over, and
everything is looked up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Product
from buildd.files import sweep
from buildd.files.atomic_write import usable
from buildd.files.digests import Fact, Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import trustworthy
from codegen.plan import Action, Kept, Plan, Recompile
from protocol.messages import RequestId

Seen = tuple[Fact | None, int]
"""The fact that was seen of a file, and when; see `Snapshot`."""
_Names = frozenset[tuple[str, bool, bool, bool]]
"""Names in a folder: whether each is a file, a folder, a link."""


@dataclass(frozen=True, slots=True)
class Base:
    """A good build that has seen everything it depends on."""

    request_id: RequestId
    """A client that has all events of this request knows the result of every action."""
    plan: Plan
    project: str
    able: frozenset[int]
    """The actions whose inputs are all known, and which said nothing."""
    seen: dict[str, Seen]
    """What was seen of every file that those actions read, by the plan's spelling."""
    products: dict[str, Product]
    discovered: dict[str, tuple[str, ...]]
    """Undeclared inputs, by the action's name."""
    folders: dict[str, int]
    """Stamps of the folders whose names mattered, by the folder as spelled."""
    users: dict[str, frozenset[int]]
    """The reverse index: a covered file, absolute -> the actions that read or make it."""
    spellings: dict[str, tuple[str, ...]]
    """Each of those files -> how the plan spells it."""
    others: frozenset[str]
    """Further files that were there: those the plan was made from, and inputs of the other actions. Absolute."""
    dependents: tuple[tuple[int, ...], ...]
    """For each action the actions that read what it makes."""
    names: dict[str, _Names]
    """Covered folders in which a new name may matter, absolute."""
    elsewhere: tuple[list[bytes], bytes, tuple[tuple[str, int], ...]]
    """Files that are not covered, their stamps, and folders that are not covered with theirs."""


@dataclass(frozen=True, slots=True)
class Carry:
    """The actions and files that a request need not look at."""

    base: Base
    actions: frozenset[int]
    again: dict[str, Seen | None]
    """Files that were touched -> what is seen of them now; None where their content is another one."""
    folders: dict[str, int]
    """The base's folders, with new stamps where only those changed and not the names."""


def taken(build: ActiveBuild, covers: Callable[[str], bool], watched_still: Set[str] = frozenset()) -> Base | None:
    """The base that a good build leaves for the next builds; None where too little is known. In a worker thread, after
    everything was written down.

    Args:
        covers: whether the caller will know which files of a folder were touched.
        watched_still: files, absolute, that are known to be covered.
    """
    plan, lookup, snapshot = build.plan, build.inputs.lookup, build.inputs.snapshot
    if build.request.recache or plan.recompile is not Recompile.BY_CONTENT:
        return None
    is_watched = watched_by(snapshot.project, covers)
    outside: dict[str, Fact] = {}
    unknown: set[str] = set()
    watched: set[str] = set()
    seen: dict[str, Seen] = {}

    def sort(path: str) -> None:
        known = snapshot.seen(path)
        if known is None or known[0] is None:
            unknown.add(path)
            return
        absolute = snapshot.absolute(path)
        if absolute in watched_still or is_watched(absolute):
            watched.add(path)
            spellings[absolute] = (*spellings.get(absolute, ()), path)
        elif trustworthy(known[0].stamp, known[1]):
            outside[path] = known[0]
        else:
            unknown.add(path)  # its stamp may not tell another write
            return
        seen[path] = known

    able: set[int] = set()
    users: dict[str, set[int]] = {}
    spellings: dict[str, tuple[str, ...]] = {}
    for index, action in enumerate(plan.actions):
        used = _used(build, index, action)
        if used is None:
            continue
        paths = (*action.inputs, *used)
        made = tuple(output.path for output in action.outputs)
        for path in (*paths, *made):
            if path not in seen and path not in unknown and (path not in build.products or path in made):
                sort(path)
        if unknown.isdisjoint(paths) and unknown.isdisjoint(made):
            able.add(index)
            for path in watched.intersection((*paths, *made)):
                users.setdefault(snapshot.absolute(path), set()).add(index)
    for file in (file for tool in plan.tools for file in tool.files):
        if snapshot.has_seen(file.path):
            sort(file.path)
            if file.path in watched:
                return None  # a compiler that is being developed: everything is built anyway
    if any(file.path in unknown for tool in plan.tools for file in tool.files):
        return None
    names: dict[str, _Names] = {}
    elsewhere: list[tuple[str, int]] = []
    for folder, stamp in lookup.folders.items():
        absolute = _absolute(snapshot.project, folder)
        if is_watched(f"{absolute}/."):
            names[absolute] = _names_in(absolute)
        elif stamp == -1:
            return None
        else:
            elsewhere.append((snapshot.absolute(folder), stamp))
    return Base(
        request_id=build.request.request_id,
        plan=plan,
        project=snapshot.project,
        able=frozenset(able),
        # Hints at a watched file that only other actions read would be ignored.
        seen={path: known for path, known in seen.items() if path not in watched or snapshot.absolute(path) in users},
        products=dict(build.products),
        discovered={action.name: lookup.used_by(action) or () for index, action in _those(plan, able)},
        folders=dict(lookup.folders),
        users={path: frozenset(several) for path, several in users.items()},
        spellings=spellings,
        others=frozenset(
            snapshot.absolute(path) for path in (*plan.read, *(p for action in plan.actions for p in action.inputs))
        ),
        dependents=_dependents(plan),
        names=names,
        elsewhere=(
            [os.fsencode(snapshot.absolute(path)) for path in outside],
            b"".join(sweep.packed(fact.stamp) for fact in outside.values()),
            tuple(elsewhere),
        ),
    )


def _used(build: ActiveBuild, index: int, action: Action) -> tuple[str, ...] | None:
    """The files that an action has read; None where these and its result are not all that the next build needs."""
    if action.uncacheable or action.kept is not Kept.FILES or index in build.noisy:
        return None
    if any(output.path not in build.products for output in action.outputs):
        return None
    if build.inputs.lookup.twins_of(action):
        return None  # their contents do not decide alone
    found = build.inputs.lookup.precompiled_of(action)
    return None if found.present or found.headers else build.inputs.lookup.used_by(action)


def is_whole(base: Base, touched: Iterable[str]) -> bool:
    """Whether none of these paths, touched during the build, is a name that came or went where names matter."""
    return all(
        path in base.users
        or os.path.dirname(path) not in base.names
        or (path in base.others and os.path.isfile(path) and not os.path.islink(path))
        for path in touched
    )


def carry(
    base: Base, touched: Iterable[str], files: Files, sweeper: sweep.Sweep, moved: Iterable[str] = ()
) -> Carry | None:
    """The actions that stand as they did though these paths were touched. In a worker thread.

    Args:
        touched: every path of covered folders that was touched since the base was built; absolute.
        moved: covered folders that names may have come to or gone from, without a path in `touched`.
    """
    paths, stamps, elsewhere = base.elsewhere
    snapshot = Snapshot(files, "/")
    if not sweeper.all_equal(paths, stamps, worth_files=sweep.WORTH_FILES_LOADED):
        return None
    if any(snapshot.folder_stamp(folder) != stamp for folder, stamp in elsewhere):
        return None
    dirty: set[int] = set()
    again: dict[str, Seen | None] = {}
    listed = set(moved)
    for path in touched:
        if os.path.islink(path) or os.path.isdir(path):
            return None
        users = base.users.get(path)
        if users is None:
            listed.add(os.path.dirname(path))
            continue
        looked_ns = files.now_ns()
        fact = files.fact(path)
        for spelled in base.spellings[path]:
            made = base.products.get(spelled)
            before = base.seen[spelled][0]
            stands = fact is not None and before is not None and fact.digest == before.digest
            if stands and (made is None or usable(Path(path), made.executable)):
                again[spelled] = fact, looked_ns
            else:
                dirty |= users
                again[spelled] = None
    folders = dict(base.folders)
    for folder in listed & base.names.keys():
        stamp = snapshot.folder_stamp(folder)  # before its names: it may change again
        if _names_in(folder) != base.names[folder]:
            return None
        folders.update({spelled: stamp for spelled in base.folders if _absolute(base.project, spelled) == folder})
    waiting = [*dirty, *(index for index in range(len(base.plan.actions)) if index not in base.able)]
    others = set(waiting)
    while waiting:
        for index in base.dependents[waiting.pop()]:
            if index not in others:
                others.add(index)
                waiting.append(index)
    return Carry(base, base.able - others, again, folders)


def take_over(build: ActiveBuild, carry: Carry) -> None:
    """Begin a request, whose plan is the base's, with the actions that stand as they did."""
    base, snapshot = carry.base, build.inputs.snapshot
    seen = {path: known for path, known in base.seen.items() if path not in base.products and path not in carry.again}
    seen |= {path: known for path, known in carry.again.items() if known is not None and path not in base.products}
    for index in carry.actions:
        for output in base.plan.actions[index].outputs:
            product = build.products[output.path] = base.products[output.path]
            seen[output.path] = carry.again.get(output.path) or base.seen[output.path]
            snapshot.make(output.path, product.digest)
    snapshot.take_over(seen)
    names = (base.plan.actions[index].name for index in carry.actions)
    build.inputs.lookup.take_over({name: base.discovered[name] for name in names}, carry.folders)
    build.carried = carry.actions
    counts = build.counts
    counts.done = counts.hits = counts.stood = len(carry.actions)


def watched_by(project: str, covers: Callable[[str], bool]) -> Callable[[str], bool]:
    """A function that tells whether a change of a file (absolute) gives a hint.

    It gives none outside of the project, since changes of the folders above are not seen there, and none where a link
    leads to the file or it has another name: the hint would have the other name.
    """
    known: dict[str, bool] = {}

    def is_covered(folder: str) -> bool:
        if folder not in known:
            known[folder] = (
                f"{folder}/".startswith(f"{project}/")
                and covers(folder)
                and os.path.realpath(folder) == folder
                and (folder == project or is_covered(os.path.dirname(folder)))
            )
        return known[folder]

    return lambda path: is_covered(os.path.dirname(path)) and not _has_other_names(path)


def _has_other_names(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1)


def _those(plan: Plan, indices: set[int]) -> Iterable[tuple[int, Action]]:
    return ((index, action) for index, action in enumerate(plan.actions) if index in indices)


def _dependents(plan: Plan) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in plan.actions]
    for index, node in enumerate(plan.makers()):
        for maker in node:
            found[maker].append(index)
    return tuple(map(tuple, found))


def _absolute(project: str, folder: str) -> str:
    return os.path.normpath(os.path.join(project, folder))


def _names_in(folder: str) -> _Names:
    try:
        with os.scandir(folder) as entries:
            return frozenset((e.name, e.is_file(), e.is_dir(), e.is_symlink()) for e in entries)
    except OSError:
        return frozenset()
