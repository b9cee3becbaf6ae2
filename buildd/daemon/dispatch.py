"""A client's messages after its handshake: checked against its scopes, audited, and handed to their handlers.

Knows messages and scopes; no socket, and no request's state (`requests`). Runs on the event loop.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from buildd.daemon.clients import Clients
from buildd.daemon.followers import MAX_TRANSFERS, Peer, Transfer
from buildd.daemon.gpu_leases import GpuLeases
from buildd.daemon.handler import Handler, audit_line
from buildd.daemon.requests import Requests
from protocol.curve import AllowList, Scope
from protocol.messages import (
    Bye,
    Digest,
    Error,
    Fetch,
    Follow,
    FromClient,
    GiveBack,
    Hello,
    Lease,
    LeaseId,
    Ping,
    Pong,
    RequestId,
    Submit,
    Unfollow,
)

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NO_REQUEST = RequestId("")
_NO_DIGEST = Digest("")
_NO_LEASE = LeaseId("")
_log = logging.getLogger(__name__)


class Dispatch:
    """The messages of one server's clients.

    Args:
        handler: reads blobs and writes the audit log.
        allowed: the keys of TCP clients; None without TCP.
        counters: count what is forbidden, and the handler's failures.
        spawn: runs a task until the server closes.
    """

    def __init__(
        self,
        handler: Handler,
        clients: Clients,
        requests: Requests,
        leases: GpuLeases,
        allowed: AllowList | None,
        counters: Counter[str],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._handler, self._clients, self._requests, self._leases = handler, clients, requests, leases
        self._allowed_keys, self._counters, self._spawn = allowed, counters, spawn

    def take(self, peer: Peer, message: FromClient) -> None:
        """Handle one message. A failure is logged and answered with an error: the client must not wait in vain."""
        try:
            self._take(peer, message)
        except Exception:  # the edge
            self._counters["handler_errors"] += 1
            _log.exception("a %s could not be handled", type(message).__name__)
            text = "the daemon failed to handle this message; the daemon's log has the details"
            self._clients.reply(peer, Error(code="internal", message=text))

    def _take(self, peer: Peer, message: FromClient) -> None:
        match message:
            case Ping():
                self._clients.reply(peer, Pong())
            case Submit(request=request):
                if self._allowed(peer, Scope.SUBMIT, request.request_id):
                    self._requests.submit(peer, request)
            case Follow():
                if self._allowed(peer, Scope.FOLLOW, message.request_id):
                    self._requests.follow(peer, message.request_id, message.after_sequence, observe=message.observe)
            case Unfollow():
                self._requests.leave(peer, message.request_id)
            case Fetch():
                if self._allowed(peer, Scope.FETCH, digest=message.digest):
                    self._fetch(peer, message)
            case Lease():
                if self._allowed(peer, Scope.SUBMIT, lease_id=message.lease_id):
                    self._leases.ask(peer, message)
            case GiveBack():
                self._leases.give_back(peer, message.lease_id)
            case Bye():
                self._clients.drop(peer)
            case Hello():
                pass

    def _allowed(
        self,
        peer: Peer,
        scope: Scope,
        request_id: RequestId = _NO_REQUEST,
        digest: Digest = _NO_DIGEST,
        lease_id: LeaseId = _NO_LEASE,
    ) -> bool:
        scopes = peer.info.scopes
        if peer.info.key and self._allowed_keys is not None:
            # Looked up for each message: a key that was taken off the list is out at once.
            client = self._allowed_keys.find(peer.info.key)
            scopes = client.scopes if client else frozenset()
        if scope in scopes:
            return True
        self._counters["forbidden"] += 1
        self._handler.audit(audit_line("forbidden", peer.info, scope=scope.value, request=request_id))
        text = f"your key does not have the scope {scope.value!r}"
        step = "have the scope added on the daemon's host"
        self._clients.reply(
            peer,
            Error(
                code="forbidden",
                message=text,
                request_id=request_id,
                digest=digest,
                lease_id=lease_id,
                next_step=step,
            ),
        )
        return False

    def _fetch(self, peer: Peer, message: Fetch) -> None:
        if not _DIGEST.match(message.digest):
            text = "a digest has 64 hexadecimal characters"
            self._clients.reply(peer, Error(code="bad-message", message=text, digest=message.digest))
        elif peer.fetching + len(peer.transfers) >= MAX_TRANSFERS:
            text = f"a client fetches at most {MAX_TRANSFERS} blobs at once"
            self._clients.reply(peer, Error(code="too-many", message=text, digest=message.digest))
        else:
            peer.fetching += 1
            self._spawn(self._read_blob(peer, message))

    async def _read_blob(self, peer: Peer, message: Fetch) -> None:
        data: bytes | None = None
        error = Error(code="not-found", message=f"no blob {message.digest}", digest=message.digest)
        try:
            data = await self._handler.blob(message.store, message.digest)
        except Exception as problem:  # the handler's edge
            self._counters["handler_errors"] += 1
            _log.exception("blob %s could not be read", message.digest)
            error = msgspec.structs.replace(error, code="internal", message=f"{type(problem).__name__}: {problem}")
        finally:
            peer.fetching -= 1
        if peer not in self._clients:
            return
        if data is None:
            self._clients.reply(peer, error)
        else:
            peer.transfers.append(Transfer(message.digest, data))
            self._clients.pump_soon(peer)
