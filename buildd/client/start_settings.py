"""The settings that act on the daemon when it starts, and those of a client that the running daemon does not obey.

One daemon serves every shell and every HOME of a user, but it was started with the settings of one of them. The
endpoint file carries digests of these; the values may be secret. Knows what a setting is, not what it does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from protocol.endpoint import Endpoint, read_endpoint, runtime_folder
from protocol.errors import ProtocolError
from protocol.places import sha256

NEXT_STEP = "buildd down; the next command starts a daemon with yours"
_TIER = "BUILDD_TIER"
_TIER_TABLE = "[tier] of config.toml"
_KEYS = "the trusted keys"
_SOURCES = "*"
"""The digest under this name is of all settings as they are written."""
_PLACES = ("HOME", "XDG_CONFIG_HOME", "BUILDD_KEY_DIR")
_MOST_BYTES = 1 << 20
_DIGITS = 16


def digests(environ: Mapping[str, str], salt: str) -> dict[str, str]:
    """A digest of each setting that acts on a daemon which starts with these variables.

    Args:
        salt: the daemon's instance.
    """
    found = {name: _digest(value, salt) for name, (value, _) in _settings(environ).items()}
    return {**found, _SOURCES: _digest(_sources(environ, found), salt)}


def ignored(environ: Mapping[str, str], endpoint: Endpoint | None = None) -> Iterator[str]:
    """The settings of a client that the running daemon has otherwise; none where no daemon runs.

    Args:
        endpoint: of the daemon; read from the endpoint file if None.
    """
    if endpoint is None:
        try:
            endpoint = read_endpoint(runtime_folder(environ))
        except ProtocolError:
            return
    if endpoint is None or not endpoint.settings:
        return
    if endpoint.settings.get(_SOURCES) == _digest(_sources(environ, endpoint.settings), endpoint.instance):
        return  # the usual case, in which nothing need be imported
    for name, (value, told) in _settings(environ).items():
        theirs = endpoint.settings.get(name)
        if told and theirs is not None and theirs != _digest(value, endpoint.instance):
            yield told


def warning(environ: Mapping[str, str]) -> Iterator[str]:
    """One line for people if the daemon does not obey settings of a client."""
    if names := list(ignored(environ)):
        yield f"the daemon was started with other settings and does not obey yours: {', '.join(names)} ({NEXT_STEP})"


def names_tier(environ: Mapping[str, str]) -> bool:
    """Whether the user may have named a shared cache: else the daemon need not be asked."""
    from codegen.variables.settings import user_file

    if environ.get(_TIER):
        return True
    try:
        with open(user_file(environ), "rb") as file:
            return b"tier" in file.read(1 << 20).lower()
    except OSError:
        return False


def _sources(environ: Mapping[str, str], names: Iterable[str]) -> str:
    """All that settings are made of, as it is written: the variables with these names, and the user's file."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    try:
        with open(os.path.join(home, "buildd", "config.toml"), "rb") as file:
            content = file.read(_MOST_BYTES).hex()
    except OSError:
        content = ""
    set_here = [f"{name}={environ[name]}" for name in sorted({*names, *_PLACES}) if name in environ]
    return "\0".join([*set_here, content])


def _digest(value: str, salt: str) -> str:
    return sha256(f"{salt}\0{value}".encode("utf-8", "surrogateescape"))[:_DIGITS]


def _settings(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Name -> its value in words that are equal if they mean the same, and what to call it; "" if it is not set."""
    from buildd.tier.tier_settings import place_of
    from codegen.errors import RequestError
    from codegen.variables.environment import all_variables
    from codegen.variables.settings import Settings, user_values
    from codegen.variables.variable import SetIn
    from protocol.curve import key_folder

    try:
        users = user_values(environ)
    except RequestError:
        users = {}
    settings = Settings(dict(environ), strict=False, user_values=users)
    found: dict[str, tuple[str, str]] = {}
    for row in all_variables():
        if row.set_in is SetIn.START and row.acts and not row.is_pattern:
            is_set = row.name in environ or row.name in users
            found[row.name] = (repr(settings.value(row.name).value), row.name if is_set else "")
    place, is_of_table = place_of(settings, environ)
    found[_TIER] = (place, _TIER_TABLE if is_of_table else found[_TIER][1])
    found[_KEYS] = (str(key_folder(environ)), _KEYS if place else "")
    return found
