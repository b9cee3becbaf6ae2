"""`buildd env`: every environment variable honoured, with its value, who said it, and what it does.

Knows no daemon: it shows what a request from this shell and folder would carry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from buildd.commands.common import parser, print_note
from codegen.environment import (
    Settings,
    Source,
    all_variables,
    find,
    is_pythons_own,
    nearest_name,
    plain_values,
    unsendable,
    user_values,
)

if TYPE_CHECKING:
    from codegen.variable import Variable

HIDDEN = "(set, hidden)"
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One variable as `--json` prints it."""

    name: str
    section: str
    type: str
    default: str
    classes: tuple[str, ...]
    meaning: str
    effect: str
    accepted: str
    acts: bool
    pattern: bool
    secret: bool
    sent: bool
    families: tuple[str, ...]
    value: str | None = None
    """What was set, raw; None where nothing is set. A secret's is never here."""
    source: str = Source.DEFAULT.value
    problem: str = ""


def run(arguments: list[str]) -> int:
    """`buildd env [--all] [--json]`; returns the exit status."""
    command = parser("env", "Environment variables that buildd honours: value, source, effect.")
    command.add_argument("--all", action="store_true", help="every known variable, set or not")
    command.add_argument("--json", action="store_true", help="machine-readable, with every field")
    options = command.parse_args(arguments)
    environ = dict(os.environ)
    settings = Settings(environ, _project_values(), strict=False, user_values=user_values(environ))
    entries = _entries(settings, everything=options.all)
    if options.json:
        encoded = msgspec.json.format(msgspec.json.encode(entries), indent=2)
        sys.stdout.write(encoded.decode() + "\n")
    else:
        _print(entries, everything=options.all)
    return 0


def _project_values() -> dict[str, str]:
    """[environment] of the buildd.toml in this folder; a file that is no TOML is `buildd build`'s to report."""
    import tomllib

    try:
        with open("buildd.toml", "rb") as stream:
            table = tomllib.load(stream).get("environment", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
    return plain_values(table, "buildd.toml")


def _entries(settings: Settings, *, everything: bool) -> list[Entry]:
    """What is set, by section, a pattern's variables after the pattern; with `everything` also what is not."""
    names: dict[str, list[str]] = {}
    for values in (settings.request_env, settings.project_values, settings.user_values):
        for name in values:
            row = None if values is settings.request_env and is_pythons_own(name, values) else find(name)
            if row is not None and name not in names.setdefault(row.name, []):
                names[row.name].append(name)
    lost = frozenset(unsendable(settings.request_env))
    entries: list[Entry] = []
    for variable in all_variables():
        present = sorted(names.get(variable.name, ()))
        if everything and (variable.is_pattern or not present):
            entries.append(_entry(variable, variable.name))
        entries += [_set_entry(variable, name, settings, lost) for name in present]
    return entries


def _set_entry(variable: Variable, name: str, settings: Settings, lost: frozenset[str]) -> Entry:
    winner, raw = _winner(name, settings)
    problem = ""
    if name in lost:
        problem = "not UTF-8: it is not sent"
    elif variable.name == "BUILDD_*":
        near = nearest_name(name)
        problem = "no such variable" + (f"; did you mean {near}?" if near else "")
    elif variable.acts and not variable.is_pattern:
        known = len(settings.notices)
        settings.value(name)
        problem = "; ".join(settings.notices[known:])
    return _entry(
        variable, name, value=None if variable.is_secret else _printable(raw), source=winner.value, problem=problem
    )


def _winner(name: str, settings: Settings) -> tuple[Source, str]:
    levels: tuple[tuple[Source, Mapping[str, str]], ...] = (
        (Source.ENVIRONMENT, settings.request_env),
        (Source.PROJECT, settings.project_values),
        (Source.USER, settings.user_values),
    )
    return next((source, values[name]) for source, values in levels if name in values)


def _printable(raw: str) -> str:
    """Without lone surrogates, which no output encoding takes."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _entry(
    variable: Variable, name: str, *, value: str | None = None, source: str = Source.DEFAULT.value, problem: str = ""
) -> Entry:
    return Entry(
        name=name,
        section=variable.section.value,
        type=variable.kind.value,
        default=variable.default,
        classes=tuple(kind.value for kind in variable.classes),
        meaning=variable.meaning,
        effect=variable.effect,
        accepted=variable.accepted,
        acts=variable.acts,
        pattern=variable.is_pattern and name == variable.name,
        secret=variable.is_secret,
        sent=variable.is_sent,
        families=tuple(family.value for family in variable.families),
        value=value,
        source=source,
        problem=problem,
    )


def _print(entries: Sequence[Entry], *, everything: bool) -> None:
    if not entries:
        print("no variable that buildd honours is set; buildd env --all lists them")
        return
    header = ("VARIABLE", "VALUE", "SOURCE", "EFFECT")
    table = [header, *((entry.name, _cell(entry), entry.source, entry.effect) for entry in entries)]
    limits = (48, 32, 12)
    widths = [min(limit, max(len(row[column]) for row in table)) for column, limit in enumerate(limits)]
    for row in table:
        cells = [_cut(text, width) for text, width in zip(row[1:3], widths[1:], strict=True)]
        padded = (row[0].ljust(widths[0]), cells[0].ljust(widths[1]), cells[1].ljust(widths[2]), row[3])
        print("  ".join(padded).rstrip())
    if not everything:
        print(f"\n{len(all_variables())} variables and families are known; buildd env --all lists them")
    sys.stdout.flush()
    for entry in entries:
        if entry.problem:
            print_note(
                entry.problem if entry.problem.startswith(f"{entry.name}=") else f"{entry.name}: {entry.problem}"
            )


def _cell(entry: Entry) -> str:
    if entry.secret and entry.source != Source.DEFAULT.value:
        return HIDDEN
    if entry.value is not None:
        return entry.value.translate(_CONTROL) or '""'
    return entry.default or "-"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
