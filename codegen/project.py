"""buildd.toml and inline specs -> typed settings and targets.

Knows no compiler and no generator: a target is checked for its keys and types here, for its meaning by its kind.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from codegen.environment import plain_values
from codegen.plan import RequestError
from codegen.sources import leaves_root
from codegen.target import INLINE_KINDS, KINDS, CompiledTarget, ModelTarget, OutputKind, Target, TorchTarget
from protocol.described import described
from protocol.messages import Request


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The [project] and [toolchain] tables. Paths of the toolchain are absolute, or as written when not given."""

    name: str = ""
    build_dir: str = "build"
    default: tuple[str, ...] = ()
    cuda: str = ""
    """Folder of the CUDA toolkit (the one that holds bin/nvcc)."""
    hip: str = ""
    """Folder of HIP (the one that holds bin/hipcc)."""
    cutlass: str = ""
    """Folder of CUTLASS (the one that holds include/cutlass)."""
    host_compiler: str = ""
    """For nvcc's -ccbin: a path, or a name on the request's PATH."""


@dataclass(frozen=True, slots=True)
class Project:
    """What was asked for, dependencies first."""

    settings: Settings
    targets: tuple[Target, ...]
    asked: tuple[str, ...]
    """Names of the targets that were asked for; `targets` has their dependencies too."""
    read: tuple[str, ...]
    environment: Mapping[str, str]
    """The [environment] table: variables for those that the client does not set."""


_TABLES = {"project": ("name", "build_dir", "default"), "toolchain": ("cuda", "hip", "cutlass", "host_compiler")}
_HIDDEN = ("name", "where", "places")
StructT = TypeVar("StructT", bound=msgspec.Struct)
LONGEST_TIMEOUT_S = 30 * 86400.0
LONGEST_NAME_BYTES = 200
"""Linux takes 255; around a name there may be "lib", ".so" and what a file written aside is called."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean "saxpy"?" where a known name is close, else nothing."""
    close = difflib.get_close_matches(name, tuple(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def load_project(request: Request) -> Project:
    """The targets that a request asks for, with what they depend on.

    Raises:
        RequestError: the file or a spec is wrong; the message names the key and, where TOML tells it, the line.
    """
    read: tuple[str, ...] = ()
    file = request.file
    text = ""
    tables: dict[str, Any] = {}
    if request.file:
        path = os.path.join(request.project, request.file)
        text, tables = _read(path, request.file)
        read = (path,)
    settings = _settings(tables, text, file, request.project)
    lines = _Lines(text, file)
    targets: dict[str, Target] = {}
    for name, table in _tables_of(tables, file).items():
        targets[name] = _target(name, table, lines, outside=True)
    if not settings.name:
        settings = msgspec.structs.replace(settings, name=os.path.basename(os.path.normpath(request.project)))
    for name, raw in request.specs.items():
        targets[name] = _target(name, _spec(name, raw), _Lines("", ""), outside=False)
    asked = request.targets or tuple(request.specs) or settings.default or tuple(targets)
    if not asked:
        raise RequestError(
            "bad-project", "there is no target", file=file, next_step="add a [target.NAME] table with kind and sources"
        )
    ordered = _ordered(asked, targets, file)
    environment = plain_values(tables.get("environment", {}), lines.where("environment"))
    return Project(settings, ordered, tuple(dict.fromkeys(asked)), read, environment)


def _read(path: str, file: str) -> tuple[str, dict[str, Any]]:
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        with open(path, encoding="utf-8-sig") as stream:
            text = stream.read()
    except FileNotFoundError as error:
        raise RequestError(
            "bad-project",
            f"there is no project file {path}",
            file=path,
            next_step="run in the project's folder, or name it with -C DIR or -f FILE",
        ) from error
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise RequestError(
            "bad-project",
            f"{path} cannot be read: line {number} is not UTF-8 text",
            file=path,
            next_step="save it as UTF-8",
        ) from error
    except OSError as error:
        raise RequestError(
            "bad-project",
            f"{path} cannot be read: {error.strerror}",
            file=path,
            next_step="check its owner and permissions",
        ) from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = f":{at[1]}:{at[2]}" if at else f":{text.count(chr(10)) + 1}"
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise RequestError(
            "bad-project", f"not valid TOML: {what}", file=file + line, next_step="correct the file at this place"
        ) from error
    except RecursionError as error:
        raise RequestError(
            "bad-project", "not valid TOML: too deeply nested", file=file, next_step="write it with fewer brackets"
        ) from error


_HEAD = re.compile(r"\s*\[\s*([^\]]*?)\s*\]")


class _Lines:
    """Finds the line of a table or key again, which tomllib does not tell. One pass: a file may hold thousands."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.splitlines()
        self._tables: dict[str, int] = {}
        for number, line in enumerate(self._lines, 1):
            if line.lstrip()[:1] == "[" and (head := _HEAD.match(line)):
                first, _, rest = head[1].partition(".")
                name = ".".join(part.strip().strip("\"'") for part in (first, rest) if part)
                self._tables.setdefault(name, number)

    def where(self, table: str, key: str = "") -> str:
        start = self._tables.get(table)
        if start is None:
            return self.file
        wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
        for number in range(start + 1, len(self._lines) + 1) if key else ():
            line = self._lines[number - 1]
            if line.lstrip()[:1] == "[":
                break
            if wanted.match(line):
                return f"{self.file}:{number}"
        return f"{self.file}:{start}"


def _check_keys(table: Mapping[str, Any], known: Iterable[str], name: str, lines: _Lines) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise RequestError(
                "bad-project",
                f'unknown key "{key}" in [{name}]{nearest(key, known)}',
                file=lines.where(name, key),
                next_step="known keys: " + ", ".join(sorted(known)),
            )


def _settings(tables: dict[str, Any], text: str, file: str, folder: str) -> Settings:
    lines = _Lines(text, file)
    for name in tables:
        if name not in ("target", "environment", *_TABLES):
            raise RequestError(
                "bad-project",
                f"unknown table [{name}]{nearest(name, ('target', *_TABLES))}",
                file=lines.where(name),
                next_step="known tables: project, toolchain, environment, target.NAME",
            )
    merged: dict[str, Any] = {}
    for name, keys in _TABLES.items():
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise RequestError(
                "bad-project", f'"{name}" must be a table', file=lines.where(name), next_step=f"write it as [{name}]"
            )
        _check_keys(table, keys, name, lines)
        merged.update(table)
    settings = _convert(_wrap_lists(merged, Settings), Settings, "the project", file)
    build = os.path.normpath(settings.build_dir)
    if leaves_root(build) or build == ".":
        raise RequestError(
            "path-outside",
            f'build_dir "{settings.build_dir}" is not a folder below the project',
            file=lines.where("project", "build_dir"),
            next_step="name a folder relative to the project",
        )
    roots = {
        key: os.path.normpath(os.path.join(folder, os.path.expanduser(value)))
        for key in ("cuda", "hip", "cutlass")
        if (value := getattr(settings, key))
    }
    return msgspec.structs.replace(settings, build_dir=build, **roots)


def _tables_of(tables: dict[str, Any], file: str) -> dict[str, Any]:
    found = tables.get("target", {})
    if not isinstance(found, dict):
        raise RequestError(
            "bad-project", '"target" must hold tables', file=file, next_step="write targets as [target.NAME]"
        )
    return found


def _spec(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError("bad-project", f'spec "{name}" is not MessagePack: {error}') from error


def _target(name: str, table: Any, lines: _Lines, *, outside: bool) -> Target:
    """Args: outside: whether paths may leave the project; a spec from the wire may not."""
    section = f"target.{name}"
    if not _NAME.fullmatch(name):
        raise RequestError(
            "bad-project",
            f'"{name}" cannot be a target\'s name',
            file=lines.where(section),
            next_step="use letters, digits and _ . + - and start with a letter, a digit or _",
        )
    if not isinstance(table, dict):
        raise RequestError(
            "bad-project",
            f'target "{name}" must be a table',
            file=lines.where(section),
            next_step=f"write it as [target.{name}] with kind and sources",
        )
    kind, kinds = table.get("kind"), KINDS if outside else INLINE_KINDS
    if not isinstance(kind, str) or kind not in kinds:
        what = "has no kind" if kind is None else f"has the unknown kind {kind!r}{nearest(str(kind), KINDS)}"
        raise RequestError(
            "bad-project",
            f'target "{name}" {what}',
            file=lines.where(section, "kind"),
            next_step="known kinds: " + ", ".join(KINDS),
        )
    struct = kinds[kind]
    keys = [field for field in struct.__struct_fields__ if field not in _HIDDEN]
    _check_keys(table, ("kind", *keys), section, lines)
    _check_texts(name, table, lines)
    table = _wrap_lists({key: value for key, value in table.items() if key != "kind"}, struct)
    output = table.get("output")
    if output == "objects":
        table["output"] = "object"
    elif isinstance(output, str) and output not in (known := [value.value for value in OutputKind]):
        raise RequestError(
            "bad-project",
            f'target "{name}" has the unknown output "{output}"{nearest(output, known)}',
            file=lines.where(section, "output"),
            next_step="known outputs: " + ", ".join(known),
        )
    where = lines.where(section)
    target = _convert({**table, "name": name, "where": where}, struct, f'target "{name}"', where)
    if isinstance(target, ModelTarget):
        target = msgspec.structs.replace(target, places={op: lines.where(f"{section}.ops.{op}") for op in target.ops})
    _check_paths(target, lines, outside)
    if not 0 < target.timeout_s <= LONGEST_TIMEOUT_S:  # also not a number
        raise RequestError(
            "bad-project",
            f'target "{name}": timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}',
            file=lines.where(section, "timeout_s"),
            next_step="give the seconds after which a compiler is ended",
        )
    return target


def _check_texts(target: str, table: Mapping[str, Any], lines: _Lines) -> None:
    """What an argument or a path cannot hold is said here, not by a compiler that cannot be started."""
    for key, value in table.items():
        values = value.items() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any("\0" in str(item) or (isinstance(item, tuple) and "\0" in "".join(map(str, item))) for item in values):
            raise RequestError(
                "bad-project",
                f'{key} of target "{target}" has a zero byte',
                file=lines.where(f"target.{target}", key),
                next_step="remove it",
            )


def _check_paths(target: Target, lines: _Lines, outside: bool) -> None:
    section = f"target.{target.name}"
    output_name = getattr(target, "output_name", "")
    if output_name and (os.path.basename(output_name) != output_name or output_name in (".", "..")):
        raise RequestError(
            "path-outside",
            f'output_name "{output_name}" of target "{target.name}" must be a file name without folders',
            file=lines.where(section, "output_name"),
            next_step="results are written below build_dir; copy them where you want them",
        )
    if len(os.fsencode(output_name or target.name)) > LONGEST_NAME_BYTES:
        raise RequestError(
            "bad-project",
            f'the name of {"the output of " if output_name else ""}target "{target.name[:40]}" is too long',
            file=lines.where(section, "output_name" if output_name else ""),
            next_step=f"a name may have {LONGEST_NAME_BYTES} bytes",
        )
    if isinstance(target, CompiledTarget) and not target.sources:
        raise RequestError(
            "missing-source",
            f'target "{target.name}" has no sources',
            file=lines.where(section, "sources"),
            next_step='name files or patterns, as in sources = ["src/*.cu"]',
        )
    for key in ("sources", "include", "source", "archive"):
        value = getattr(target, key, ())
        if not value and isinstance(target, TorchTarget):
            continue  # one of two that it may have
        for path in (value,) if isinstance(value, str) else value:
            if not path:
                raise RequestError(
                    "bad-path",
                    f'{key} of target "{target.name}" has an empty path',
                    file=lines.where(section, key),
                    next_step="remove it, or name a file or folder",
                )
            if not outside and leaves_root(path):
                raise RequestError(
                    "path-outside",
                    f'{key}: "{path}" of target "{target.name}" leaves the project',
                    next_step="an inline target may name only files of the project; write it in buildd.toml instead",
                )


def _wrap_lists(table: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Lets a single string stand for a list of one."""
    lists = _lists_of(struct)
    return {key: [value] if key in lists and isinstance(value, str) else value for key, value in table.items()}


@cache
def _lists_of(struct: type[msgspec.Struct]) -> frozenset[str]:
    """Fields that are lists of strings. msgspec works annotations out anew for each call, which costs 0.5 ms."""
    return frozenset(field.name for field in msgspec.structs.fields(struct) if field.type == tuple[str, ...])


def _convert(table: dict[str, Any], struct: type[StructT], what: str, where: str) -> StructT:
    try:
        return msgspec.convert(table, described(struct))
    except msgspec.ValidationError as error:
        message = re.sub(r" - at `\$\.?(.*)`$", r' for "\1"', str(error)).replace("`", "")
        raise RequestError(
            "bad-project", f"{what}: {message[:1].lower()}{message[1:]}", file=where, next_step="correct this key"
        ) from error


def _ordered(asked: Iterable[str], targets: Mapping[str, Target], file: str) -> tuple[Target, ...]:
    """Dependencies before what needs them, otherwise as asked."""
    done: dict[str, Target] = {}

    def visit(name: str, chain: tuple[str, ...], where: str) -> None:
        if name in done:
            return
        if name in chain:
            cycle = " -> ".join((*chain[chain.index(name) :], name))
            raise RequestError(
                "dependency-cycle", f"targets depend on each other: {cycle}", file=where, next_step="remove one `deps`"
            )
        target = targets.get(name)
        if target is None:
            by = f' (in `deps` of "{chain[-1]}")' if chain else ""
            raise RequestError(
                "unknown-target",
                f'there is no target "{name}"{by}{nearest(name, targets)}',
                file=where,
                next_step="targets: " + (", ".join(sorted(targets)) or "none"),
            )
        for dependency in target.deps:
            visit(dependency, (*chain, name), target.where)
        done[name] = target

    for name in asked:
        visit(name, (), file)
    return tuple(done.values())
