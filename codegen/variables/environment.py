"""The table of environment variables: which of them a client sends, which a tool sees, and what a value means.

Knows no tool and no target. The rows are in `catalog`, one module per section, loaded on first use; `variable` parses a
raw value, and `settings` knows the files that set variables, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import msgspec

from codegen.variables.variable import ToolFamily, Use, Variable
from protocol.wire import is_text

TOOL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The end of PATH, after the toolchain's folders, for tools that buildd runs for its own targets."""
LOCALE = "C.UTF-8"
_LONG = 9
"""Shorter names are not guessed: too many programs have names of their own that differ in one letter."""


class _Table(msgspec.Struct, frozen=True):
    exact: Mapping[str, Variable]
    patterns: tuple[tuple[str, Variable], ...]
    """(prefix without star, variable), longest prefix first."""


@cache
def all_variables() -> tuple[Variable, ...]:
    """Return every row, in the order of the sections."""
    from codegen.variables.catalog import aitemplate as variables_aitemplate
    from codegen.variables.catalog import buildd_own, inductor, jax_family, tools, torch_family

    return (
        variables_aitemplate.VARIABLES
        + jax_family.VARIABLES
        + torch_family.VARIABLES
        + inductor.VARIABLES
        + tools.VARIABLES
        + buildd_own.VARIABLES
    )


@cache
def _table() -> _Table:
    exact = {variable.name: variable for variable in all_variables() if not variable.is_pattern}
    patterns = [(variable.name[:-1], variable) for variable in all_variables() if variable.is_pattern]
    return _Table(exact, tuple(sorted(patterns, key=lambda row: len(row[0]), reverse=True)))


def find(name: str) -> Variable | None:
    """Return a variable's own row, or else the row with the longest matching prefix. A pattern finds its own row."""
    table = _table()
    own = table.exact.get(name)
    if own is not None:
        return own
    return next((variable for prefix, variable in table.patterns if name.startswith(prefix)), None)


def nearest_name(name: str, *, similar: float = 0.8) -> str:
    """Return the name in the table that is most similar to `name`; empty if none is as similar (0 to 1)."""
    import difflib

    return next(iter(difflib.get_close_matches(name, _table().exact, n=1, cutoff=similar)), "")


def misspelt(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that buildd does not know and that are one slip from one with an effect, and those that begin
    as AITemplate's or buildd's own and are none; with the nearest name."""
    for name in environ:
        variable = find(name)
        if variable is None:
            near = _one_slip_from(name)
        elif variable.is_unknown:
            near = nearest_name(name)
        else:
            continue
        if near:
            yield name, near


@cache
def _by_beginning() -> Mapping[str, tuple[str, ...]]:
    """The names of the variables with an effect by their first two letters."""
    found: dict[str, list[str]] = {}
    for name, variable in _table().exact.items():
        if variable.use is not Use.NONE and len(name) >= _LONG:
            found.setdefault(name[:2], []).append(name)
    return {beginning: tuple(names) for beginning, names in found.items()}


def _one_slip_from(name: str) -> str:
    """Return a known name that differs from a long name in one letter more, less or other, or in two that are swapped.

    Every build asks this for each variable of its shell: difflib would take a quarter of a second.
    """
    if len(name) < _LONG:
        return ""
    for known in _by_beginning().get(name[:2], ()):
        if abs(len(known) - len(name)) > 1:
            continue
        at = next((i for i, (a, b) in enumerate(zip(name, known, strict=False)) if a != b), min(len(name), len(known)))
        swapped = name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :]
        if known[at:] in (name[at + 1 :], swapped) or name[at:] == known[at + 1 :] or name[at + 1 :] == known[at + 1 :]:
            return known
    return ""


def select(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a client sends: those in the table, never a secret or another process's identity.

    A value that is not UTF-8 cannot be sent and is left out; see `unsendable`.
    """
    return {name: value for name, value, travels in _known(environ) if travels}


def unsendable(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that `select` leaves out because they are not UTF-8, sorted. The user should see them."""
    return tuple(sorted(name for name, _, travels in _known(environ) if not travels))


def is_pythons_own(name: str, environ: Mapping[str, str]) -> bool:
    """Tell whether Python itself, not the user, set the variable.

    In the C locale the interpreter sets LC_CTYPE for its children at startup (PEP 538). With it, a request from Python
    would have other keys than the same request from a shim.
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
    request_env: Mapping[str, str], family: ToolFamily, *, folders: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Return the whole environment of a tool that buildd runs for its own targets, sorted by name.

    Args:
        request_env: the client's variables.
        family: the tool's family; a variable passes only if its row names it.
        folders: the toolchain's folders (absolute), which come first on PATH.

    TMPDIR is added when the job runs: it differs between jobs and must not reach a key.
    """
    chosen = dict(_passing(request_env, family))
    chosen["PATH"] = ":".join(dict.fromkeys((*folders, *TOOL_PATH.split(":"))))
    if not any(name == "LANG" or name.startswith("LC_") for name in chosen):
        chosen["LC_ALL"] = LOCALE
    return tuple(sorted(chosen.items()))


def _passing(request_env: Mapping[str, str], family: ToolFamily) -> Iterator[tuple[str, str]]:
    for name, value in request_env.items():
        variable = find(name)
        if variable is not None and family in variable.families and not is_pythons_own(name, request_env):
            yield name, value
