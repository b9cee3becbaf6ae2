"""What earlier include searches found, valid while the folders that decided it keep their stamps.

Knows no search order: `include_search` computes the answers that are kept here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from protocol.messages import Digest

_MOST_WHOLE = 1 << 8
_Key = tuple[str, str | Digest]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The folders whose listings mattered when a result was made, and the candidates that existed.

    `folders` maps each folder whose listing matters to its stamp; `present` are candidates that did exist.
    """

    folders: tuple[tuple[str, int], ...]
    present: tuple[str, ...]
    asked: tuple[tuple[str, frozenset[str]], ...] = ()
    """The folders that decided an answer of `__has_include`, and the names in them that did."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Some candidates: their paths, the folders that decided whether they exist, and those that do."""

    paths: frozenset[str]
    needed: tuple[str, ...]
    present: tuple[str, ...]
    names: tuple[frozenset[str], ...] = ()
    """For `__has_include`: the names that decided it in each of those folders."""


def unchanged(snapshot: Snapshot, folders: Iterable[tuple[str, int]]) -> bool:
    """Whether every folder still has the stamp it had. A stamp of -1 was never trusted."""
    return all(stamp != -1 and snapshot.folder_stamp(folder) == stamp for folder, stamp in folders)


class Memory:
    """Answers of earlier requests, each valid while the folders that decided it keep their stamps.

    Thousands of compiles ask about the same headers. Safe to use from several threads: an answer that a race loses is
    computed again.

    Args:
        most: how many answers are kept, of all kinds of compiles together.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._kinds: dict[object, dict[_Key, tuple[SearchAnswer, tuple[int, ...]]]] = {}
        self._whole: dict[tuple[object, bytes], Surroundings] = {}
        self._places: dict[frozenset[str], dict[str, str]] = {}
        self._count = 0
        self.surveyors = PatientLock()

    def get(self, kind: object, key: _Key, snapshot: Snapshot) -> SearchAnswer | None:
        """An answer that is still valid; None where there is none.

        Args:
            kind: everything that the answer depends on besides the file system and `key`.
        """
        answer, stamps = self._kinds.get(kind, {}).get(key, (None, ()))
        if answer is None or not unchanged(snapshot, zip(answer.needed, stamps, strict=True)):
            return None
        return answer

    def put(self, kind: object, key: _Key, snapshot: Snapshot, answer: SearchAnswer) -> None:
        stamps = tuple(snapshot.folder_stamp(folder) for folder in answer.needed)
        if -1 in stamps:
            return
        if self._count > self._most:
            self.clear()
        self._count += 1
        self._kinds.setdefault(kind, {})[key] = (answer, stamps)

    def get_whole(self, kind: object, name: bytes, snapshot: Snapshot) -> Surroundings | None:
        """A whole survey that is still valid; None where there is none.

        Args:
            name: digest of everything that the survey depends on besides the file system and `kind`.
        """
        known = self._whole.get((kind, name))
        return known if known is not None and unchanged(snapshot, known.folders) else None

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
        self._kinds, self._whole, self._places, self._count = {}, {}, {}, 0
