"""Keys of actions: one walk over an action gives the components of its key, and an explanation of what changed.

Pure: the caller passes digests of files. Knows no store, no file system and no clock. The key and the explanation use
the same components, so the two cannot drift apart.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from blake3 import blake3

from codegen.plan import Action, Argument, Place, Tool
from codegen.variables.locales import is_of_locale, locale_of
from protocol.messages import Digest

FORMAT = "buildd-key-13"
"""Raise it whenever the walk changes, so that an entry of an older walk is never used."""

MISSING = "missing"
"""In place of the digest of a file that does not exist."""
SHOWN = "folder that the result shows"
"""For people: a component that only buildd's own variables stand for."""

Component = tuple[str, str]
"""Name and value of one thing that a result depends on."""


def tool_components(tool: Tool, digest_of: Callable[[str], Digest | None]) -> Iterator[Component]:
    """The components that identify a tool: its facts, and the digest of every file of its closure by role."""
    for name, value in tool.facts:
        yield f"tool {tool.name}: {name}", value
    for file in tool.files:
        yield f"tool {tool.name}: {file.role}", digest_of(file.path) or MISSING


def action_components(
    action: Action,
    tool_digest: Digest,
    digest_of: Callable[[str], Digest | None],
    *,
    name_of: Callable[[str], str] = str,
    project: str,
    roots: Iterable[tuple[str, str]] = (),
) -> Iterator[Component]:
    """The components that are known before the action runs.

    Args:
        action: the action that would run.
        tool_digest: digest of `tool_components`.
        digest_of: content digest of a declared input, None when it is missing.
        name_of: the name of a declared input in keys.
        project: absolute folder of the project; used only when the action is path-sensitive.
        roots: the tool's named folders; used only when the action is path-sensitive.
    """
    yield "format", FORMAT
    yield f"tool {action.tool}", tool_digest
    yield "command", "\0".join(field for argument in action.argv for field in _fields(argument))
    for name, value in action.environment:
        if not is_of_locale(name):
            yield f"variable {name}", value
    yield "locale", locale_of(action.environment)
    if action.payload:
        yield "payload", blake3(action.payload).hexdigest()
    for path in action.inputs:
        yield f"input {name_of(path)}", digest_of(path) or MISSING
    for output in action.outputs:
        yield f"output {output.name}", "executable" if output.executable else "file"
    if action.path_sensitive:
        yield _SENSITIVE, project
        for name, folder in roots:
            yield f"folder of {name}", folder


def _fields(argument: Argument) -> tuple[str, ...]:
    """An argument as fields that no other list of arguments has: none is empty, and none can hold a NUL."""
    if isinstance(argument, str):
        return (f"={argument}",)
    # An input's path is not needed here: it is a declared input, whose name and content are components.
    name = "" if argument.place is Place.INPUT else argument.name
    return (f"@{argument.place.value}", f"n{name}", f"p{argument.prefix}", f"s{argument.suffix}")


def encode(components: Iterable[Component]) -> bytes:
    """Components as bytes, for `decode`. Names of files need not be UTF-8."""
    return msgspec.msgpack.encode([(_bytes(name), _bytes(value)) for name, value in components])


def decode(encoded: bytes) -> list[Component]:
    """The components in bytes that `encode` made. Raises msgspec.MsgspecError for other bytes."""
    pairs = msgspec.msgpack.decode(encoded, type=list[tuple[bytes, bytes]])
    return [(n.decode(errors="surrogateescape"), v.decode(errors="surrogateescape")) for n, v in pairs]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def digest(components: Iterable[Component]) -> Digest:
    """The digest of a list of components. Lengths are part of the encoding, so no two lists encode alike."""
    return encoded_digest(encode(components))


def encoded_digest(encoded: bytes) -> Digest:
    """The digest of components that `encode` has encoded."""
    return Digest(blake3(encoded).hexdigest())


def result_digest(first: Digest, files: Iterable[tuple[str, Digest]], roots: Iterable[tuple[str, str]] = ()) -> Digest:
    """The key of a result: the first-level key and every file that the tool was seen to read.

    Args:
        first: digest of `action_components`.
        files: discovered files by name, sorted.
        roots: named folders whose absolute path can reach the result.
    """
    # There are hundreds of files for each step of each compile: the same as `digest`, without a component for each.
    pairs = [(b"first", _bytes(first))]
    pairs += [(b"file", f"{d} {n}".encode(errors="surrogateescape")) for n, d in files]
    pairs += [(b"root", _bytes(f"{n}={f}")) for n, f in roots]
    return Digest(blake3(msgspec.msgpack.encode(pairs)).hexdigest())


def difference(old: Iterable[Component], new: Iterable[Component], program: str = "") -> tuple[str, ...]:
    """What changed between two walks, in words, in the order of the new walk.

    Args:
        program: path of the program that the new walk's command calls. If it is spelled otherwise than in the old walk,
            or has files of other roles, the tool is another one: its files and folders are not told one by one.

    Returns:
        One short line for each component that was added, changed or removed; empty when the walks are equal.
    """
    before, now = dict(old), dict(new)
    lines = []
    if program and _is_another(before, now):
        lines.append(f"tool {os.path.basename(program)}: it is now {program}, and was another one")
        before, now = ({n: v for n, v in walk.items() if not _is_of_tool(n, v)} for walk in (before, now))
        before["command"] = before["command"].replace(_first(before["command"]), _first(now["command"]), 1)
    # A flag such as -g makes paths count: that the flag came or went says it all.
    both_sensitive = _SENSITIVE in before and _SENSITIVE in now
    old_search, new_search = _search_folders(before), _search_folders(now)
    is_shifted = old_search.keys() != new_search.keys()
    if is_shifted:  # they are numbered: one that came or went moves the others
        before, now = ({n: v for n, v in walk.items() if not n.startswith(_SEARCH)} for walk in (before, now))
    for name, value in now.items():
        if name not in before:
            if both_sensitive or not name.startswith("folder of "):
                lines.append(f"{name}: new" + (f" ({value})" if name.startswith(("variable ", SHOWN)) else ""))
        elif before[name] != value and (said := _changed(name, before[name], value)):
            lines.append(said)
    if is_shifted:
        lines += _other_search(list(old_search.values()), list(new_search.values()))
    gone = (name for name in before if name not in now)
    lines.extend(f"{name}: no longer there" for name in gone if both_sensitive or not name.startswith("folder of "))
    if not lines and (_SENSITIVE in before) != (_SENSITIVE in now):
        lines.append(
            f"{_SENSITIVE}: the result {'may contain' if _SENSITIVE in now else 'no longer contains'} its path"
        )
    if not lines and old_search != new_search:
        lines.append("search folders: their order changed")
    if not lines and list(before.items()) != list(now.items()):
        lines.append("command: order of arguments changed")
    return tuple(lines)


def _search_folders(walk: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in walk.items() if name.startswith(_SEARCH)}


def _other_search(old: list[str], new: list[str]) -> Iterator[str]:
    """Which folders are searched now that were not, and the other way round."""
    added = [folder for folder in new if folder not in old]
    if added:
        yield f"searched {'first ' if new[: len(added)] == added else ''}now: {', '.join(added)}"
    if gone := [folder for folder in old if folder not in new]:
        yield f"no longer searched: {', '.join(gone)}"


def _is_another(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    if "command" not in before or "command" not in now:
        return False
    roles, new_roles = ({name for name in walk if name.startswith("tool ")} for walk in (before, now))
    return roles != new_roles or _first(before["command"]) != _first(now["command"])


def _is_of_tool(name: str, value: str) -> bool:
    """Whether a component is one of a tool's files or folders. A version is none: people know it."""
    return name.startswith(_SEARCH) or (name.startswith("tool ") and (value == MISSING or bool(_HEX.fullmatch(value))))


def _first(command: str) -> str:
    """The first argument of a "command" component, encoded."""
    fields = command.split("\0")
    return "\0".join(fields[:1] if fields[0][:1] == "=" else fields[:4])


def _changed(name: str, old: str, new: str) -> str:
    """What changed in one component, in words; empty if only the order of a command's arguments did, or its inputs,
    which are components of their own."""
    if name == "command":
        before, now = Counter(_arguments(old)), Counter(_arguments(new))
        parts = [("added", (now - before).elements()), ("removed", (before - now).elements())]
        said = "; ".join(f"{verb} {words}" for verb, arguments in parts if (words := " ".join(arguments)))
        return f"command: {said}" if said else ""
    if new == MISSING:
        return f"{name}: no longer there"
    if name.startswith(("variable ", "folder ", "locale")) or not _HEX.fullmatch(new):
        return f"{name}: {old} -> {new}"
    return f"{name}: content changed"


_SEARCH = "search folder "
_HEX = re.compile(r"[0-9a-f]{64}")
_SENSITIVE = "folder of the project"
"""A component of actions in whose results paths of folders can stand; others have no component of a folder."""


def _arguments(encoded: str) -> list[str]:
    """The arguments of a "command" component, as people write them, without its inputs."""
    out: list[str] = []
    for field in encoded.split("\0"):
        mark, text = field[:1], field[1:]
        match mark:
            case "=":
                out.append(text)
            case "@":
                place = text
            case "n":
                name = text
            case "p":
                prefix = text
            case _ if place == Place.DEPFILE.value:
                out.append(prefix)  # the list of what the tool reads, wherever it is written
            case _ if place != Place.INPUT.value:
                shown = f"{{{name}}}" if place == Place.ROOT.value else place.upper()
                out.append(f"{prefix}{shown}{text}")
    return out
