"""The values of a request's variables: from the client's environment, from buildd.toml and from the user's config.toml.

This module decides which of them wins, and everything that reads a variable asks it. Knows no tool and no target; the
rows are in `environment`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from enum import Enum
from functools import lru_cache

import msgspec

from codegen.errors import RequestError
from codegen.reach import read_regular
from codegen.variables.environment import find, nearest_name
from codegen.variables.variable import Kind, Section, SetIn, Value, Variable, shown
from protocol.messages import Request

_MOST_SETTINGS_BYTES = 1 << 20
"""A larger file of the user's settings is refused."""
_EMPTY_IS_UNSET = frozenset(
    {Kind.INT, Kind.COUNT, Kind.NUMBER, Kind.SIZE, Kind.PATH, Kind.LOG_LEVEL, Kind.CHOICE, Kind.ON_IF_INT_1}
    | {Kind.ON_IF_NONZERO}
)


class Source(Enum):
    """Where a variable's value comes from, strongest first."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    PROJECT = "buildd.toml"
    USER = "config.toml"
    DEFAULT = "default"


class Resolved(msgspec.Struct, frozen=True):
    """A variable's value and its source."""

    name: str
    value: Value
    source: Source
    raw: str

    @property
    def is_set(self) -> bool:
        return self.source is not Source.DEFAULT

    @property
    def origin(self) -> str:
        """The value and its source for people: "AIT_NDEBUG=0 (environment)"."""
        return f"{self.name}={self.raw} ({self.source.value})"


class Settings(msgspec.Struct, frozen=True):
    """A request's variables as typed values. Order of precedence: option, client's environment, buildd.toml, user's
    file.

    Args:
        request_env: the client's variables.
        project_values: [environment] of buildd.toml.
        options: values from the command line, by variable name.
        strict: an unreadable value is an error (build, warm, profile); otherwise it becomes a line in `notices`.
        user_values: [environment] of the user's config.toml.
    """

    request_env: Mapping[str, str] = msgspec.field(default_factory=dict)
    project_values: Mapping[str, str] = msgspec.field(default_factory=dict)
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    strict: bool = True
    user_values: Mapping[str, str] = msgspec.field(default_factory=dict)
    notices: list[str] = msgspec.field(default_factory=list)
    """Lines for the user, each once: values that were ignored or probably do not mean what the user intended."""

    def value(self, name: str) -> Resolved:
        """Return the value of a variable and its source.

        Raises:
            RequestError: "bad-variable", if `strict` is true and the value cannot be read.
            KeyError: the table has no such variable, which is a bug in the caller.
        """
        variable = find(name)
        if variable is None:
            raise KeyError(name)
        for source, values in self._sources():
            raw = values.get(name)
            if raw is None:
                continue
            if not raw and variable.kind in _EMPTY_IS_UNSET:
                break  # An empty value in the shell takes back what a file says.
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
        """Read every variable that is set and that buildd acts on, so that a bad value is reported before anything
        runs. A doubtful value of one that is passed on becomes a line in `notices`.

        Raises:
            RequestError: "bad-variable", as `value`.
        """
        for _, values in self._sources():
            for name in values:
                variable = find(name)
                if variable is None or variable.is_pattern or is_of_another_program(variable):
                    continue
                if variable.acts:
                    self.value(name)
                elif variable.families:
                    self._note(variable.doubt(values[name]))

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

    def merged(self) -> dict[str, str]:
        """Return the raw value of every variable that is set, as one environment."""
        return {**self.user_values, **self.project_values, **self.request_env, **self.options}

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


def is_of_another_program(variable: Variable) -> bool:
    """Tell whether the shell sets a variable for the programs under `buildd run`, not for builds."""
    return variable.section is not Section.BUILDD and variable.set_in is SetIn.SHELL


def _nothing(kind: Kind) -> Value:
    if kind in (Kind.LIST, Kind.PATHS, Kind.FLAGS):
        return ()
    if kind is Kind.STRING:
        return ""
    return False if kind.value.startswith("on") else None


def settings_of(request: Request) -> Settings:
    """Return a request's settings for everything but its plan.

    A file that cannot be read counts as empty, and a value that cannot be read is ignored: the plan reports both.
    """
    return read_settings(request.environment, os.path.join(request.project, request.file) if request.file else "")


def read_settings(environ: Mapping[str, str], project_file: str = "") -> Settings:
    """Return the settings of an environment; mistakes as in `settings_of`.

    Args:
        environ: the client's variables; HOME and XDG_CONFIG_HOME locate the user's file.
        project_file: path of a buildd.toml; empty if there is none.
    """
    try:
        users = user_values(environ)
    except RequestError:
        users = {}
    return Settings(environ, project_values(project_file), strict=False, user_values=users)


def project_values(path: str) -> dict[str, str]:
    """Return [environment] of a buildd.toml; empty if it cannot be read, which the plan reports."""
    try:
        with open(path, "rb") as stream:
            return dict(_values_in(stream.read()))
    except (OSError, RequestError, ValueError):
        return {}


@lru_cache(maxsize=8)
def _values_in(content: bytes) -> Mapping[str, str]:
    # A request that has nothing to do asks this, too, and a project file of thousands of targets takes long to parse.
    if b"environment" not in content:
        return {}
    import tomllib

    return project_table(tomllib.loads(content.decode()).get("environment", {}), "buildd.toml")


def user_file(environ: Mapping[str, str]) -> str:
    """Return the path of the user's own settings; the file may not exist."""
    home = environ.get("XDG_CONFIG_HOME", "")
    folder = home if os.path.isabs(home) else os.path.join(environ.get("HOME", ""), ".config")
    return os.path.join(folder, "buildd", "config.toml")


def user_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return [environment] of the user's own $XDG_CONFIG_HOME/buildd/config.toml; empty if there is no such file.

    Raises:
        RequestError: "bad-variable", the file is not a valid table of variables.
    """
    path = user_file(environ)
    if not os.path.isfile(path):
        return {}
    import tomllib

    try:
        table = tomllib.loads(read_regular(path, _MOST_SETTINGS_BYTES).decode()).get("environment", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{path}:{line[1]}" if line else path
        raise RequestError(
            "bad-variable",
            f"the user's settings cannot be read: {error}",
            file=where,
            next_step="correct or remove this file",
        ) from error
    return _plain_values(table, path, (SetIn.ANYWHERE, SetIn.START))


def project_table(table: object, file: str) -> dict[str, str]:
    """Return the [environment] table of a buildd.toml as raw strings.

    Raises:
        RequestError: "bad-variable", as for `user_values`.
    """
    return _plain_values(table, file, (SetIn.ANYWHERE,))


def _plain_values(table: object, file: str, places: Collection[SetIn]) -> dict[str, str]:
    """Return a TOML table of variables as raw strings: true and false become 1 and 0, lists are joined by commas.

    Args:
        places: variables that can be set elsewhere only are refused.

    Raises:
        RequestError: "bad-variable", an unknown name, or a value that is not a plain one.
    """
    if not isinstance(table, dict):
        raise RequestError(
            "bad-variable", "[environment] must be a table", file=file, next_step='write NAME = "value" below it'
        )
    values: dict[str, str] = {}
    for name, value in table.items():
        if why := _refusal(name, places):
            raise RequestError("bad-variable", f"[environment]: {name} {why[0]}", file=file, next_step=why[1])
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


def _refusal(name: str, places: Collection[SetIn]) -> tuple[str, str] | None:
    """Return why a file cannot set a variable, and the next step; None if it can."""
    variable = find(name)
    if variable is None or variable.is_unknown:
        near = nearest_name(name)
        hint = f'; did you mean "{near}"?' if near else ""
        return f"is not a variable that buildd knows{hint}", "list the known variables with buildd env --all"
    if variable.is_secret:
        return "is a secret and must be set in the environment", "list the known variables with buildd env --all"
    if not variable.is_sent or variable.set_in is SetIn.SHELL:
        return "acts in the shell's environment only", f"remove this line and export {name} in the shell"
    if variable.set_in not in places:
        return "acts on the daemon when it starts, for all projects", (
            "set it below [environment] in $XDG_CONFIG_HOME/buildd/config.toml, or in the shell that starts the daemon"
        )
    return None
