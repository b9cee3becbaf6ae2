"""What the server asks of whoever carries requests out, and what it says about who asked.

Knows no socket: the same handler serves a command that builds without a daemon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from buildd.eventlog import RequestLog
from protocol.curve import ALL_SCOPES, Scope
from protocol.messages import Digest, Namespaces, Request, RequestId, Status


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who asks: told by the handshake, checked as far as it can be."""

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


class Handler(Protocol):
    """What carries requests out."""

    def submit(self, client: ClientInfo, request: Request, log: RequestLog) -> None:
        """Begin; append what happens to `log`, at last a `Done`. On the loop; returns at once."""

    def cancel(self, request_id: RequestId) -> bool:
        """End a request; its log gets a `Done`. False where it is not known. On the loop."""

    def status(self, settle: bool) -> Status:
        """Called on the control thread, also while the loop is busy. The server fills in what it knows better.

        Args:
            settle: write counters down first.
        """

    async def blob(self, store: str, digest: Digest) -> bytes | None:
        """A blob's verified bytes, of a store that is open already; None where it has none."""

    async def drain(self, now: bool) -> None:
        """Finish what runs (`now`: end it), then let the daemon exit."""

    def audit(self, line: str) -> None:
        """One line for each request: who, what, from where. From any thread."""
