"""Compares the files of an input set with the files as they are now: contents, bare forms, and answers to questions.

Knows one request's view of the file system; knows no search, no store and no root.
"""

from __future__ import annotations

from dataclasses import dataclass

from buildd.files.snapshot import Snapshot
from buildd.keys import changed_inputs, once_only, questions
from buildd.keys.file_names import Names
from buildd.keys.text_digests import Stands, is_bare, stands
from buildd.store.store import InputSet
from codegen.plan import Action
from protocol.messages import Digest


@dataclass(frozen=True, slots=True)
class FittingList:
    """A list of files whose contents still match, in this request's view of the file system."""

    files: tuple[tuple[str, Digest], ...]
    paths: tuple[str, ...]
    members: frozenset[str]
    moved: tuple[str, ...]
    """Those whose tokens are in other lines."""
    bare: bool
    """Some are known by their bare forms: no message of the tool shows a line."""
    asked: tuple[str, ...] = ()
    """Questions that the tool asked, which have the same answers now."""
    twins: frozenset[str] = frozenset()
    """The files that some of these questions are about (`once_only`)."""


def compare(snapshot: Snapshot, action: Action, known: InputSet, names: Names) -> FittingList | str:
    """The files of an input set, or why they do not match the files as they are now."""
    filed = [(names.path(name), digest) for name, digest in known.files]
    if asked := {path: answer for path, answer in filed if questions.is_question(path)}:
        filed = [(path, digest) for path, digest in filed if path not in asked]
    paths = tuple(path for path, _ in filed)
    snapshot.see(paths)  # at once: one query for all
    moved = []
    for path, digest in filed:
        standing = stands(snapshot, action, path, digest)
        if standing is Stands.NO:
            return changed_inputs.reason(snapshot, path)
        if standing is Stands.MOVED:
            moved.append(path)
    twins = once_only.twins(snapshot, action, filed, asked)
    if why := questions.difference(snapshot, asked) or twins.difference:
        return why
    bare = any(map(is_bare, known.files))
    return FittingList(known.files, paths, frozenset(paths), tuple(moved), bare, tuple(asked), twins.paths)
