"""One WATCH request: the files that its targets are built of, and whether their contents are still the same.

Content decides: a file that was only touched is no change. Knows files and folders; `folder_events` knows where hints
come from, `watches` when clients are told. Everything here runs in worker threads, one call at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from buildd.builds import up_to_date
from buildd.builds.event_log import RequestLog
from buildd.builds.includes import mentioned
from buildd.files.digests import LARGE_BYTES, Files
from buildd.files.stamp import appeared_since
from buildd.store.store import Store
from buildd.watch.build_facts import BuildFacts, named_in
from buildd.watch.file_stamps import FileStamps
from buildd.watch.paths import entries, existing, files_in, is_passing, links_to, real_path
from codegen.plan import Plan
from protocol import messages as m

MOST_NAMED = 50
"""Changed paths that one event names."""
MOST_FOLDERS = 1000
"""Folders that are watched for files that may count, in a folder that came or a project that cannot be planned."""


@dataclass(slots=True)
class Watch:
    """One WATCH request."""

    request: m.Request
    log: RequestLog
    store: Store
    files: Files
    project: str = field(init=False)
    contents: dict[str, m.Digest | None] = field(default_factory=dict)
    """Absolute path of every file that counts -> its digest in the last build, or in an event since; None: absent."""
    folders: set[str] = field(default_factory=set)
    """Folders of those files, and folders in which other files would be found first."""
    is_planned: bool = True
    """There was a plan, so it is known what the targets are built of."""
    polled: tuple[str, ...] = ()
    unreadable: frozenset[str] = frozenset()
    """Folders of all watches whose names this user may not read."""
    _listings: set[str] = field(default_factory=set)
    """Folders in which a new name may count."""
    _others: dict[str, m.Digest | None] = field(default_factory=dict)
    """Files in those folders that count for nothing yet, with their digests."""
    _came: set[str] = field(default_factory=set)
    """Folders that came to those, and that were not looked at yet."""
    _narrow: set[str] | None = None
    """`_listings` as it was before the project could not be planned any more."""
    _outputs: set[str] = field(default_factory=set)
    _expected: Plan | None = None
    """The plan whose outputs came to `_outputs` last."""
    _system: tuple[str, ...] = ()
    _failed: bool = False
    """The last build failed: it is not known what it would have read next, so every file in the folders may count."""
    _real: dict[str, list[str]] = field(default_factory=dict)
    """Real name of a file -> its names in `contents`, where they differ."""
    _links: set[str] = field(default_factory=set)
    """Links on the way to those files, by their real names."""
    _told: dict[str, float] = field(default_factory=dict)
    """Path -> when its last change was told, on the monotonic clock."""
    fresh: set[str] = field(default_factory=set)
    """Files whose changes were told since the last build began."""
    _stamps: FileStamps = field(init=False)
    _names: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names in folders that give no events, where new names count."""
    _said: set[str] = field(default_factory=set)
    """Unreadable folders that the client was told of."""

    def __post_init__(self) -> None:
        self.project = os.path.realpath(self.request.project)
        self._stamps = FileStamps(self.store, self.files)

    # ---------------------------------------------------------------- what counts

    def begin_with_inputs(self, inputs: Iterable[str]) -> None:
        """Count files, and folders in which new names count, that another build tool reads."""
        paths = [self._absolute(path) for path in inputs]
        self._listings = {path for path in paths if os.path.isdir(path)}
        self.contents = {path: self._digest(path) for path in paths if path not in self._listings}
        self.settle()

    def begin_with_plan(self, plan: Plan | None) -> None:
        """Count the files that are known before the first build.

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
            record = up_to_date.recorded(self.store, self.request)
            tools = {file.path for tool in plan.tools for file in tool.files}
            if record is not None:
                known.update((p, None) for p in map(os.fsdecode, record.paths) if p not in tools)
                self._listings.update(os.fsdecode(folder) for folder, _ in record.folders)
        self.contents = {path: self._digest(path) for path in known if self._counts(path)}
        self.settle()

    def expect(self, plan: Plan) -> None:
        """Count nothing that a build which begins now will make: a source that came makes an object that came."""
        if plan is not self._expected:
            self._expected = plan
            self._outputs |= self._made_by(plan)

    def learn(self, facts: BuildFacts, outcome: m.Outcome) -> dict[str, None]:
        """Count the files that a build of these targets has seen.

        Returns:
            Files that came, since the build began, to folders in which new names count only from now on.
        """
        before = self._listings
        self.is_planned, self._narrow = True, None
        self._describe(facts.plan)
        if outcome is not m.Outcome.CANCELLED:
            self._failed = outcome is not m.Outcome.BUILT
        self.fresh = {path for path in self.fresh if self._told.get(path, 0.0) > facts.begun_s}
        found: dict[str, m.Digest | None] = {}
        moved: dict[str, bool] = {}
        for spelled in facts.read:
            if self._counts(path := self._absolute(spelled)):
                is_newer = self._told.get(path, 0.0) > facts.begun_s
                if spelled in facts.seen and not (is_newer and path in self.contents):
                    found[path] = facts.seen[spelled]
                elif path in self.contents:
                    found[path] = self.contents[path]
                else:
                    found[path] = self._digest_since(path, facts.started_ns, moved)
        for search, sources in facts.unknown.items():
            for path in mentioned(map(self._absolute, sources), list(map(self._absolute, search)), self._counts):
                if path not in found and path not in self.contents:
                    found[path] = self._digest_since(path, facts.started_ns, moved)
        # A build that failed would have read further files without the error.
        is_whole = outcome is m.Outcome.BUILT and facts.is_whole
        self.contents = found if is_whole else {**self.contents, **found}
        self._listings.update(facts.folders)
        self.settle()
        came = (path for folder in self._listings - before for path in files_in(folder))
        return {
            path: None
            for path in came
            if path not in self.contents and self._may_count(path) and appeared_since(path, facts.started_ns, moved)
        }

    def refused(self) -> None:
        """The project cannot be planned as it is: count any file of it, one may be what is missing."""
        self._widen()
        self.settle()

    def stood(self) -> None:
        """A build had nothing to do: the facts of the last build that had something to do still hold."""
        self._failed = False
        if self._narrow is not None:
            self._listings, self._narrow = self._narrow, None

    def _widen(self) -> None:
        self._failed = True
        self._narrow = set(self._listings) if self._narrow is None else self._narrow
        self._listings.update(self._folders_below(self.project))

    def _folders_below(self, top: str) -> Iterator[str]:
        """The folders below one, and the folder itself, nearest first; without folders of outputs and linked ones."""
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
                    if entry.is_dir(follow_symlinks=False) and not is_passing(entry.name) and entry.path not in made
                ]

    def _made_by(self, plan: Plan) -> set[str]:
        # Not normalised by links: that is how the project's own files are spelled.
        made = [output.path for action in plan.actions for output in action.outputs]
        return {self._absolute(path) for path in (*made, *(file.path for file in plan.files))}

    def _describe(self, plan: Plan) -> None:
        self._expected, self._outputs = plan, self._made_by(plan)
        named = [folder for tool in plan.tools for name, folder in tool.roots if name != "project"]
        named += [folder for tool in plan.tools for folder in tool.search]
        self._system = tuple(f"{folder.rstrip('/')}/" for folder in dict.fromkeys(named) if folder.startswith("/"))
        self._listings = {path for path in map(self._absolute, plan.read) if os.path.isdir(path)}
        for action in plan.actions:
            self._listings.update(self._absolute(folder) for folder in action.search)

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.project, path))

    def _counts(self, path: str) -> bool:
        """Whether a file counts: builds do not make it, and it belongs to neither toolchain nor system."""
        if path in self._outputs:
            return False
        return path.startswith(f"{self.project}/") or not path.startswith(("/usr/", "/proc/", "/sys/", *self._system))

    def settle(self) -> None:
        """Find the folders and links that belong to `contents`."""
        self._real.clear()
        self._links.clear()
        folders: set[str] = set()

        def add(folder: str) -> None:
            while folder not in folders:  # up to the project: a folder above may be moved, or a link be turned
                folders.add(folder)
                if folder == self.project or not folder.startswith(f"{self.project}/"):
                    break
                folder = os.path.dirname(folder)

        # Outputs are no change, but their folders are watched: an untouched tree need not be looked at.
        for folder in (*self._listings, *map(os.path.dirname, self._outputs)):
            if self._counts(f"{folder}/"):
                add(folder)
        resolved: dict[str, str] = {}
        for path in self.contents:
            real = real_path(path, resolved)
            if real != path:
                self._real.setdefault(real, []).append(path)
                add(os.path.dirname(real))
                for link in links_to(path):
                    if link.startswith(f"{self.project}/"):
                        self._links.add(link)
                        add(os.path.dirname(link))
            add(os.path.dirname(path))
        self.folders = {existing(folder) for folder in folders}

    # ---------------------------------------------------------------- is it still so?

    def changed(self, paths: Iterable[str]) -> tuple[dict[str, None], bool]:
        """The touched paths whose content is another one, and whether folders came or went."""
        found: dict[str, None] = {}
        moved = False
        for path in paths:
            names = [*self._real.get(path, ()), *((path,) if path in self.contents else ())]
            if path in self._links:
                moved = True
            elif not names and (path in self.folders or os.path.isdir(path)):
                # A folder that came or went, or is another one now: everything below it is to be looked at.
                moved = True
                names = [name for name in self.contents if name.startswith(f"{path}/")]
                if path == self.project and os.path.isdir(path):
                    found[path] = None  # it is not known what else is in it now
                elif self._may_have_come(path):
                    self._came.add(path)
                    self._listings.update(self._folders_below(path))
            for name in names:
                self._stamps.renew(name)  # before its content: the next sweep finds what is written in between
                if self._differs(name):
                    found[name] = None
            if not names and self._is_news(path):
                found[path] = None
        return found, moved

    def changed_anywhere(self) -> dict[str, None]:
        """All files with another content, and files of folders that came."""
        self._stamps.take(self.contents)
        found = dict.fromkeys(path for path in list(self.contents) if self._differs(path))
        came, self._came = self._came, set()
        for top in came:
            for folder in self._folders_below(top):
                if folder not in self._listings:
                    self._came.add(folder)  # only now: it was not watched so far
                news = (path for path in files_in(folder) if path not in self.contents and self._may_count(path))
                found.update(dict.fromkeys(news))
            self._listings.update(self._came)
        return found

    @property
    def expects(self) -> bool:
        """Whether there are folders that are to be watched and looked at."""
        return bool(self._came)

    def unmoved(self) -> bool:
        """Whether every file still has its stamp: a fast look, for changes that gave no event."""
        return self._stamps.hold()

    def came_unseen(self) -> dict[str, None]:
        """Files that came to or went from folders that give no events, since the last call."""
        found: dict[str, None] = {}
        for folder in self._listings.intersection(self.polled):
            names = frozenset(entries(folder))
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
        """The digest that a build has read that began then, though it was not looked at; None where that is not sure:
        the file is then told as a change, and read again.

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
        """Whether a file that counted for nothing may count now: it is new, or any file could be what is missing."""
        if path in self.contents or not self._may_count(path):
            return False
        stamp = self.files.stamp(path)
        is_text = stamp is not None and stamp.size <= LARGE_BYTES  # gigabytes that count for nothing yet are not read
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
        return is_place and self._counts(path) and not is_passing(os.path.basename(path))
