"""What a tool asked of the file system other than a file's content. A Python worker's modules ask what a path is, or
which names are in a folder; a compiler asks which of several files are one (`once_only` answers this).

A question is an input. An input set has it among its files, with a name that no file has, and with its answer's digest
in place of a content's.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from buildd.files.snapshot import Snapshot
from codegen.plan import Discovery
from protocol.messages import Digest

KIND, NAMES, PACKAGES, STARTS = "//kind", "//names", "//packages", "//starts"
"""Endings of a question's name. A file's name has no empty part."""
TWINS = "//twins"
"""Ending of a compiler's question. Before it is no path, but the last digits of the digest that the files share."""
_LISTINGS = {"names": NAMES, "packages": PACKAGES, "starts": STARTS}
_COUNTED = {"packages": (".dist-info", ".egg-info", ".egg"), "starts": (".pth",)}
_ENDINGS = (KIND, TWINS, *_LISTINGS.values())
_ABSENT, _FOLDER, _FILE = "absent", "folder", "file"


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of one run.

    Args:
        answers: path with the question's ending -> digest of the answer.
        unstored: why nobody knows everything that was asked; empty if it is known.
    """

    answers: tuple[tuple[str, Digest], ...] = ()
    unstored: str = ""


NOTHING = Questions()


def asked_by(discovery: Discovery, content_of: Callable[[str], bytes | None]) -> Questions:
    """What a tool asked. Args: as `depfiles.read_files`."""
    return parse(content_of("") or b"") if discovery is Discovery.REPORTED else NOTHING


def parse(content: bytes) -> Questions:
    """The questions among the lines of a worker's depfile: `KIND PATH`, `unstored REASON`, `names SHA256 PATH`,
    or `packages SHA256 PATH` for the names of installed packages alone, and `starts` for those of *.pth files."""
    found: dict[str, Digest] = {}
    for line in content.decode(errors="surrogateescape").split("\n"):
        word, _, rest = line.partition(" ")
        if word == "unstored":
            return Questions(unstored=rest)
        if word in (_ABSENT, _FOLDER, _FILE):
            found[rest + KIND] = _digest(word)
        elif ending := _LISTINGS.get(word):
            names, _, path = rest.partition(" ")
            found[path + ending] = Digest(names)
    return Questions(tuple(found.items()))


def is_question(name: str) -> bool:
    """Whether a name of an input is a question's."""
    return name.endswith(_ENDINGS)


def path_of(question: str) -> str:
    """The path that a question is about."""
    return question.rpartition("//")[0]


def answer(snapshot: Snapshot, question: str) -> Digest:
    """The digest of the answer as it is now."""
    place = snapshot.absolute(path_of(question))
    if not question.endswith(KIND):
        try:
            with os.scandir(place) as entries:
                names = [entry.name + "/" * entry.is_dir() for entry in entries]
        except OSError:
            return _digest(_ABSENT)
        if endings := _COUNTED.get(question.rpartition("//")[2]):
            names = [name for name in names if name.rstrip("/").endswith(endings)]
        if question.endswith(STARTS):
            names = [name.rstrip("/") for name in names]
        text = "\0".join(sorted(name for name in names if name.rstrip("/") != "__pycache__"))
        return Digest(hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest())
    try:
        mode = os.stat(place).st_mode
    except (OSError, ValueError):
        return _digest(_ABSENT)
    return _digest(_FOLDER if stat.S_ISDIR(mode) else _FILE)


def folders_of(questions: Iterable[str]) -> set[str]:
    """The folders whose listing changes where an answer does."""
    return {
        os.path.dirname(path_of(question)) or "." if question.endswith(KIND) else path_of(question)
        for question in questions
        if not question.endswith(TWINS)
    }


def difference(snapshot: Snapshot, asked: Mapping[str, Digest]) -> str:
    """Why an input set does not match if a question about a path has another answer now; otherwise empty."""
    for question, before in asked.items():
        if not question.endswith(TWINS) and answer(snapshot, question) != before:
            return _difference(question, before)
    return ""


def _difference(question: str, before: Digest) -> str:
    path = path_of(question)
    if not question.endswith(KIND):
        return f"input {path}: names in this folder changed"
    return f"input {path}: {'appeared' if before == _digest(_ABSENT) else 'no longer there, or of another kind'}"


def _digest(word: str) -> Digest:
    return Digest(hashlib.sha256(word.encode()).hexdigest())
