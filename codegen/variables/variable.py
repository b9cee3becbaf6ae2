"""One environment variable: its name, how its value is parsed, and its effect.

Knows no table and no request. Libraries disagree about which values mean "on", so each switch has its own rule.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec

Value = str | int | float | bool | tuple[str, ...] | None
"""The parsed value of a raw string; None means "not set and without a default"."""


class VariableClass(Enum):
    """The kind of thing that a variable can change."""

    KEY = "key"
    """Part of the action key, usually through the flags that it adds."""
    SOURCE = "source"
    """Generated text, or where a tool is found; the digests cover both anyway."""
    SCHED = "sched"
    """Slots, devices, order; never in a key."""
    CACHE = "cache"
    """What is looked up, stored or flushed."""
    PROFILE = "profile"
    """Which candidate can win."""
    LOG = "log"
    """Output only."""
    PASS = "pass"
    """Forwarded unchanged."""
    STRIP = "strip"
    """Must not reach a worker; a client does not send it."""
    SECRET = "secret"
    """Never stored, logged, keyed or sent."""
    LAYOUT = "layout"
    """Which files a generator writes, and where."""


KEY: Final = VariableClass.KEY
SOURCE: Final = VariableClass.SOURCE
SCHED: Final = VariableClass.SCHED
CACHE: Final = VariableClass.CACHE
PROFILE: Final = VariableClass.PROFILE
LOG: Final = VariableClass.LOG
PASS: Final = VariableClass.PASS
STRIP: Final = VariableClass.STRIP
SECRET: Final = VariableClass.SECRET
LAYOUT: Final = VariableClass.LAYOUT


class Kind(Enum):
    """How a raw value is parsed; the switches differ in which values mean "on"."""

    STRING = "string"
    INT = "int"
    COUNT = "count"
    """A whole number, 1 or more."""
    NUMBER = "number"
    SIZE = "size"
    """Bytes, with an optional unit: "20GiB", "512M"."""
    PATH = "path"
    PATHS = "paths"
    """Separated by colons."""
    LIST = "list"
    """Separated by commas."""
    FLAGS = "flags"
    """Command-line words, quoted as for a shell."""
    CHOICE = "choice"
    DEVICES = "devices"
    """CUDA's rule: indices or UUIDs separated by commas; the first "-1" hides itself and all that follow."""
    LOG_LEVEL = "log level"
    ON_IF_1 = "on if 1"
    """Everything but exactly "1" is off (AITemplate, Inductor)."""
    ON_UNLESS_0 = "on unless 0"
    ON_IF_SET = "on if set"
    """Any value, even an empty one."""
    ON_IF_INT_1 = "on if the number 1"
    """int(value) == 1; a value that is not a number is an error (AIT_RECOMPILE)."""
    ON_IF_NONZERO = "on if nonzero"
    """bool(int(value))."""
    ON_IF_WORD = "on if true/yes/ok/1/easy"
    """eformer's check_bool_flag; letter case does not matter."""
    ON_IF_TRUE_YES_1_ON = "on if true/yes/1/on"
    """Letter case matters (EasyDeL's sharding switches)."""
    TRISTATE = "1, 0 or automatic"
    TRITON_SWITCH = "on if 1/true/on/y/yes"
    BUILDD_SWITCH = "on: 1/true/yes/on, off: 0/false/no/off"


ACCEPTED: Final[dict[Kind, str]] = {
    Kind.INT: "a whole number",
    Kind.COUNT: "a whole number, 1 or more",
    Kind.NUMBER: "a number",
    Kind.SIZE: 'a size in bytes, such as "512MiB" or "20GiB"',
    Kind.FLAGS: "command-line words, quoted as for a shell",
    Kind.DEVICES: 'device numbers or UUIDs, such as "0,1"',
    Kind.LOG_LEVEL: "DEBUG, INFO, WARNING, ERROR, CRITICAL or a number",
    Kind.ON_IF_1: '"1" (on) or "0" (off)',
    Kind.ON_IF_INT_1: '"1" or another whole number',
    Kind.ON_IF_NONZERO: '"1" or "0"',
    Kind.TRISTATE: '"1", "0" or nothing',
    Kind.BUILDD_SWITCH: "1, true, yes, on, 0, false, no or off",
}

# Compiled on first use: this module is imported by every command.
_SIZE: Final = r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?"
_DEVICE: Final = r"-?\d+|(?:GPU|MIG)-[0-9A-Za-z/-]+"
_LOG_LEVELS: Final = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}
_ON_WORDS: Final = {
    Kind.ON_IF_WORD: frozenset({"true", "yes", "ok", "1", "easy"}),
    Kind.TRITON_SWITCH: frozenset({"1", "true", "on", "y", "yes"}),
}


class Section(Enum):
    """Where a variable comes from."""

    AITEMPLATE = "aitemplate"
    JAX = "jax"
    TORCH = "torch"
    TRITON = "triton"
    TOOLS = "tools"
    """Host compilers, nvcc and HIP: the only section that reaches tools which buildd runs for its own targets."""
    BUILDD = "buildd"


class ToolFamily(Enum):
    """A group of tools that reads the same variables."""

    HOST = "host"
    CUDA = "cuda"
    HIP = "hip"
    TRITON = "triton"
    TORCH = "torch"
    JAX = "jax"


class Use(Enum):
    """What buildd does with a variable."""

    ACTS = "acts"
    """buildd reads it, or changes it for the programs that it starts."""
    PASSED_ON = "passed on"
    """It reaches the tools of its row's families, and is in the keys of their actions."""
    NONE = "no effect"
    """Known from other documents; the row's effect says why it does nothing here."""


class SetIn(Enum):
    """Where a variable acts if it is set."""

    ANYWHERE = "shell, buildd.toml, config.toml"
    """Read for each request."""
    START = "shell that starts the daemon, config.toml"
    """Read when the daemon starts, for all requests."""
    SHELL = "shell"
    """Read by programs that know no file, or before a file is known."""


class Variable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the table."""

    name: str
    """Exact, or a prefix with a trailing star: "TORCHINDUCTOR_*"."""
    kind: Kind
    default: str
    """The default that the library documents, raw; empty if there is none."""
    classes: tuple[VariableClass, ...]
    meaning: str
    """The library's use of the variable."""
    effect: str
    """buildd's use of the variable."""
    section: Section = Section.BUILDD
    acts: bool = False
    """buildd itself acts on the variable; otherwise the value is an opaque string that buildd at most forwards."""
    set_in: SetIn = SetIn.ANYWHERE
    choices: tuple[str, ...] = ()
    families: tuple[ToolFamily, ...] = ()
    """Tools of buildd's own targets that receive the variable."""

    @property
    def use(self) -> Use:
        if self.acts:
            return Use.ACTS
        return Use.PASSED_ON if self.families else Use.NONE

    @property
    def is_unknown(self) -> bool:
        """Whether the row stands for names that look like a library's variables and are none."""
        return self.name in ("AIT_*", "BUILDD_*")

    @property
    def is_pattern(self) -> bool:
        return self.name.endswith("*")

    @property
    def is_secret(self) -> bool:
        return SECRET in self.classes

    @property
    def is_sent(self) -> bool:
        """Whether a client's request carries the variable."""
        return SECRET not in self.classes and STRIP not in self.classes

    @property
    def accepted(self) -> str:
        """The accepted values, for messages."""
        if self.kind is Kind.CHOICE:
            return ", ".join(self.choices)
        return ACCEPTED.get(self.kind, "any text")

    def read(self, raw: str) -> Value:
        """Parse `raw` by this variable's own rule.

        Raises:
            ValueError: `raw` cannot be parsed; `accepted` lists the valid values.
        """
        value = _read(self.kind, raw)
        if self.kind is Kind.CHOICE and value not in self.choices:
            raise ValueError(raw)
        return value

    def doubt(self, raw: str) -> str:
        """Return a warning if `raw` probably does not mean what the user intended; else empty.

        That is a switch that is not "on", or a word that the library does not know.
        """
        if self.kind is Kind.CHOICE and not self.acts:
            # The libraries' own rule: letter case does not matter.
            known = raw.upper() in (choice.upper() for choice in self.choices)
            return "" if known or not raw else f"{self.name}={shown(raw)} is none of {', '.join(self.choices)}"
        if self.kind is Kind.ON_IF_1 and raw not in ("", "0", "1"):
            return f'{self.name}={shown(raw)} counts as off: only "1" is on'
        return ""


def shown(raw: str) -> str:
    """Return a value for a message: quoted, bounded, printable."""
    text = raw if len(raw) <= 120 else raw[:117] + "..."
    return '"' + text.encode("unicode_escape", "backslashreplace").decode("ascii").replace('"', '\\"') + '"'


def _read(kind: Kind, raw: str) -> Value:
    match kind:
        case Kind.INT:
            return int(raw)
        case Kind.COUNT:
            count = int(raw)
            if count < 1:
                raise ValueError(raw)
            return count
        case Kind.NUMBER:
            return float(raw)
        case Kind.SIZE:
            return size_bytes(raw)
        case Kind.PATH:
            return raw
        case Kind.PATHS:
            return tuple(part for part in raw.split(":") if part)
        case Kind.LIST:
            return tuple(part.strip() for part in raw.split(",") if part.strip())
        case Kind.FLAGS:
            import shlex

            return tuple(shlex.split(raw))
        case Kind.DEVICES:
            return _devices(raw)
        case Kind.LOG_LEVEL:
            word = raw.strip().upper()
            return _LOG_LEVELS[word] if word in _LOG_LEVELS else int(word)
        case Kind.STRING | Kind.CHOICE:
            return raw
    return _is_on(kind, raw)


def _is_on(kind: Kind, raw: str) -> bool | None:
    match kind:
        case Kind.ON_IF_1:
            return raw == "1"
        case Kind.ON_UNLESS_0:
            return raw != "0"
        case Kind.ON_IF_SET:
            return True
        case Kind.ON_IF_INT_1:
            return int(raw) == 1
        case Kind.ON_IF_NONZERO:
            return int(raw) != 0
        case Kind.ON_IF_TRUE_YES_1_ON:
            return raw in ("true", "yes", "1", "on")
        case Kind.TRISTATE:
            return {"1": True, "0": False}.get(raw)
        case Kind.BUILDD_SWITCH:
            word = raw.strip().lower()
            if word in ("", "0", "false", "no", "off"):
                return False
            if word in ("1", "true", "yes", "on"):
                return True
            raise ValueError(raw)
    return raw.lower() in _ON_WORDS[kind]


def size_bytes(raw: str) -> int:
    """Return the bytes of "512", "20GiB" or "1.5G"; units are powers of 1024. Raises ValueError."""
    match = re.fullmatch(_SIZE, raw.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(raw)
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _devices(raw: str) -> tuple[str, ...]:
    devices: list[str] = []
    for part in raw.split(","):
        word = part.strip()
        if not word and not raw.strip():
            break
        if re.fullmatch(_DEVICE, word) is None:
            raise ValueError(raw)
        if word.startswith("-"):
            break
        devices.append(word)
    return tuple(devices)


def rows(section: Section, *variables: Variable) -> tuple[Variable, ...]:
    """Return the variables as rows of one section."""
    return tuple(msgspec.structs.replace(variable, section=section) for variable in variables)
