"""The files of one request as keys see them: their names, where links lead, and which folders a search goes through.

Knows the request's snapshot and each tool's roots; knows no store, no hit and no finished run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from buildd.files.snapshot import Snapshot
from buildd.files.stamp import real_path
from buildd.keys import include_search, survey_memory
from buildd.keys.file_names import Names, names_below
from buildd.keys.questions import folders_of
from buildd.store.result_rows import LINK, PRESENT, InputSet
from codegen.plan import Action, Tool
from codegen.reach import split


class RequestFiles:
    """Names and surroundings of a request's files, each computed once.

    Args:
        snapshot: the request's view of the file system.
        surveys: surveys that other requests have made.
    """

    def __init__(self, snapshot: Snapshot, surveys: survey_memory.Memory | None = None) -> None:
        self.snapshot = snapshot
        self._memory = surveys
        self._names: dict[int, Names] = {}
        self._real: dict[str, str] = {}
        self.normals: dict[str, str] = {}
        """Spelled path -> its one name, as far as `normal` was called."""
        self._leads: dict[str, str] = {}
        self._spelled_in: dict[str, str] = {}
        self._surveyors: dict[tuple[tuple[str, ...], tuple[str, ...]], include_search.Surveyor] = {}
        self.folders: dict[str, int] = {}
        """Stamps of all folders that an answer depends on."""
        self.discovered: dict[str, tuple[str, ...]] = {}
        """Name of an action -> the inputs that its look-up or its run found."""
        self.waiting: list[Callable[[], object]] | None = None
        """Stamps that are written at the end (`write_later`); None: at once."""
        self.bare: set[str] = set()
        """The actions among them whose result holds for any text with the same bare forms."""
        self.twins: dict[str, frozenset[str]] = {}
        """Name of an action -> those of these inputs that may be one to the compiler (`once_only`)."""

    def ask(self, asked: Iterable[str]) -> None:
        """Note the folders that questions among an action's inputs are about (`questions`)."""
        for folder in folders_of(asked):
            self.folders[folder] = self.snapshot.folder_stamp(folder)

    def later(self, write: Callable[[InputSet], object]) -> Callable[[InputSet], object]:
        """What writes an input set with new stamps, or notes that it is to be written."""
        waiting = self.waiting
        return write if waiting is None else lambda known: waiting.append(partial(write, known))

    def write_later(self) -> None:
        """Write the input sets that wait. In a worker thread; raises StoreError."""
        waiting, self.waiting = self.waiting, None
        for write in waiting or ():
            write()

    def names_of(self, tool: Tool) -> Names:
        """The names of files below a tool's roots."""
        known = self._names.get(id(tool))
        if known is None:
            roots = sorted(((name, os.path.realpath(folder)) for name, folder in tool.roots), key=lambda r: -len(r[1]))
            known = self._names[id(tool)] = names_below(tuple(roots), self.snapshot.project)
        return known

    def normal(self, spelled: str) -> str:
        """One name for a file however it was spelled: links to folders resolved, relative below the project."""
        known = self.normals.get(spelled)
        if known is None:
            known = self.normals[spelled] = self._normalised(spelled)
        return known

    def _normalised(self, spelled: str) -> str:
        if not spelled.startswith("/"):
            return os.path.normpath(spelled) if ".." not in spelled and "/." not in spelled[:-1] else spelled
        folder, name = split(spelled)
        real = real_path(folder, self._real)
        path = f"{real}/{name}" if real != "/" else f"/{name}"
        prefix = self.snapshot.project + "/"
        return path[len(prefix) :] if path.startswith(prefix) else path

    def survey(self, used: Sequence[str], action: Action, tool: Tool) -> survey_memory.Surroundings:
        """The folders in which a header search for `used` may find another file, and the files that it may find."""
        includers = [path for path in action.inputs if not self.snapshot.is_aside(path)]
        where = (action.search, tool.search)
        surveyor = self._surveyors.get(where)
        if surveyor is None:
            search, own = ([self.searched(folder) for folder in several] for several in where)
            surveyor = self._surveyors[where] = include_search.Surveyor(self.snapshot, search, own, self._memory)
        return surveyor.survey(sorted(used), includers)

    def folder_of(self, spelled: str) -> str:
        """The folder part of a path, as it is spelled."""
        known = self._spelled_in.get(spelled)
        if known is None:
            known = self._spelled_in[spelled] = split(spelled)[0]
        return known

    def leads_to(self, folder: str) -> str:
        """The real place of an absolute folder, where links lead elsewhere; otherwise empty."""
        known = self._leads.get(folder)
        if known is None:
            real = os.path.normpath(self.snapshot.absolute(self.searched(folder))) if folder.startswith("/") else ""
            known = self._leads[folder] = real if real != os.path.normpath(folder) else ""
        return known

    def searched(self, folder: str) -> str:
        """The one name of a folder that a tool searches."""
        return self.normal(f"{folder}/x")[:-2] or "." if folder not in (".", "") else "."


def input_folders(
    survey: survey_memory.Surroundings, names: Names, links: Iterable[tuple[str, str]]
) -> tuple[tuple[str, int], ...]:
    """The folders of an input set: searched ones, files that were found but not used, and links with their targets."""
    return (
        *((names.name(folder), stamp) for folder, stamp in survey.folders),
        *((names.name(path), PRESENT) for path in survey.present),
        *((f"{names.name(folder)}\0{names.name(to)}", LINK) for folder, to in links),
    )
