"""Plans, kept while the files that they were made from are unchanged. Those of watched projects stay in memory.

Knows files, folders and their stamps, not what a plan says. In doubt it has no plan, and the caller makes one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from buildd.builds import up_to_date
from buildd.files import sweep
from buildd.files.stamp import listing_stamp
from buildd.files.stamp_set import FolderStamp, Stamps
from codegen.compilers.closure import loading_folders
from codegen.plan import Plan
from protocol.messages import Digest, Request

MOST_KEPT = 8
"""Plans of one store. Each holds every action of its project."""
_Names = frozenset[tuple[str, bool, bool]]
"""Names in a folder, with whether each is a file and whether it is a folder; links are followed."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan, and what tells that making it again would give the same."""

    plan: Plan
    stamps: Stamps
    """Stamps of the files that were read, and of folders in which another tool would be found first."""
    listings: tuple[tuple[str, _Names], ...]
    """Folders whose names met patterns. Not by their stamps: most editors make a file beside the one that they save."""
    sources: tuple[str, ...]
    """Files that only have to exist."""
    searched: tuple[str, ...]

    def holds(self, request: Request, sweeper: sweep.Sweep) -> bool:
        """Whether making the plan now would give the same. In a worker thread."""
        try:
            return (
                _searched(request) == self.searched
                and self.stamps.hold(sweeper)
                and all(_names(folder) == names for folder, names in self.listings)
                and all(map(os.path.isfile, self.sources))
            )
        except OSError:
            return False


class Plans:
    """Kept plans of one store. Used from worker threads.

    Args:
        sweeper: looks at the stamps of many files.
    """

    def __init__(self, sweeper: sweep.Sweep) -> None:
        self._sweeper = sweeper
        self._kept: dict[tuple[Digest, str, str], KeptPlan] = {}

    def recall(self, request: Request) -> Plan | None:
        """The kept plan of a request, if making it now would give the same."""
        name = name_of(request)
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.holds(request, self._sweeper):
            return kept.plan
        self._kept.pop(name, None)
        return None

    def keep(self, request: Request, plan: Plan, since_ns: int) -> None:
        """Keep a plan that was just made, if stamps and names tell every change of its inputs.

        Args:
            since_ns: a moment before anything was read for it, by the file system's clock.
        """
        kept = kept_plan(request, plan, since_ns)
        if kept is not None:
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[name_of(request)] = kept

    def clear(self) -> None:
        self._kept.clear()


def name_of(request: Request) -> tuple[Digest, str, str]:
    """Everything in a request that its plan depends on."""
    # With what a record's name leaves out: plans hold the folder as it was spelled, and where the store's profiles are.
    return up_to_date.name_of(request), request.project, request.store


def kept_plan(request: Request, plan: Plan, since_ns: int) -> KeptPlan | None:
    """A plan to be kept; None where stamps and names do not tell every change of its inputs since a moment.

    Args:
        since_ns: the moment, before anything was read for it, by the file system's clock.
    """
    if plan.native:
        return None
    searched = _searched(request)
    paths: list[bytes] = []
    numbers: list[int] = []
    folders: list[FolderStamp] = []
    listings: dict[str, _Names] = {}
    moved: dict[str, bool] = {}
    read = dict.fromkeys((*plan.read, *searched))
    try:
        for path in read:
            try:
                status = os.stat(path)
            except OSError:
                folders.append(FolderStamp(path, 0))  # not there: it must not come
                continue
            if stat.S_ISREG(status.st_mode):
                paths.append(os.fsencode(path))
                numbers += sweep.stamp(paths[-1])
            elif not stat.S_ISDIR(status.st_mode):
                return None
            elif path in searched:
                folders.append(FolderStamp(path, listing_stamp(status)))
            elif all(up_to_date.held(link, since_ns, moved) for link in _links(path)):
                listings[path] = _names(path)
            else:
                return None
    except OSError:
        return None
    # Asked after the stamps were taken: a file may be changed between the two.
    if not all(up_to_date.held(path, since_ns, moved) for path in read):
        return None
    sources = tuple(path for path in _sources(request, plan) if os.path.dirname(path) not in listings)
    if not all(map(os.path.isfile, sources)):
        return None
    return KeptPlan(
        plan, Stamps(paths, sweep.packed(numbers), tuple(folders)), tuple(listings.items()), sources, searched
    )


def _searched(request: Request) -> tuple[str, ...]:
    """Places where another tool, setting or library would be found first."""
    libraries = loading_folders(tuple(request.environment.items()))
    return tuple(dict.fromkeys((*up_to_date.searched(request), *libraries)))


def _sources(request: Request, plan: Plan) -> Iterable[str]:
    made = {output.path for action in plan.actions for output in action.outputs}
    made.update(file.path for file in plan.files)
    inputs = dict.fromkeys(path for action in plan.actions for path in action.inputs)
    return (os.path.join(request.project, path) for path in inputs if path not in made)


def _names(folder: str) -> _Names:
    with os.scandir(folder) as entries:
        return frozenset((entry.name, entry.is_file(), entry.is_dir()) for entry in entries)


def _links(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.path for entry in entries if entry.is_symlink())
