"""`buildd env`: lists the environment variables that buildd uses: value, source and effect.

Asks no daemon: it shows what a request from this shell and folder would carry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from buildd.client.request import project_of
from buildd.ui.problems import parser, print_note
from codegen.errors import RequestError
from codegen.variables.environment import all_variables, find, is_pythons_own, nearest_name, unsendable
from codegen.variables.settings import Settings, Source, is_of_another_program, project_table, user_values
from codegen.variables.tests_of import test_of

if TYPE_CHECKING:
    from codegen.variables.variable import Variable

HIDDEN = "(set, hidden)"
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class ListedVariable(msgspec.Struct, frozen=True, kw_only=True):
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
    use: str
    set_in: str
    """Where the variable acts if it is set."""
    test: str
    """The test, in buildd's repository, that sees what `effect` says."""
    value: str | None = None
    """The raw value; None if unset. A secret's value is never here."""
    source: str = Source.DEFAULT.value
    problem: str = ""


def run(arguments: list[str]) -> int:
    """`buildd env [--all] [--json]`; returns the exit status."""
    command = parser("env", "List the environment variables that buildd uses: value, source, effect.")
    command.add_argument("--all", action="store_true", help="list every known variable, set or not")
    command.add_argument("--json", action="store_true", help="print JSON with every field")
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
    """[environment] of this folder's project; a file that is not TOML is reported by `buildd build`.

    Raises: RequestError if the table is wrong.
    """
    import tomllib

    try:
        path = os.path.join(*project_of("", ""))
        with open(path, "rb") as stream:
            table = tomllib.load(stream).get("environment", {})
    except (RequestError, OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
    return project_table(table, path)


def _entries(settings: Settings, *, everything: bool) -> list[ListedVariable]:
    """The set variables by section, a pattern's variables after the pattern; with `everything` also the unset ones."""
    names: dict[str, list[str]] = {}
    for values in (settings.request_env, settings.project_values, settings.user_values):
        for name in values:
            row = None if values is settings.request_env and is_pythons_own(name, values) else find(name)
            if row is not None and name not in names.setdefault(row.name, []):
                names[row.name].append(name)
    lost = frozenset(unsendable(settings.request_env))
    entries: list[ListedVariable] = []
    for variable in all_variables():
        present = sorted(names.get(variable.name, ()))
        if everything and (variable.is_pattern or not present):
            entries.append(_entry(variable, variable.name))
        entries += [_set_entry(variable, name, settings, lost) for name in present]
    return entries


def _set_entry(variable: Variable, name: str, settings: Settings, lost: frozenset[str]) -> ListedVariable:
    winner, raw = _winner(name, settings)
    problem = ""
    if name in lost:
        problem = "not UTF-8, so it is not sent to the daemon"
    elif variable.is_pattern:
        near = nearest_name(name)
        problem = "no such variable" if variable.is_unknown else ""
        problem += ("; " if problem else "") + f"did you mean {near}?" if near else ""
    elif variable.acts and not is_of_another_program(variable):
        known = len(settings.notices)
        settings.value(name)
        problem = "; ".join(settings.notices[known:])
    elif variable.families:
        problem = variable.doubt(raw)
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
    """`raw` without lone surrogates, which no output encoding accepts."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _entry(
    variable: Variable, name: str, *, value: str | None = None, source: str = Source.DEFAULT.value, problem: str = ""
) -> ListedVariable:
    return ListedVariable(
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
        use=variable.use.value,
        set_in=variable.set_in.value,
        test=test_of(variable),
        value=value,
        source=source,
        problem=problem,
    )


def _print(entries: Sequence[ListedVariable], *, everything: bool) -> None:
    if not entries:
        print("none of the variables that buildd uses is set; buildd env --all lists them")
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
        print(f"\nbuildd knows {len(all_variables())} variables and families; buildd env --all lists them")
    sys.stdout.flush()
    for name, near in _misspelt():
        print_note(f"{name}: buildd does not know it; did you mean {near}?")
    for entry in entries:
        if entry.problem:
            print_note(
                entry.problem if entry.problem.startswith(f"{entry.name}=") else f"{entry.name}: {entry.problem}"
            )


def _misspelt() -> Iterator[tuple[str, str]]:
    """Variables of the shell that are no row's, and almost the name of one."""
    for name in sorted(os.environ):
        if find(name) is None and (near := nearest_name(name, similar=0.9)):
            yield name, near


def _cell(entry: ListedVariable) -> str:
    if entry.secret and entry.source != Source.DEFAULT.value:
        return HIDDEN
    if entry.value is not None:
        return entry.value.translate(_CONTROL) or '""'
    return entry.default or "-"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
