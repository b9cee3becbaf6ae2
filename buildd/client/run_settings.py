"""The variables of a `buildd run`: those of the shell, and below them [environment] of buildd.toml and config.toml.

The command finds them in its environment, so they act on it exactly as if the shell had set them. Knows no shim.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping

from buildd.client.request import PROJECT_FILE
from buildd.ui.problems import print_note

_TIMES = "AIT_TIME_COMPILATION"
_TORCHS = "dedicated_log_torch_trace_"
"""Beginning of the names of torch's traces."""
_CLOCK_TICK_NS = 10_000_000
"""The kernel stamps files with a clock that is up to one tick late."""

EASYDEL = "EASYDEL_CACHE_COMPILES"
EASYDEL_FAULT = "is on: that cache can return the results of another function, because its key has no static values"
EASYDEL_STEP = f"unset {EASYDEL}; under `buildd run` it is not obeyed, and the store keeps what JAX compiles"


def complete(environ: MutableMapping[str, str], *, says: bool) -> Iterator[str]:
    """Add the files' variables to the environment of a command; yield lines for people.

    Args:
        says: whether there is something to say of values; a run within another one repeats nothing.
    """
    from codegen.errors import RequestError
    from codegen.variables.environment import find, misspelt
    from codegen.variables.settings import Settings, project_table, user_values
    from codegen.variables.variable import SetIn

    shell = dict(environ)
    users: dict[str, str] = {}
    project: dict[str, str] = {}
    try:
        users = user_values(environ)
        if file := _project_file():
            project = project_table(_table(file), file)
    except RequestError as error:
        yield f"{error.file}: {error.message}; [environment] is left out ({error.next_step})"
    files = {**users, **project}
    for name, value in files.items():
        row = find(name)
        if name not in environ and row is not None and row.set_in is SetIn.ANYWHERE:
            environ[name] = value
    if not says:
        return
    settings = Settings(shell, project, strict=False, user_values=users)
    settings.check()
    yield from settings.notices
    if settings.is_on(EASYDEL):
        yield f"{EASYDEL} {EASYDEL_FAULT}; {EASYDEL_STEP}"
    for name, near in misspelt(shell):
        yield f"{name} is not a variable that buildd knows; did you mean {near}?"


def takes_times(environ: MutableMapping[str, str]) -> bool:
    """Whether AIT_TIME_COMPILATION is on. Turns it off for the command: buildd times the jobs itself, and AITemplate's
    own way needs GNU time and leaves objcopy out of a recipe."""
    is_on = environ.get(_TIMES) == "1"
    if is_on:
        environ[_TIMES] = "0"
    return is_on


def traces(environ: Mapping[str, str], since_ns: int) -> list[str]:
    """Lines that name the traces which torch has written into TORCH_TRACE since a moment."""
    folder = environ.get("TORCH_TRACE", "")
    found = []
    try:
        for entry in os.scandir(folder) if folder else ():
            if entry.name.startswith(_TORCHS) and entry.stat().st_mtime_ns >= since_ns - _CLOCK_TICK_NS:
                found.append(f"TORCH_TRACE: {os.path.abspath(entry.path)}")
    except OSError:
        pass  # no such folder: torch has written nothing
    return sorted(found)


def publish_profiles(environ: Mapping[str, str]) -> None:
    """Merge the profiles that AITemplate measured into its shared databases."""
    from pathlib import Path

    from buildd.store import aitemplate_profiles

    for line in aitemplate_profiles.publish(Path(environ["BUILDD_DIR"])):
        print_note(f"buildd: {line}")


def _project_file() -> str:
    """The nearest buildd.toml from here upwards; empty if there is none."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return ""
    while not os.path.isfile(path := os.path.join(folder, PROJECT_FILE)):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    return path


def _table(file: str) -> object:
    """[environment] of a buildd.toml. Raises RequestError."""
    import tomllib

    from codegen.errors import RequestError

    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream).get("environment", {})
    except (OSError, ValueError) as error:
        raise RequestError(
            "bad-variable", f"it cannot be read: {error}", file=file, next_step="correct this file"
        ) from error
