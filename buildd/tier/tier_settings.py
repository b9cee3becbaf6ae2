"""What the user has said about the tier: [tier] of config.toml, and BUILDD_TIER of the shell that starts the daemon.

A project file can say nothing here: it must not decide where results come from or go to.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from buildd.store import signing
from buildd.store.signing import Signer, SigningError
from codegen.errors import RequestError
from codegen.reach import read_regular
from codegen.variables.settings import Settings, user_file, user_values
from protocol.problem import in_one_line

_MOST_BYTES = 1 << 20
MOST_WRITERS = 8
"""Each writer that is believed costs a question for each look-up."""
_KEYS = ("url", "write", "trust")
_HEADER = re.compile(r"[a-z0-9_.-]+")
_OWN = "this user"
_OFF = ("0", "no", "off")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TierSettings:
    """A tier as the user wants it."""

    url: str
    believed: tuple[tuple[bytes, str], ...]
    """The keys whose entries are taken, each with its owner's name."""
    signer: Signer | None = None
    """Signs what is written; None where nothing is written."""
    unwritable: str = ""
    """Why nothing is written although the user asked for it."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with each request of http: and grpc:. They may be secret."""


def of_user(environ: Mapping[str, str]) -> TierSettings | None:
    """The user's settings; None where there is no tier. Raises `RequestError`, `SigningError`."""
    return read(Settings(request_env=dict(environ), user_values=user_values(environ)), environ)


def read(settings: Settings, environ: Mapping[str, str]) -> TierSettings | None:
    """As `of_user`, from the daemon's own variables."""
    table = _table(environ)
    url = settings.text("BUILDD_TIER") or _text(table, "url", environ)
    if not url or url in _OFF:
        return None
    wants = _wants_to_write(settings, table, environ)
    signer, unwritable = None, ""
    if wants and signing.key_file(environ).exists():
        signer = signing.own(environ)
    elif wants:
        unwritable = "there is no signing key: `buildd cache key` makes one, and the next daemon uses it (buildd down)"
    headers = _headers(settings.text("BUILDD_TIER_HEADERS"))
    return TierSettings(url, _believed(table, environ, wants), signer, unwritable, headers)


class Renewal:
    """The settings of a tier, with the writers that the user believes now: a daemon need not end for a new key.

    Only the writers are read again, and only if a file that names them has changed. May be called from any thread.
    """

    def __init__(self, wanted: TierSettings, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings, self._environ = settings, dict(environ)
        self._files = (user_file(environ), str(signing.trusted_file(environ)))
        self._read = (self._stamps(), wanted)

    def __call__(self) -> TierSettings:
        stamps, wanted = self._read
        now = self._stamps()
        if now != stamps:
            try:
                table = _table(self._environ)
                wants = _wants_to_write(self._settings, table, self._environ)
                wanted = replace(wanted, believed=_believed(table, self._environ, wants))
            except (RequestError, SigningError) as error:
                _log.warning("tier: the trusted keys stay as they were: %s", in_one_line(error))
            self._read = (now, wanted)
        return wanted

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        found: list[tuple[int, ...]] = []
        for file in self._files:
            try:
                seen = os.stat(file)
                found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))
            except OSError:
                found.append(())
        return tuple(found)


def _wants_to_write(settings: Settings, table: Mapping[str, object], environ: Mapping[str, str]) -> bool:
    wants = table.get("write", False)
    if not isinstance(wants, bool):
        raise _wrong(environ, "[tier]: write must be true or false")
    return settings.is_on("BUILDD_TIER_WRITE") or wants


def place_of(settings: Settings, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The URL of the tier, empty if there is none, and whether it is that of [tier] of config.toml. Raises nothing."""
    named = settings.text("BUILDD_TIER")
    url = named
    if not named:
        try:
            url = _text(_table(environ), "url", environ)
        except RequestError:
            url = ""
    return ("" if url in _OFF else url), bool(url) and not named


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """ "name=value,name=value", as in OTEL_EXPORTER_OTLP_HEADERS: %2C in a value is a comma. Raises `RequestError`."""
    headers = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        name, is_set, value = one.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if not is_set or not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise RequestError(  # the value is secret: it is not shown
                "bad-tier",
                f"BUILDD_TIER_HEADERS: {name[:40]!r} is no header",
                file="BUILDD_TIER_HEADERS",
                next_step='write BUILDD_TIER_HEADERS="authorization=Bearer TOKEN", several with commas between them',
            )
        headers.append((name, value))
    return tuple(headers)


def _believed(table: Mapping[str, object], environ: Mapping[str, str], writes: bool) -> tuple[tuple[bytes, str], ...]:
    """The writers that are believed: all trusted keys, or those of them that [tier] names.

    The user's own key is among them where the user writes or names it: otherwise nothing in the tier is signed with it,
    and each look-up would ask once more.
    """
    wanted = table.get("trust", [])
    if not isinstance(wanted, list) or not all(isinstance(word, str) for word in wanted):
        raise _wrong(environ, "[tier]: trust must be a list of names or keys")
    keys = dict(signing.listed(environ))
    if (writes or wanted) and signing.key_file(environ).exists():
        keys = {signing.own(environ).public: _OWN, **keys}
    if wanted:
        unknown = [word for word in wanted if word not in keys.values() and word not in {k.hex() for k in keys}]
        if unknown:
            raise _wrong(
                environ,
                f"[tier]: trust names {unknown[0]!r}, which is no trusted key and no name of one",
                "add it with buildd cache trust KEY NAME, or correct the name",
            )
        keys = {key: name for key, name in keys.items() if name in wanted or key.hex() in wanted}
    if len(keys) > MOST_WRITERS:
        raise _wrong(
            environ,
            f"[tier]: {len(keys)} keys are trusted, and a tier asks at most {MOST_WRITERS} writers",
            "name those that write to the tier: trust = [...]",
        )
    return tuple(keys.items())


def _table(environ: Mapping[str, str]) -> Mapping[str, object]:
    path = user_file(environ)
    if not os.path.isfile(path):
        return {}
    try:
        table = tomllib.loads(read_regular(path, _MOST_BYTES).decode()).get("tier", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(environ, f"the user's settings cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise _wrong(environ, "[tier] must be a table")
    if unknown := [name for name in table if name not in _KEYS]:
        raise _wrong(environ, f"[tier]: {unknown[0]} is no setting; there are {', '.join(_KEYS)}")
    return table


def _text(table: Mapping[str, object], name: str, environ: Mapping[str, str]) -> str:
    value = table.get(name, "")
    if not isinstance(value, str):
        raise _wrong(environ, f"[tier]: {name} must be text")
    return value


def _wrong(environ: Mapping[str, str], message: str, next_step: str = "correct this line") -> RequestError:
    return RequestError("bad-tier", message, file=user_file(environ), next_step=next_step)
