"""The contract between the server and the handler that carries requests out, and the facts about a client.

Knows no socket: the same handler serves a command that builds without a daemon.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from buildd.builds.event_log import RequestLog
from protocol.curve import ALL_SCOPES, Scope
from protocol.messages import Digest, Namespaces, Request, RequestId, Status

_MOST_NAMES = 20
_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A client, as its handshake described it; checked as far as possible."""

    name: str
    user: str
    pid: int
    origin: str
    """ "local", or "tcp:" with the name of its key."""
    namespaces: Namespaces
    capabilities: tuple[str, ...] = ()
    scopes: frozenset[Scope] = ALL_SCOPES
    key: str = ""
    """Public CURVE key of a TCP client, Z85."""


def audit_line(what: str, client: ClientInfo, **facts: object) -> str:
    """A line of the audit log: the event, the client, and what the client asked for."""
    who = {"user": client.user, "pid": client.pid, "client": client.name, "from": client.origin}
    return " ".join([what, *(f"{name}={quoted(value)}" for name, value in {**who, **facts}.items())])


def quoted(fact: object) -> str:
    """A fact as JSON, so that a client's text can neither end the line nor look like another field; long ones are cut,
    so that a line has at most 32 KiB."""
    if isinstance(fact, list) and len(fact) > _MOST_NAMES:
        fact = [*fact[:_MOST_NAMES], f"... {len(fact) - _MOST_NAMES} more"]
    return json.dumps([_cut(item) for item in fact] if isinstance(fact, list) else _cut(fact))


def _cut(fact: object) -> object:
    if not isinstance(fact, str) or len(fact) <= _MOST_CHARACTERS:
        return fact
    return f"{fact[:_MOST_CHARACTERS]} ... [{len(fact) - _MOST_CHARACTERS} characters cut]"


class Handler(Protocol):
    """Carries requests out."""

    def submit(self, client: ClientInfo, request: Request, log: RequestLog) -> None:
        """Begin a request; append its events to `log`, the last one a `Done`. On the loop; returns at once."""

    def cancel(self, request_id: RequestId) -> bool:
        """End a request; its log gets a `Done`. False if it is not known. On the loop."""

    def status(self, settle: bool) -> Status:
        """Called on the control thread, also while the loop is busy. The server fills in the fields that it knows.

        Args:
            settle: write counters down first.
        """

    async def blob(self, store: str, digest: Digest) -> bytes | None:
        """A blob's verified bytes, from a store that is open already; None if the store does not have it."""

    async def drain(self, now: bool) -> None:
        """Finish what runs (`now`: end it), then let the daemon exit."""

    def audit(self, line: str) -> None:
        """Write one line to the audit log (`audit_line`). From any thread."""
