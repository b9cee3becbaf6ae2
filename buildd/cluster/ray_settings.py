"""What the user has said about a Ray cluster: RAY_ADDRESS of the shell that starts the daemon, and [ray] of
config.toml.

A project file can say nothing here: it must not decide on which machines the user's compilers run.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.errors import RequestError
from codegen.reach import read_regular
from codegen.variables.settings import Settings, user_file

_MOST_BYTES = 1 << 20
_KEYS = ("address", "python")
_OFF = ("no", "off", "0", "local")
"""Ray itself understands "local" as a cluster for one program."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """A cluster as the user wants it."""

    address: str
    """As Ray takes it: "HOST:PORT" of the head, or "auto" for the cluster that this machine belongs to."""
    python: str
    """The cluster's Python, which has ray."""


def read(settings: Settings, environ: Mapping[str, str]) -> RaySettings | None:
    """The settings; None where there is no cluster. Raises RequestError."""
    table = _table(environ)
    for name, value in table.items():
        if name not in _KEYS:
            raise _wrong(environ, f"[ray]: {name} is no setting; there are {', '.join(_KEYS)}")
        if not isinstance(value, str):
            raise _wrong(environ, f"[ray]: {name} must be text")
    address = str(table.get("address", "")) or settings.text("RAY_ADDRESS")
    if not address or address in _OFF:
        return None
    if "://" in address:
        raise _wrong(
            environ,
            f"{address}: a cluster is used from one of its machines, not through Ray's client",
            "run `ray start --address=HEAD:PORT --num-cpus=0` here, and name HEAD:PORT or auto",
        )
    return RaySettings(address, str(table.get("python", "")) or sys.executable)


def _table(environ: Mapping[str, str]) -> Mapping[str, object]:
    path = user_file(environ)
    if not os.path.isfile(path):
        return {}
    try:
        table = tomllib.loads(read_regular(path, _MOST_BYTES).decode()).get("ray", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(environ, f"the user's settings cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise _wrong(environ, "[ray] must be a table")
    return table


def _wrong(environ: Mapping[str, str], message: str, next_step: str = "correct this line") -> RequestError:
    return RequestError("bad-ray", message, file=user_file(environ), next_step=next_step)
