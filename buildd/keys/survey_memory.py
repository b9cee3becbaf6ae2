"""What earlier include searches found, valid while the folders that decided it keep their stamps.

In a folder that changes all the time, because a build writes its objects there, the names that decided it count instead
of the stamp. Knows no search order: `include_search` computes the answers that are kept here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from protocol.messages import Digest

_MOST_WHOLE = 1 << 8
_MOST_LIVELY = 1 << 4
"""Folders of a project."""
_MOST_PROJECTS = 1 << 10
_NOTHING: frozenset[str] = frozenset()
_Key = tuple[str, str | Digest]
Stamped = tuple[tuple[str, int], ...]
"""Folders with their stamps."""


class Decisive(NamedTuple):
    """The names in a folder that decided an answer, and those that were there: each as a file or as a folder."""

    folder: str
    names: frozenset[str]
    there: frozenset[tuple[str, bool]]

    def stands(self, snapshot: Snapshot) -> bool:
        return _there(snapshot, self.folder, self.names) == self.there


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The folders whose listings mattered when a result was made, and the candidates that existed.

    `folders` maps each folder whose listing matters to its stamp; `present` are candidates that did exist.
    """

    folders: tuple[tuple[str, int], ...]
    present: tuple[str, ...]
    asked: tuple[tuple[str, frozenset[str]], ...] = ()
    """The folders that decided an answer of `__has_include`, and the names in them that did."""
    lively: tuple[Decisive, ...] = ()
    """Of folders that change often: what decided there, where it is known."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Some candidates: the folders that decided whether they exist, and those that do, used or not."""

    needed: tuple[str, ...]
    present: tuple[str, ...]
    names: tuple[frozenset[str], ...] = ()
    """For `__has_include`: the names that decided it in each of those folders."""
    lively: tuple[Decisive, ...] = ()
    """As in `Surroundings`."""


def decisive(snapshot: Snapshot, lively: Iterable[str], needed: Mapping[str, Iterable[str]]) -> tuple[Decisive, ...]:
    """What decided an answer in each lively folder.

    Args:
        needed: the names that decided it, by folder.
    """
    found = ((folder, frozenset(needed[folder])) for folder in lively if folder in needed)
    looked = ((folder, names, _there(snapshot, folder, names)) for folder, names in found)
    return tuple(Decisive(folder, names, there) for folder, names, there in looked if there is not None)


def _there(snapshot: Snapshot, folder: str, names: frozenset[str]) -> frozenset[tuple[str, bool]] | None:
    """The names that a folder has, and whether each is a folder; None where one is a link."""
    there = names.intersection(snapshot.listing(folder) or _NOTHING)
    kinds = [(name, snapshot.is_folder(f"{folder}/{name}")) for name in there]
    return None if any(kind is None for _, kind in kinds) else frozenset((name, bool(kind)) for name, kind in kinds)


def unchanged(snapshot: Snapshot, folders: Iterable[tuple[str, int]]) -> bool:
    """Whether every folder still has the stamp it had. A stamp of -1 was never trusted."""
    return all(stamp != -1 and snapshot.folder_stamp(folder) == stamp for folder, stamp in folders)


def _changed(snapshot: Snapshot, folders: Stamped) -> tuple[str, ...]:
    """The folders that do not have their stamp, or whose stamp was never trusted."""
    return tuple(folder for folder, stamp in folders if stamp == -1 or snapshot.folder_stamp(folder) != stamp)


class Memory:
    """Answers of earlier requests, each valid while the folders that decided it keep their stamps.

    Thousands of compiles ask about the same headers. Safe to use from several threads: an answer that a race loses is
    computed again.

    Args:
        most: how many answers are kept, of all kinds of compiles together.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._kinds: dict[object, dict[_Key, tuple[SearchAnswer, Stamped]]] = {}
        self._stamped: dict[Stamped, Stamped] = {}
        """Most answers of a project share their folders."""
        self._whole: dict[tuple[object, bytes], Surroundings] = {}
        self._places: dict[frozenset[str], dict[str, str]] = {}
        self._lively: dict[str, tuple[str, ...]] = {}
        self._count = 0
        self.surveyors = PatientLock()

    def lively(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Folders that a project's compiles have found changed."""
        return self._lively.get(snapshot.project, ())

    def get(
        self, kind: object, key: _Key, snapshot: Snapshot, changed: dict[Stamped, tuple[str, ...]]
    ) -> SearchAnswer | None:
        """An answer that is still valid; None where there is none.

        Args:
            kind: everything that the answer depends on besides the file system and `key`.
            changed: folders with stamps -> those without that stamp in this snapshot, as far as they were asked for.
        """
        answer, folders = self._kinds.get(kind, {}).get(key, (None, ()))
        if answer is None:
            return None
        differing = changed.get(folders)
        if differing is None:
            differing = changed[folders] = _changed(snapshot, folders)
        return answer if not differing or self._stands(snapshot, differing, answer.lively) else None

    def put(self, kind: object, key: _Key, snapshot: Snapshot, answer: SearchAnswer) -> None:
        folders = tuple((folder, snapshot.folder_stamp(folder)) for folder in answer.needed)
        if not self._stands(snapshot, _changed(snapshot, folders), answer.lively):
            return
        if self._count > self._most:
            self.clear()
        self._count += 1
        self._kinds.setdefault(kind, {})[key] = (answer, self._stamped.setdefault(folders, folders))

    def _stands(self, snapshot: Snapshot, changed: Iterable[str], lively: Sequence[Decisive]) -> bool:
        """Whether what decided in each changed folder stands. A folder where nothing stands is lively from now on."""
        stands = True
        for folder in changed:
            if not any(each.folder == folder and each.stands(snapshot) for each in lively):
                stands = False
                known = self.lively(snapshot)
                if folder not in known and len(known) < _MOST_LIVELY:
                    if len(self._lively) >= _MOST_PROJECTS:
                        self._lively = {}
                    self._lively[snapshot.project] = (*known, folder)
        return stands

    def get_whole(self, kind: object, name: bytes, snapshot: Snapshot) -> Surroundings | None:
        """A whole survey that is still valid, with the stamps of now; None where there is none.

        Args:
            name: digest of everything that the survey depends on besides the file system and `kind`.
        """
        known = self._whole.get((kind, name))
        if known is None or not self._stands(snapshot, _changed(snapshot, known.folders), known.lively):
            return None
        folders = tuple((folder, snapshot.folder_stamp(folder)) for folder, _ in known.folders)
        return known if folders == known.folders else replace(known, folders=folders)

    def put_whole(self, kind: object, name: bytes, survey: Surroundings) -> None:
        if len(self._whole) >= _MOST_WHOLE:
            self._whole = {}
        self._whole[kind, name] = survey

    def places(self, own: frozenset[str]) -> dict[str, str]:
        """Path -> folder that `Surveyor` remembers for it, for a tool that searches these folders by itself."""
        if sum(map(len, self._places.values())) > self._most:
            self._places = {}
        return self._places.setdefault(own, {})

    def clear(self) -> None:
        self._kinds, self._stamped, self._whole, self._places, self._lively, self._count = {}, {}, {}, {}, {}, 0
