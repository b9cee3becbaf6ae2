"""Plans of watched projects, kept while nothing that they were made of has changed.

Knows files, folders and their stamps, not what a plan says. In doubt it has none: whoever asks makes the plan anew.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from buildd import sweep, uptodate
from buildd.files import listing_stamp
from buildd.stamps import Folder, Stamps
from codegen.plan import Plan
from protocol.messages import Digest, Request

MOST_KEPT = 8
"""Plans of one store. Each holds every action of its project."""
_Names = frozenset[tuple[str, bool, bool]]
"""Names in a folder, with whether each is a file and whether it is a folder; links are followed."""


@dataclass(frozen=True, slots=True)
class _Kept:
    plan: Plan
    stamps: Stamps
    """What was read, and the folders in which a tool could be found first."""
    listings: tuple[tuple[str, _Names], ...]
    """Folders whose names met patterns. Not by their stamps: most editors make a file beside the one they save."""
    sources: tuple[str, ...]
    """Files that only have to be there."""
    searched: tuple[str, ...]


class Plans:
    """Kept plans of one store. Used from worker threads.

    Args:
        sweeper: looks at the stamps of many files.
    """

    def __init__(self, sweeper: sweep.Sweep) -> None:
        self._sweeper = sweeper
        self._kept: dict[tuple[Digest, str, str], _Kept] = {}

    def recall(self, request: Request) -> Plan | None:
        """The plan of a request, if making it now would give the same."""
        name = _name(request)
        kept = self._kept.get(name)
        if kept is None:
            return None
        if self._holds(kept, request):
            return kept.plan
        self._kept.pop(name, None)
        return None

    def keep(self, request: Request, plan: Plan, since_ns: int) -> None:
        """Keep a plan that was just made, if all that it was made of can be told from stamps and names.

        Args:
            since_ns: before anything was read for it, by the file system's clock.
        """
        kept = _kept(request, plan, since_ns)
        if kept is not None:
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[_name(request)] = kept

    def clear(self) -> None:
        self._kept.clear()

    def _holds(self, kept: _Kept, request: Request) -> bool:
        try:
            return (
                _searched(request) == kept.searched
                and kept.stamps.hold(self._sweeper)
                and all(_names(folder) == names for folder, names in kept.listings)
                and all(map(os.path.isfile, kept.sources))
            )
        except OSError:
            return False


def _name(request: Request) -> tuple[Digest, str, str]:
    # What a record leaves out: plans hold the folder as it was spelled, and where the store's profiles are.
    return uptodate.name_of(request), request.project, request.store


def _kept(request: Request, plan: Plan, since_ns: int) -> _Kept | None:
    searched = _searched(request)
    paths: list[bytes] = []
    numbers: list[int] = []
    folders: list[Folder] = []
    listings: dict[str, _Names] = {}
    moved: dict[str, bool] = {}
    try:
        for path in dict.fromkeys((*plan.read, *searched)):
            if not uptodate.held(path, since_ns, moved):
                return None
            try:
                status = os.stat(path)
            except OSError:
                folders.append(Folder(path, 0))  # not there: it must not come
                continue
            if stat.S_ISREG(status.st_mode):
                paths.append(os.fsencode(path))
                numbers += sweep.stamp(paths[-1])
            elif not stat.S_ISDIR(status.st_mode):
                return None
            elif path in searched:
                folders.append(Folder(path, listing_stamp(status)))
            elif all(uptodate.held(link, since_ns, moved) for link in _links(path)):
                listings[path] = _names(path)
            else:
                return None
    except OSError:
        return None
    sources = tuple(path for path in _sources(request, plan) if os.path.dirname(path) not in listings)
    if not all(map(os.path.isfile, sources)):
        return None
    return _Kept(plan, Stamps(paths, sweep.packed(numbers), tuple(folders)), tuple(listings.items()), sources, searched)


def _searched(request: Request) -> tuple[str, ...]:
    """Where another tool, setting or library of a tool would be found first."""
    libraries = request.environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return tuple(dict.fromkeys((*uptodate.searched(request), *(path for path in libraries if path.startswith("/")))))


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
