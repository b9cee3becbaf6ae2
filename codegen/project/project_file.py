"""Reads buildd.toml and inline specs into typed settings and targets, dependencies first.

Knows no compiler and no generator; `toml_file` reads the text, `target_table` checks each target's keys and types.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from codegen.errors import RequestError, nearest
from codegen.project.target import Target
from codegen.project.target_table import check_keys, convert, target_of, wrap_lists
from codegen.project.toml_file import TomlLines, read_toml
from codegen.sources import leaves_root
from codegen.variables.settings import project_table
from protocol.messages import Request


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The [project] and [toolchain] tables. Paths of the toolchain are absolute; a path that is not given is empty."""

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
    """Value of nvcc's -ccbin: a path, or a name on the request's PATH."""


@dataclass(frozen=True, slots=True)
class Project:
    """The requested part of a project, dependencies first."""

    settings: ProjectSettings
    targets: tuple[Target, ...]
    asked: tuple[str, ...]
    """Names of the requested targets; `targets` also has their dependencies."""
    read: tuple[str, ...]
    environment: Mapping[str, str]
    """The [environment] table: values of variables that the client does not set."""


_TABLES = {"project": ("name", "build_dir", "default"), "toolchain": ("cuda", "hip", "cutlass", "host_compiler")}


def load_project(request: Request) -> Project:
    """Return the requested targets with their dependencies.

    Raises:
        RequestError: the file or a spec is wrong; the message names the key and, if it is known, the line.
    """
    read: tuple[str, ...] = ()
    file = request.file
    text = ""
    tables: dict[str, Any] = {}
    if request.file:
        path = os.path.join(request.project, request.file)
        text, tables = read_toml(path, request.file)
        read = (path,)
    settings = _settings(tables, text, file, request.project)
    _check_build_folder(settings.build_dir, request.project)
    lines = TomlLines(text, file)
    targets: dict[str, Target] = {}
    for name, table in _tables_of(tables, file).items():
        targets[name] = target_of(name, table, lines, outside=True)
    for key in request.toolchain:
        if key not in _TABLES["toolchain"]:
            raise RequestError("bad-value", f'"{key}" is no key of [toolchain]{nearest(key, _TABLES["toolchain"])}')
    settings = msgspec.structs.replace(settings, **request.toolchain)
    if not settings.name:
        settings = msgspec.structs.replace(settings, name=os.path.basename(os.path.normpath(request.project)))
    for name, raw in request.specs.items():
        targets[name] = target_of(name, _spec(name, raw), TomlLines("", ""), outside=False)
    asked = request.targets or tuple(request.specs) or settings.default or tuple(targets)
    if not asked:
        raise RequestError(
            "bad-project",
            "the project has no target",
            file=file,
            next_step="add a [target.NAME] table with kind and sources",
        )
    ordered = _ordered(asked, targets, file)
    environment = project_table(tables.get("environment", {}), lines.where("environment"))
    return Project(settings, ordered, tuple(dict.fromkeys(asked)), read, environment)


def _settings(tables: dict[str, Any], text: str, file: str, folder: str) -> ProjectSettings:
    lines = TomlLines(text, file)
    for name in tables:
        if name not in ("target", "environment", *_TABLES):
            raise RequestError(
                "bad-project",
                f"unknown table [{name}]{nearest(name, ('target', *_TABLES))}",
                file=lines.where(name),
                next_step="use one of the tables project, toolchain, environment, target.NAME",
            )
    settings = ProjectSettings()
    for name, keys in _TABLES.items():
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise RequestError(
                "bad-project", f'"{name}" must be a table', file=lines.where(name), next_step=f"write it as [{name}]"
            )
        check_keys(table, keys, name, lines)
        part = convert(wrap_lists(table, ProjectSettings), ProjectSettings, f"[{name}]", name, lines)
        settings = msgspec.structs.replace(settings, **{key: getattr(part, key) for key in table})
    build = os.path.normpath(settings.build_dir)
    if leaves_root(build) or build == ".":
        raise RequestError(
            "path-outside",
            f'build_dir "{settings.build_dir}" is not a folder below the project',
            file=lines.where("project", "build_dir"),
            next_step="give a folder relative to the project",
        )
    roots = {
        key: os.path.normpath(os.path.join(folder, os.path.expanduser(value)))
        for key in ("cuda", "hip", "cutlass")
        if (value := getattr(settings, key))
    }
    return msgspec.structs.replace(settings, build_dir=build, **roots)


def _check_build_folder(build_dir: str, folder: str) -> None:
    """Raise RequestError for a file in the place of the folder that outputs are written to."""
    path = folder
    for name in build_dir.split("/"):
        path = os.path.join(path, name)
        if os.path.exists(path) and not os.path.isdir(path):
            raise RequestError(
                "bad-project",
                f"{os.path.relpath(path, folder)} is a file, and outputs are written to a folder of this name",
                file=path,
                next_step='move or remove it, or name another folder in [project]: build_dir = "out"',
            )


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


def _ordered(asked: Iterable[str], targets: Mapping[str, Target], file: str) -> tuple[Target, ...]:
    """Return the targets in the order of the request, each after its dependencies."""
    done: dict[str, Target] = {}
    chain: dict[str, tuple[Target, Iterator[str]]] = {}
    """The targets on the way from one that was asked for, each with the dependencies that are left. There is no
    recursion, because a chain may have thousands of targets."""

    def enter(name: str) -> None:
        above = chain[next(reversed(chain))][0] if chain else None
        if name in chain:
            names = list(chain)
            cycle = " -> ".join((*names[names.index(name) :], name))
            raise RequestError(
                "dependency-cycle",
                f"targets depend on each other: {cycle}",
                file=file if above is None else above.at("deps"),
                next_step="remove one of these `deps`",
            )
        target = targets.get(name)
        if target is None:
            near, known = nearest(name, targets), ", ".join(sorted(targets)) or "there is none yet"
            next_step = f"name one of the targets: {known}"
            if above is None:
                raise RequestError(
                    "unknown-target", f'there is no target "{name}"{near}', file=file, next_step=next_step
                )
            raise RequestError(
                "unknown-dependency",
                f'there is no target "{name}" (in `deps` of "{above.name}"){near}',
                file=above.at("deps"),
                next_step=next_step,
            )
        chain[name] = target, iter(target.deps)

    for name in asked:
        if name not in done:
            enter(name)
        while chain:
            last = next(reversed(chain))
            target, left = chain[last]
            dependency = next(left, None)
            if dependency is None:
                done[last] = target
                del chain[last]
            elif dependency not in done:
                enter(dependency)
    return tuple(done.values())
