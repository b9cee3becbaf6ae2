"""Compiler calls in a recording, and how they are called again in another folder.

A call runs in a *mirror*: a private folder that has, below itself, the recorded files under their absolute paths. Knows
which words of a command name files of the recording. Runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from buildd.scheduling.call_notes import RecordedCall, is_installed
from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import PARTS
from codegen.foreign.called_tool import sent_variables
from codegen.foreign.command_line import family_of

MOST_WORDS, MOST_FILES = 10_000, 20_000
_PATH = re.compile(r"((?:^-{1,2}[A-Za-z][A-Za-z-]*|^|(?<=[=,:;\"'\s])))(/[^,:;=\"'\s]*)")
"""An absolute path in a word of a command: the whole word, behind an option's letters, or behind a separator."""
_PART = re.compile(re.escape(PARTS) + "[0-9a-f]{16}")
_DIGEST = re.compile("[0-9a-f]{64}")


class CallLine(msgspec.Struct, frozen=True, tag_field="kind", tag="call"):
    """A line of a recording."""

    call: RecordedCall
    root: str
    """The folder where `buildd run` was called."""


def checked(line: CallLine) -> CallLine:
    """The same line. Raises ValueError if no run of a program can have left it."""
    call = line.call
    if not call.command or not family_of(os.path.basename(call.command[0])):
        raise ValueError("it calls no compiler")
    if len(call.command) > MOST_WORDS or len(call.files) > MOST_FILES:
        raise ValueError("it is too long")
    for path in (call.command[0], call.folder, line.root, call.output or "/", *call.files):
        if not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
            raise ValueError(f"{path!r} is not a plain absolute path")
    if unsafe := sorted(set(call.variables) - _allowed(call.variables)):
        raise ValueError(f"{unsafe[0]} is not a variable of compilers")
    if not all(_DIGEST.fullmatch(digest) for digest in call.files.values()):
        raise ValueError("a file has no digest")
    return line


def _allowed(names: Iterable[str]) -> set[str]:
    known = [name for name in sent_variables() if not name.startswith("BUILDD_") and name not in ("PATH", "LD_PRELOAD")]
    stems = tuple(name[:-1] for name in known if name.endswith("*"))
    return {n for n in names if n in known or n.startswith(stems) or n == temporary_roots.MAP_PATHS}


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where a recording's calls run again.

    Args:
        place: the private folder.
        here: the folder that stands for the one where `buildd run` was called.
        root: that one, as recorded.
        parts: the recorded name of a folder of objects -> its name here.
    """

    place: str
    here: str
    root: str
    parts: Mapping[str, str]

    def path(self, path: str) -> str:
        """A recorded file's place in the mirror."""
        if match := _PART.match(path):
            return self.parts[match[0]] + path[match.end() :]
        return self.place + path

    def source(self, path: str) -> str:
        """Where the present checkout has a recorded file; empty if the file is not of the checkout."""
        return self.here + path[len(self.root) :] if _is_in(path, self.root) else ""

    def command(self, call: RecordedCall) -> tuple[str, ...]:
        """The words of a call, with names of recorded files replaced."""
        folders = self._folders(call)
        tool = self._installed(call.command[0])
        return (tool, *(_PATH.sub(lambda m: m[1] + self._named(m[2], call, folders), w) for w in call.command[1:]))

    def variables(self, call: RecordedCall, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of a call. Args: environ: this process's, for PATH."""
        folders = self._folders(call)

        def named(value: str) -> str:
            return _PATH.sub(lambda match: match[1] + self._named(match[2], call, folders), value)

        found = {name: named(value) for name, value in call.variables.items()}
        return {**found, "PATH": environ.get("PATH", os.defpath), checkout_roots.RUN_FOLDER: self.path(self.root)}

    def folders(self, call: RecordedCall) -> set[str]:
        """The folders that have to be there: of the call, of its output."""
        places = {call.folder, *([os.path.dirname(call.output)] if call.output else [])}
        return {self.path(place) for place in places}

    def _folders(self, call: RecordedCall) -> set[str]:
        named = {call.folder, self.root, os.path.dirname(call.output) or call.folder}
        return (named | {os.path.dirname(path) for path in call.files}) - {"/"}

    def _named(self, path: str, call: RecordedCall, folders: set[str]) -> str:
        plain = os.path.normpath(path)
        if plain == "/" or is_installed(plain, call.command[0], self.root):
            return self._installed(path)
        related = any(_is_in(plain, folder) or _is_in(folder, plain) for folder in folders)
        return self.path(path) if related else path

    def _installed(self, path: str) -> str:
        moved = self.source(os.path.normpath(path))
        return moved if moved and os.path.lexists(moved) else path


def parts_of(calls: Iterable[RecordedCall]) -> set[str]:
    """The recorded names of the folders in which divided commands had their objects."""
    texts = (text for call in calls for text in (call.output, *call.command, *call.files))
    return {match[0] for text in texts for match in _PART.finditer(text)}


def _is_in(path: str, folder: str) -> bool:
    return folder not in ("", "/") and (path == folder or path.startswith(f"{folder}/"))
