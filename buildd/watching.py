"""What the targets of one WATCH request are built of, and whether that is still so.

Content decides: a file that was only touched is no change. Knows files and folders, not where hints come from (`hints`)
nor who is told (`watches`). Everything here runs in worker threads, one call at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from buildd import sweep, uptodate
from buildd.eventlog import RequestLog
from buildd.files import LARGE_BYTES, Files, appeared_since
from buildd.includes import mentioned
from buildd.lessons import Lesson, named_in
from buildd.store import Store
from codegen.plan import Plan
from protocol import messages as m

MOST_NAMED = 50
"""Changed paths that are named."""
MOST_FOLDERS = 1000
"""Of a folder that came, and of a project that cannot be planned: watched for files that may count."""
_PASSING = re.compile(r"\..*|.*~|#.*#|\d+|.*___jb_(?:tmp|old)___|__pycache__|.*\.pyc|compile_commands\.json")
"""Names that editors and tools write in passing: what is new by such a name is nothing that a build waits for."""
_MOST_PARTS = 400
"""Of a path, with all that links on its way put in: links may lead in a circle."""


@dataclass(slots=True)
class Watch:
    """One WATCH request."""

    request: m.Request
    log: RequestLog
    store: Store
    files: Files
    project: str = field(init=False)
    contents: dict[str, m.Digest | None] = field(default_factory=dict)
    """Absolute path of every file that counts -> what the last build saw, or what was told since; None: not there."""
    folders: set[str] = field(default_factory=set)
    """Where those are, and where others would be found first."""
    is_planned: bool = True
    """It is known what the targets are built of: there was a plan."""
    polled: tuple[str, ...] = ()
    unreadable: frozenset[str] = frozenset()
    """Of all watches' folders those whose names this user may not read."""
    _listings: set[str] = field(default_factory=set)
    """Folders in which a new name may count."""
    _others: dict[str, m.Digest | None] = field(default_factory=dict)
    """Files in those that count for nothing yet."""
    _came: set[str] = field(default_factory=set)
    """Folders that came to those, not looked at yet."""
    _narrow: set[str] | None = None
    """What `_listings` was before the project could not be planned any more."""
    _outputs: set[str] = field(default_factory=set)
    _system: tuple[str, ...] = ()
    _failed: bool = False
    """The last build failed: what it would have read next is not known, so every file in the folders may count."""
    _real: dict[str, list[str]] = field(default_factory=dict)
    """What a file is really called -> its names in `contents`, where they differ."""
    _links: set[str] = field(default_factory=set)
    """On the way to those, by their real names."""
    _told: dict[str, float] = field(default_factory=dict)
    """When a change was told last, on the monotonic clock."""
    fresh: set[str] = field(default_factory=set)
    """What was told since the last build began."""
    _stamps: tuple[list[bytes], bytearray] = field(default_factory=lambda: ([], bytearray()))
    _places: dict[str, int] = field(default_factory=dict)
    """Of each file its place in these."""
    _absent: list[str] = field(default_factory=list)
    """Files that are not there."""
    _names: dict[str, frozenset[str]] = field(default_factory=dict)
    """What is in folders that give no events, where new names count."""
    _said: set[str] = field(default_factory=set)
    """Folders of which was told that they may not be read."""

    def __post_init__(self) -> None:
        self.project = os.path.realpath(self.request.project)

    # ---------------------------------------------------------------- what counts

    def begin_with(self, inputs: Iterable[str]) -> None:
        """Take on files, and folders in which new names count, that somebody else builds of."""
        paths = [self._absolute(path) for path in inputs]
        self._listings = {path for path in paths if os.path.isdir(path)}
        self.contents = {path: self._digest(path) for path in paths if path not in self._listings}
        self.settle()

    def begin(self, plan: Plan | None) -> None:
        """Take on what is known before the first build.

        Args:
            plan: None where the project file cannot be planned as it is.
        """
        known: dict[str, None] = {}
        if self.request.file:
            known[os.path.join(self.project, self.request.file)] = None
        if plan is None:
            self.is_planned = False
            self._widen()
        else:
            self._describe(plan)
            known.update(dict.fromkeys(map(self._absolute, named_in(plan, self._absolute))))
            record = uptodate.recorded(self.store, self.request)
            tools = {file.path for tool in plan.tools for file in tool.files}
            if record is not None:
                known.update((p, None) for p in map(os.fsdecode, record.paths) if p not in tools)
                self._listings.update(os.fsdecode(folder) for folder, _ in record.folders)
        self.contents = {path: self._digest(path) for path in known if self._counts(path)}
        self.settle()

    def learn(self, lesson: Lesson, outcome: m.Outcome) -> dict[str, None]:
        """Take on what a build of these targets has seen.

        Returns:
            Files that came since it began to folders of which nobody knew until now that new names count there.
        """
        before = self._listings
        self.is_planned, self._narrow = True, None
        self._describe(lesson.plan)
        if outcome is not m.Outcome.CANCELLED:
            self._failed = outcome is not m.Outcome.BUILT
        self.fresh = {path for path in self.fresh if self._told.get(path, 0.0) > lesson.begun_s}
        found: dict[str, m.Digest | None] = {}
        moved: dict[str, bool] = {}
        for spelled in lesson.read:
            if self._counts(path := self._absolute(spelled)):
                is_newer = self._told.get(path, 0.0) > lesson.begun_s
                if spelled in lesson.seen and not (is_newer and path in self.contents):
                    found[path] = lesson.seen[spelled]
                elif path in self.contents:
                    found[path] = self.contents[path]
                else:
                    found[path] = self._digest_since(path, lesson.started_ns, moved)
        for search, sources in lesson.unknown.items():
            for path in mentioned(map(self._absolute, sources), list(map(self._absolute, search)), self._counts):
                if path not in found and path not in self.contents:
                    found[path] = self._digest_since(path, lesson.started_ns, moved)
        # What a build that failed has not read it would have read without the error.
        is_whole = outcome is m.Outcome.BUILT and lesson.is_whole
        self.contents = found if is_whole else {**self.contents, **found}
        self._listings.update(lesson.folders)
        self.settle()
        came = (path for folder in self._listings - before for path in _files_in(folder))
        return {
            path: None
            for path in came
            if path not in self.contents and self._may_count(path) and appeared_since(path, lesson.started_ns, moved)
        }

    def refused(self) -> None:
        """The project cannot be planned as it is, so any file of it may be what is missing."""
        self._widen()
        self.settle()

    def stood(self) -> None:
        """A build had nothing to do: what is known of the last one that had still holds."""
        self._failed = False
        if self._narrow is not None:
            self._listings, self._narrow = self._narrow, None

    def _widen(self) -> None:
        self._failed = True
        self._narrow = set(self._listings) if self._narrow is None else self._narrow
        self._listings.update(self._folders_below(self.project))

    def _folders_below(self, top: str) -> Iterator[str]:
        """And itself, the nearest first; not those of outputs, nor behind links."""
        made = set(map(os.path.dirname, self._outputs))
        left = deque([top])
        for _ in range(MOST_FOLDERS):
            if not left:
                return
            yield (folder := left.popleft())
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                left += [
                    entry.path
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not _is_passing(entry.name) and entry.path not in made
                ]

    def _describe(self, plan: Plan) -> None:
        # Not normalised by links: that is how the project's own files are spelled.
        made = [output.path for action in plan.actions for output in action.outputs]
        self._outputs = {self._absolute(path) for path in (*made, *(file.path for file in plan.files))}
        named = [folder for tool in plan.tools for name, folder in tool.roots if name != "project"]
        named += [folder for tool in plan.tools for folder in tool.search]
        self._system = tuple(f"{folder.rstrip('/')}/" for folder in dict.fromkeys(named) if folder.startswith("/"))
        self._listings = {path for path in map(self._absolute, plan.read) if os.path.isdir(path)}
        for action in plan.actions:
            self._listings.update(self._absolute(folder) for folder in action.search)

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.project, path))

    def _counts(self, path: str) -> bool:
        """Not what a build makes, nor what belongs to the toolchain or the system."""
        if path in self._outputs:
            return False
        return path.startswith(f"{self.project}/") or not path.startswith(("/usr/", "/proc/", "/sys/", *self._system))

    def settle(self) -> None:
        """Have the folders and stamps that belong to `contents`."""
        self._real.clear()
        self._links.clear()
        folders: set[str] = set()

        def add(folder: str) -> None:
            while folder not in folders:  # up to the project: a folder above may be moved, or a link be turned
                folders.add(folder)
                if folder == self.project or not folder.startswith(f"{self.project}/"):
                    break
                folder = os.path.dirname(folder)

        # What a build makes is no change, but a request that nothing was touched for need not look at it.
        for folder in (*self._listings, *map(os.path.dirname, self._outputs)):
            if self._counts(f"{folder}/"):
                add(folder)
        resolved: dict[str, str] = {}
        for path in self.contents:
            real = _real_path(path, resolved)
            if real != path:
                self._real.setdefault(real, []).append(path)
                add(os.path.dirname(real))
                for link in _links_to(path):
                    if link.startswith(f"{self.project}/"):
                        self._links.add(link)
                        add(os.path.dirname(link))
            add(os.path.dirname(path))
        self.folders = {_existing(folder) for folder in folders}

    def _restamp(self) -> None:
        there = [(path, stamp) for path in self.contents if (stamp := self.files.stamp(path)) is not None]
        packed = sweep.packed([number for _, stamp in there for number in stamp])
        self._stamps = [os.fsencode(path) for path, _ in there], bytearray(packed)
        self._places = {path: place for place, (path, _) in enumerate(there)}
        self._absent = [path for path in self.contents if path not in self._places]

    def _restamp_one(self, path: str) -> None:
        stamp, place = self.files.stamp(path), self._places.get(path)
        if stamp is not None and place is not None:
            size = sweep.FIELDS * 8
            self._stamps[1][size * place : size * (place + 1)] = sweep.packed(stamp)

    # ---------------------------------------------------------------- is it still so?

    def changed(self, paths: Iterable[str]) -> tuple[dict[str, None], bool]:
        """Of paths that were touched, those whose content is another one; and whether folders came or went."""
        found: dict[str, None] = {}
        moved = False
        for path in paths:
            names = [*self._real.get(path, ()), *((path,) if path in self.contents else ())]
            if path in self._links:
                moved = True
            elif not names and (path in self.folders or os.path.isdir(path)):
                # A folder that came or went, or is another one now: whatever is below it is to be looked at.
                moved = True
                names = [name for name in self.contents if name.startswith(f"{path}/")]
                if path == self.project and os.path.isdir(path):
                    found[path] = None  # nobody knows what else is in it now
                elif self._may_have_come(path):
                    self._came.add(path)
                    self._listings.update(self._folders_below(path))
            for name in names:
                self._restamp_one(name)  # before its content: what is written in between is found by the next sweep
                if self._differs(name):
                    found[name] = None
            if not names and self._is_news(path):
                found[path] = None
        return found, moved

    def changed_anywhere(self) -> dict[str, None]:
        """The same of all files, and of folders that came."""
        self._restamp()
        found = dict.fromkeys(path for path in list(self.contents) if self._differs(path))
        came, self._came = self._came, set()
        for top in came:
            for folder in self._folders_below(top):
                if folder not in self._listings:
                    self._came.add(folder)  # only now: nobody has watched it so far
                news = (path for path in _files_in(folder) if path not in self.contents and self._may_count(path))
                found.update(dict.fromkeys(news))
            self._listings.update(self._came)
        return found

    @property
    def expects(self) -> bool:
        """Whether there are folders that are to be watched and looked at."""
        return bool(self._came)

    def unmoved(self) -> bool:
        """Whether every file has its stamp still: a fast look, for changes that gave no event."""
        paths, stamps = self._stamps
        if any(map(os.path.isfile, self._absent)):
            return False
        return sweep.sweep_of(self.store.folder).all_equal(paths, bytes(stamps))

    def came_unseen(self) -> dict[str, None]:
        """What came to or went from folders that give no events, since this was asked last."""
        found: dict[str, None] = {}
        for folder in self._listings.intersection(self.polled):
            names = frozenset(_entries(folder))
            before, self._names[folder] = self._names.get(folder, names), names
            others = (path for path in before ^ names if path not in self.contents and self._may_count(path))
            found.update(dict.fromkeys(others))
        return found

    def tell(self, found: Iterable[str]) -> None:
        names = [os.path.relpath(p, self.project) if p.startswith(f"{self.project}/") else p for p in found]
        if names:
            names.sort()
            self.log.append(m.Changed(paths=tuple(names[:MOST_NAMED]), more=max(0, len(names) - MOST_NAMED)))

    def tell_watching(self) -> None:
        polled = tuple(folder for folder in self.polled if folder in self.folders)
        self.log.append(m.Watching(files=len(self.contents), folders=len(self.folders), polled=polled))
        for folder in sorted(self.folders & self.unreadable - self._said):
            self._said.add(folder)
            words = f"{folder} may not be read: its files are looked at every few seconds, and new ones are not noticed"
            self.log.append(m.Notice(text=f"{words} (chmod u+r makes it watched)", severity=m.Severity.WARNING))

    def _digest(self, path: str) -> m.Digest | None:
        fact = self.files.fact(path)
        return None if fact is None else fact.digest

    def _digest_since(self, path: str, since_ns: int, moved: dict[str, bool]) -> m.Digest | None:
        """What a build that began then has read, though nobody looked; none where that is not sure: told as a change,
        it is read again.

        Args:
            moved: as in `appeared_since`.
        """
        return None if appeared_since(path, since_ns, moved) else self._digest(path)

    def _differs(self, path: str) -> bool:
        digest = self._digest(path)
        if digest == self.contents[path]:
            return False
        self.contents[path] = digest
        self._told[path] = time.monotonic()
        self.fresh.add(path)
        return True

    def _is_news(self, path: str) -> bool:
        """Whether a file that counted for nothing may count now: it is new, or any could be what is missing."""
        if path in self.contents or not self._may_count(path):
            return False
        stamp = self.files.stamp(path)
        is_text = stamp is not None and stamp.size <= LARGE_BYTES  # nobody reads gigabytes that count for nothing yet
        before, digest = self._others.get(path, ""), self._digest(path) if is_text else stamp and m.Digest(str(stamp))
        self._others[path] = digest
        if digest is None:
            return before not in ("", None)
        return digest != before and (self._failed or before in ("", None))

    def _may_have_come(self, folder: str) -> bool:
        """Whether files of a folder may count from now on: it is new, or another one under a name that counts."""
        is_near = f"{folder}/".startswith(f"{self.project}/") or os.path.dirname(folder) in self._listings
        return is_near and os.path.isdir(folder) and (folder in self.folders or self._may_count(folder))

    def _may_count(self, path: str) -> bool:
        is_place = self._failed or os.path.dirname(path) in self._listings
        return is_place and self._counts(path) and not _is_passing(os.path.basename(path))


def _is_passing(name: str) -> bool:
    return _PASSING.fullmatch(name) is not None


def _files_in(folder: str) -> list[str]:
    return [path for path in _entries(folder) if os.path.isfile(path)]


def _entries(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def _real_path(path: str, resolved: dict[str, str]) -> str:
    """As os.path.realpath, for many files of few folders.

    Args:
        resolved: folders so far.
    """
    folder, name = os.path.split(path)
    if os.path.islink(path):
        return os.path.realpath(path)
    if folder not in resolved:
        resolved[folder] = os.path.realpath(folder)
    return os.path.join(resolved[folder], name)


def _links_to(path: str) -> Iterator[str]:
    """The links on the way to what a path means, each by its real name."""
    at, left = "/", path.split("/")
    for _ in range(_MOST_PARTS):
        while left and left[0] in ("", ".", ".."):
            at = os.path.dirname(at) if left.pop(0) == ".." else at
        if not left:
            return
        step = os.path.join(at, left.pop(0))
        try:
            target = os.readlink(step)
        except OSError:
            at = step
            continue
        yield step
        at = "/" if target.startswith("/") else at
        left = [*target.split("/"), *left]


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that is there."""
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    return folder
