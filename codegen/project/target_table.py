"""Turns the table of a target into a typed target: checks its keys, types, name and paths.

Knows no file: a table comes from buildd.toml or from an inline spec. The target's kind checks the meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from codegen.errors import RequestError, nearest
from codegen.project.kinds import ALIASES, INLINE_KINDS, KINDS, REFUSED
from codegen.project.target import (
    CompiledTarget,
    JaxTarget,
    ModelTarget,
    OutputKind,
    Target,
    TorchTarget,
)
from codegen.project.toml_file import TomlLines
from codegen.sources import leaves_root
from protocol.described import described

INTERNAL_FIELDS = ("name", "where", "lines", "places")
"""Fields of a target that are not keys of its table."""
StructT = TypeVar("StructT", bound=msgspec.Struct)
LONGEST_TIMEOUT_S = 30 * 86400.0
LONGEST_NAME_BYTES = 200
"""Linux allows 255; the rest is for "lib", ".so" and the suffix of a temporary file."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def target_of(name: str, table: Any, lines: TomlLines, *, outside: bool) -> Target:
    """Return the target of a table.

    Args:
        outside: whether paths may leave the project; those of a spec from the wire may not.

    Raises:
        RequestError: the table is wrong; the message names the key.
    """
    section = f"target.{name}"
    if not _NAME.fullmatch(name):
        raise RequestError(
            "bad-project",
            f'"{name}" is not a valid target name',
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
            next_step="choose one of the kinds: " + ", ".join(KINDS),
        )
    struct = kinds[kind]
    keys = [field for field in struct.__struct_fields__ if field not in INTERNAL_FIELDS]
    table = _by_own_names(table, ALIASES.get(struct, {}), section, lines)
    check_keys(table, ("kind", *keys), section, lines, REFUSED.get(struct, {}))
    _check_texts(name, table, lines)
    table = wrap_lists({key: value for key, value in table.items() if key != "kind"}, struct)
    output = table.get("output")
    if output == "objects":
        table["output"] = "object"
    elif isinstance(output, str) and output not in (known := [value.value for value in OutputKind]):
        raise RequestError(
            "bad-project",
            f'target "{name}" has the unknown output "{output}"{nearest(output, known)}',
            file=lines.where(section, "output"),
            next_step="choose one of the outputs: " + ", ".join(known),
        )
    own = {"name": name, "where": lines.where(section), "lines": tuple(lines.keys(section).items())}
    target = convert({**table, **own}, struct, f'target "{name}"', section, lines)
    if isinstance(target, ModelTarget):
        target = msgspec.structs.replace(target, places={op: lines.where(f"{section}.ops.{op}") for op in target.ops})
    _check_paths(target, lines, outside)
    if not 0 < target.timeout_s <= LONGEST_TIMEOUT_S:  # false for NaN, too
        raise RequestError(
            "bad-project",
            f'target "{name}": timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}',
            file=lines.where(section, "timeout_s"),
            next_step="give the number of seconds after which buildd stops a compiler",
        )
    return target


def _by_own_names(table: dict[str, Any], aliases: Mapping[str, str], section: str, lines: TomlLines) -> dict[str, Any]:
    """Return a table with buildd's names of keys in place of the libraries' own."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = aliases.get(key, key)
        if name in found:
            raise RequestError(
                "bad-project",
                f'[{section}] has the key "{name}" twice: {key} is another name of it',
                file=lines.where(section, key),
                next_step="remove one of the two",
            )
        found[name] = value
    return found


def _check_texts(target: str, table: Mapping[str, Any], lines: TomlLines) -> None:
    """Raise RequestError for a text that no argument or path can hold. Otherwise the compiler could not even be
    started."""
    for key, value in table.items():
        values = value.items() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any("\0" in str(item) or (isinstance(item, tuple) and "\0" in "".join(map(str, item))) for item in values):
            raise RequestError(
                "bad-project",
                f'{key} of target "{target}" contains a zero byte',
                file=lines.where(f"target.{target}", key),
                next_step="remove it",
            )


def _check_paths(target: Target, lines: TomlLines, outside: bool) -> None:
    section = f"target.{target.name}"
    output_name = getattr(target, "output_name", "")
    if output_name and (os.path.basename(output_name) != output_name or output_name in (".", "..")):
        raise RequestError(
            "path-outside",
            f'output_name "{output_name}" of target "{target.name}" must be a file name without folders',
            file=lines.where(section, "output_name"),
            next_step="outputs are written below build_dir; copy them to other folders yourself",
        )
    if len(os.fsencode(output_name or target.name)) > LONGEST_NAME_BYTES:
        raise RequestError(
            "bad-project",
            f'the name of {"the output of " if output_name else ""}target "{target.name[:40]}" is too long',
            file=lines.where(section, "output_name" if output_name else ""),
            next_step=f"use a name of at most {LONGEST_NAME_BYTES} bytes",
        )
    if isinstance(target, CompiledTarget) and not target.sources:
        raise RequestError(
            "missing-source",
            f'target "{target.name}" has no sources',
            file=lines.where(section, "sources"),
            next_step='name files or patterns, as in sources = ["src/*.cu"]',
        )
    for key in ("sources", "include", "source", "archive", "topology", "autotune"):
        value = getattr(target, key, ())
        if not value and isinstance(target, TorchTarget | JaxTarget):
            continue  # an optional list: some kinds have two
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
                    next_step="an inline target may only name files of the project; define it in buildd.toml instead",
                )


def check_keys(
    table: Mapping[str, Any],
    known: Iterable[str],
    name: str,
    lines: TomlLines,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise RequestError for a key that is not known.

    Args:
        refused: parameters of a library that are no keys -> why.
    """
    known = tuple(known)
    for key in table:
        if key in refused:
            raise RequestError(
                "bad-project",
                f'"{key}" in [{name}] is no key: {refused[key]}',
                file=lines.where(name, key),
                next_step="remove it",
            )
        if key not in known:
            raise RequestError(
                "bad-project",
                f'unknown key "{key}" in [{name}]{nearest(key, known)}',
                file=lines.where(name, key),
                next_step="use one of the keys: " + ", ".join(sorted(known)),
            )


def wrap_lists(table: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Replace a single string by a list of one, where a list is expected."""
    lists = _lists_of(struct)
    return {key: [value] if key in lists and isinstance(value, str) else value for key, value in table.items()}


@cache
def _lists_of(struct: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that are lists of strings. Cached: msgspec evaluates the annotations at each call, which takes
    0.5 ms."""
    return frozenset(field.name for field in msgspec.structs.fields(struct) if field.type == tuple[str, ...])


def convert(table: dict[str, Any], struct: type[StructT], what: str, section: str, lines: TomlLines) -> StructT:
    """Return a table as a struct. Raises RequestError if a key is missing or a value has another type than its key."""
    try:
        return msgspec.convert(table, described(struct))
    except msgspec.ValidationError as error:
        if lacking := re.fullmatch(r"Object missing required field `(\w+)`", str(error)):
            value = '["src/*.cu"]' if lacking[1] == "sources" else "..."
            raise RequestError(
                "bad-project",
                f'{what} has no "{lacking[1]}"',
                file=lines.where(section),
                next_step=f"add {lacking[1]} = {value} below [{section}]",
            ) from error
        message = re.sub(r" - at `\$\.?(.*)`$", r' for "\1"', str(error)).replace("`", "")
        at = re.search(r"`\$\.([^.\[`]+)", str(error))
        raise RequestError(
            "bad-project",
            f"{what}: {message[:1].lower()}{message[1:]}",
            file=lines.where(section, at[1] if at else ""),
            next_step="correct this key",
        ) from error
