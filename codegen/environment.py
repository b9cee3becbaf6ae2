"""The one table of environment variables: what a client sends, what a tool sees, what a value means.

Knows no tool and no target. The rows stand in `variables_*`, one module a section, and are loaded when first needed;
how a raw value is read stands in `variable`. Nothing else reads variables by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache

import msgspec

from codegen.plan import RequestError
from codegen.variable import KEY, Family, Kind, Section, Value, Variable, VariableClass, shown
from protocol.wire import is_text

__all__ = [
    "Family",
    "Kind",
    "Resolved",
    "Section",
    "Settings",
    "Source",
    "Value",
    "Variable",
    "VariableClass",
    "all_variables",
    "find",
    "is_pythons_own",
    "key_variables",
    "nearest_name",
    "select",
    "tool_environment",
    "unsendable",
    "user_values",
]

TOOL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What comes after the toolchain's folders on the PATH of tools that we run for our own targets."""
LOCALE = "C.UTF-8"
_EMPTY_IS_UNSET = frozenset(
    {Kind.INT, Kind.COUNT, Kind.NUMBER, Kind.SIZE, Kind.PATH, Kind.LOG_LEVEL, Kind.CHOICE, Kind.ON_IF_INT_1}
    | {Kind.ON_IF_NONZERO}
)


class _Table(msgspec.Struct, frozen=True):
    exact: Mapping[str, Variable]
    patterns: tuple[tuple[str, Variable], ...]
    """(prefix without its star, variable), longest prefix first."""


@cache
def all_variables() -> tuple[Variable, ...]:
    """Every row, in the order of the sections."""
    from codegen import (
        variables_aitemplate,
        variables_buildd,
        variables_inductor,
        variables_jax,
        variables_tools,
        variables_torch,
    )

    return (
        variables_aitemplate.VARIABLES
        + variables_jax.VARIABLES
        + variables_torch.VARIABLES
        + variables_inductor.VARIABLES
        + variables_tools.VARIABLES
        + variables_buildd.VARIABLES
    )


@cache
def _table() -> _Table:
    exact = {variable.name: variable for variable in all_variables() if not variable.is_pattern}
    patterns = [(variable.name[:-1], variable) for variable in all_variables() if variable.is_pattern]
    return _Table(exact, tuple(sorted(patterns, key=lambda row: len(row[0]), reverse=True)))


def find(name: str) -> Variable | None:
    """The row of a variable: its own, else that of the longest prefix pattern. A pattern finds its own row."""
    table = _table()
    own = table.exact.get(name)
    if own is not None:
        return own
    return next((variable for prefix, variable in table.patterns if name.startswith(prefix)), None)


def nearest_name(name: str) -> str:
    """The name in the table that `name` looks like, else empty."""
    import difflib

    return next(iter(difflib.get_close_matches(name, _table().exact, n=1, cutoff=0.8)), "")


def select(environ: Mapping[str, str]) -> dict[str, str]:
    """What a client sends of its environment: what the table has, never a secret or another process's identity.

    A value that is not UTF-8 cannot travel and is left out, see `unsendable`.
    """
    return {name: value for name, value, travels in _known(environ) if travels}


def unsendable(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that `select` left out because they are not UTF-8, sorted; worth a line to the user."""
    return tuple(sorted(name for name, _, travels in _known(environ) if not travels))


def is_pythons_own(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Python itself, not the user, put the variable there.

    In the C locale a starting interpreter sets LC_CTYPE for its children (PEP 538). Left in, a request from Python
    would have other keys than the same one from a stand-in.
    """
    return (
        name == "LC_CTYPE"
        and environ[name] in ("C.UTF-8", "C.utf8", "UTF-8")
        and not environ.get("LC_ALL")
        and environ.get("LANG", "") in ("", "C", "POSIX")
    )


def _known(environ: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    for name, value in environ.items():
        variable = find(name)
        if variable is not None and variable.is_sent and not is_pythons_own(name, environ):
            yield name, value, is_text(value)


def tool_environment(
    request_env: Mapping[str, str], family: Family, *, folders: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """The whole environment of a tool that we run for our own targets, sorted by name.

    Args:
        request_env: the client's variables.
        family: which tools; a variable passes only if its row names the family.
        folders: the toolchain's folders, first on PATH (absolute).

    The job's own TMPDIR is added when it runs: it differs from job to job, and must not reach a key.
    """
    chosen = dict(_passing(request_env, family))
    chosen["PATH"] = ":".join(dict.fromkeys((*folders, *TOOL_PATH.split(":"))))
    if not any(name == "LANG" or name.startswith("LC_") for name in chosen):
        chosen["LC_ALL"] = LOCALE
    return tuple(sorted(chosen.items()))


def _passing(request_env: Mapping[str, str], family: Family) -> Iterator[tuple[str, str]]:
    for name, value in request_env.items():
        variable = find(name)
        if variable is not None and family in variable.families and not is_pythons_own(name, request_env):
            yield name, value


def key_variables(request_env: Mapping[str, str], family: Family) -> tuple[tuple[str, str], ...]:
    """Variables that are set and part of the keys of this family's actions, sorted; for explanations."""
    chosen = [(name, value) for name, value in _passing(request_env, family) if _is_keyed(name)]
    if family in (Family.CUDA, Family.HIP):
        aitemplate = (name for name in request_env if (row := find(name)) and row.section is Section.AITEMPLATE)
        chosen += [(name, request_env[name]) for name in aitemplate if _is_keyed(name)]
    return tuple(sorted(set(chosen)))


def _is_keyed(name: str) -> bool:
    variable = find(name)
    return variable is not None and KEY in variable.classes


class Source(Enum):
    """Who said what a variable is worth, strongest first."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    PROJECT = "buildd.toml"
    USER = "config.toml"
    DEFAULT = "default"


class Resolved(msgspec.Struct, frozen=True):
    """A variable's value and where it comes from."""

    name: str
    value: Value
    source: Source
    raw: str

    @property
    def is_set(self) -> bool:
        return self.source is not Source.DEFAULT

    @property
    def origin(self) -> str:
        """For people: "AIT_NDEBUG=0 (environment)"."""
        return f"{self.name}={self.raw} ({self.source.value})"


class Settings(msgspec.Struct, frozen=True):
    """Typed reading of a request's variables. Option beats client's environment beats buildd.toml beats user's file.

    Args:
        request_env: the client's variables.
        project_values: [environment] of buildd.toml.
        options: what the command line said, by variable name.
        strict: a value that cannot be read is an error (build, warm, profile); otherwise a line in `notices`.
        user_values: [environment] of the user's config.toml.
    """

    request_env: Mapping[str, str] = msgspec.field(default_factory=dict)
    project_values: Mapping[str, str] = msgspec.field(default_factory=dict)
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    strict: bool = True
    user_values: Mapping[str, str] = msgspec.field(default_factory=dict)
    notices: list[str] = msgspec.field(default_factory=list)
    """Lines worth showing, each once: values that were ignored or are probably not what was meant."""

    def value(self, name: str) -> Resolved:
        """The value of a variable and who said it.

        Raises:
            RequestError: "bad-variable", when `strict` and the value cannot be read.
            KeyError: the table has no such variable; a mistake of the caller.
        """
        variable = find(name)
        if variable is None:
            raise KeyError(name)
        for source, values in self._sources():
            raw = values.get(name)
            if raw is None or (not raw and variable.kind in _EMPTY_IS_UNSET):
                continue
            try:
                value = variable.read(raw)
            except ValueError as error:
                self._bad(variable, raw, source, error)
                continue
            self._note(variable.doubt(raw))
            return Resolved(name, value, source, raw)
        default = variable.read(variable.default) if variable.default else _nothing(variable.kind)
        return Resolved(name, default, Source.DEFAULT, variable.default)

    def check(self) -> None:
        """Read every variable that is set and that buildd acts on, so that a bad one is said before anything runs.

        Raises:
            RequestError: "bad-variable", as `value`.
        """
        for _, values in self._sources():
            for name in values:
                variable = find(name)
                if variable is not None and variable.acts and not variable.is_pattern:
                    self.value(name)

    def is_on(self, name: str) -> bool:
        return self.value(name).value is True

    def number(self, name: str) -> int | None:
        value = self.value(name).value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        value = self.value(name).value
        return value if isinstance(value, str) else ""

    def words(self, name: str) -> tuple[str, ...]:
        value = self.value(name).value
        return value if isinstance(value, tuple) else ()

    def _sources(self) -> tuple[tuple[Source, Mapping[str, str]], ...]:
        return (
            (Source.OPTION, self.options),
            (Source.ENVIRONMENT, self.request_env),
            (Source.PROJECT, self.project_values),
            (Source.USER, self.user_values),
        )

    def _bad(self, variable: Variable, raw: str, source: Source, error: ValueError) -> None:
        where = "" if source is Source.ENVIRONMENT else f" (from {source.value})"
        message = f"{variable.name}={shown(raw)}{where} cannot be read; accepted: {variable.accepted}"
        if self.strict:
            raise RequestError(
                "bad-variable", message, next_step=f"unset {variable.name} or give it another value"
            ) from error
        self._note(message + "; ignored")

    def _note(self, line: str) -> None:
        if line and line not in self.notices:
            self.notices.append(line)


def _nothing(kind: Kind) -> Value:
    if kind in (Kind.LIST, Kind.PATHS, Kind.FLAGS):
        return ()
    if kind is Kind.STRING:
        return ""
    return False if kind.value.startswith("on") else None


def user_file(environ: Mapping[str, str]) -> str:
    """Where the user's own settings are, if there are any."""
    home = environ.get("XDG_CONFIG_HOME", "")
    folder = home if os.path.isabs(home) else os.path.join(environ.get("HOME", ""), ".config")
    return os.path.join(folder, "buildd", "config.toml")


def user_values(environ: Mapping[str, str]) -> dict[str, str]:
    """[environment] of the user's own $XDG_CONFIG_HOME/buildd/config.toml; nothing where there is no such file.

    Raises:
        RequestError: "bad-variable", the file cannot be read as variables.
    """
    path = user_file(environ)
    if not os.path.isfile(path):
        return {}
    import tomllib

    try:
        with open(path, "rb") as stream:
            table = tomllib.load(stream).get("environment", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{path}:{line[1]}" if line else path
        raise RequestError(
            "bad-variable",
            f"the user's settings cannot be read: {error}",
            file=where,
            next_step="correct or remove this file",
        ) from error
    return plain_values(table, path)


def plain_values(table: object, file: str) -> dict[str, str]:
    """A TOML table of variables as raw strings: true and false become 1 and 0, lists are joined by commas.

    Raises:
        RequestError: "bad-variable", a name that the table does not have, or a value that is no plain one.
    """
    if not isinstance(table, dict):
        raise RequestError(
            "bad-variable", "[environment] must be a table", file=file, next_step='write NAME = "value" below it'
        )
    values: dict[str, str] = {}
    for name, value in table.items():
        variable = find(name)
        if variable is None or variable.is_secret:
            near = nearest_name(name)
            hint = f'; did you mean "{near}"?' if near and variable is None else ""
            why = "is a secret, which belongs into the environment" if variable else "is no variable that buildd knows"
            raise RequestError(
                "bad-variable",
                f"[environment]: {name} {why}{hint}",
                file=file,
                next_step="buildd env --all lists the variables",
            )
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            values[name] = ",".join(value)
        elif isinstance(value, bool):
            values[name] = "1" if value else "0"
        elif isinstance(value, str | int | float):
            values[name] = str(value)
        else:
            raise RequestError(
                "bad-variable",
                f"[environment]: {name} must be text, a number or true/false",
                file=file,
                next_step="put its value in quotes",
            )
    return values
