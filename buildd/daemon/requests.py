"""The registry of requests: a request begins once, any number of clients follow it, and it is forgotten after its end.

Knows clients and request logs; no socket, and nothing of how a request is carried out: the `Handler` appends to a log.
Except for `is_open`, `open_count` and `active`, everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from buildd.builds.event_log import RequestLog
from buildd.daemon.clients import Clients, Limits, Timers
from buildd.daemon.followers import MAX_FOLLOWED, Peer
from buildd.daemon.handler import Handler, audit_line
from buildd.daemon.request_check import fault_of
from protocol.messages import Done, Error, Event, Mode, OnDisconnect, Outcome, Request, RequestId

_ANSWERS = (Mode.EXPLAIN, Mode.PROVE)
"""Requests that make nothing: without a follower they are of no use."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RequestEntry:
    """A request that the server knows."""

    log: RequestLog
    on_disconnect: OnDisconnect
    followers: set[Peer] = field(default_factory=set)
    observers: set[Peer] = field(default_factory=set)
    """They get the events too, but do not keep the request going."""
    finished_s: float = 0.0


class Requests:
    """The requests of one server.

    Args:
        handler: carries them out.
        clients: gets errors, and is pumped when a log grows.
        timers: the server's.
        limits: of logs and of finished requests.
        counters: count the handler's failures.
        broadcast: called with each event, after the followers' turn.
        is_draining: whether new requests are turned away.
    """

    def __init__(
        self,
        handler: Handler,
        clients: Clients,
        timers: Timers,
        limits: Limits,
        counters: Counter[str],
        *,
        broadcast: Callable[[RequestEntry, Event], None],
        is_draining: Callable[[], bool],
    ) -> None:
        self._handler, self._clients, self._timers = handler, clients, timers
        self._limits, self._counters = limits, counters
        self._broadcast, self._is_draining = broadcast, is_draining
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._entries: dict[RequestId, RequestEntry] = {}
        self._finished: OrderedDict[RequestId, RequestEntry] = OrderedDict()
        """Those of `_entries` whose log has a `Done`, oldest first."""

    # ------------------------------------------------------------ from any thread

    def is_open(self, request_id: RequestId) -> bool:
        """Whether a request is known and not done."""
        entry = self._entries.get(request_id)
        return entry is not None and entry.log.done is None

    @property
    def open_count(self) -> int:
        return len(self._entries) - len(self._finished)

    @property
    def active(self) -> tuple[RequestId, ...]:
        """The requests that are not done."""
        return tuple(name for name, entry in list(self._entries.items()) if entry.log.done is None)

    # ------------------------------------------------------------ on the loop

    def entry(self, request_id: RequestId) -> RequestEntry | None:
        return self._entries.get(request_id)

    def submit(self, peer: Peer, request: Request) -> None:
        """Begin a request and have `peer` follow it, or reply with an error."""
        request_id = request.request_id
        if fault := fault_of(request):
            self._clients.reply(peer, Error(code="bad-message", message=fault, request_id=request_id))
            return
        if request_id in self._entries:
            # A retry after a lost connection: the work goes on, nothing runs twice.
            self.follow(peer, request_id, 0)
            return
        if self._is_draining():
            text = "this daemon is shutting down and accepts no new requests"
            self._clients.reply(
                peer, Error(code="draining", message=text, request_id=request_id, next_step="try again")
            )
            return
        self._handler.audit(
            audit_line(
                "submit",
                peer.info,
                request=request_id,
                build=request.build_id,
                mode=request.mode.value,
                project=request.project,
                targets=list(request.targets),
            )
        )
        log = RequestLog(request_id, limit_bytes=self._limits.log_bytes)
        on_disconnect = OnDisconnect.CANCEL if request.mode in _ANSWERS else request.on_disconnect
        entry = self._entries[request_id] = RequestEntry(log, on_disconnect)
        log.listen(lambda event: self._appended(entry, event))
        self.follow(peer, request_id, 0)
        try:
            self._handler.submit(peer.info, request, log)
        except Exception as error:  # the handler's edge: the client must get an end
            self._counters["handler_errors"] += 1
            _log.exception("request %s could not be started", request_id)
            log.append(Done(outcome=Outcome.DAEMON_ERROR, code="internal", message=f"{type(error).__name__}: {error}"))

    def follow(self, peer: Peer, request_id: RequestId, after_sequence: int, *, observe: bool = False) -> None:
        """Send `peer` a request's events after this one, or reply with an error. With `observe` it only looks on."""
        entry = self._entries.get(request_id)
        if entry is None:
            text = f"request {request_id!r} is not known here"
            step = "submit it again; results that were built are in the store"
            self._clients.reply(
                peer, Error(code="unknown-request", message=text, request_id=request_id, next_step=step)
            )
            return
        if len(peer.cursors) >= MAX_FOLLOWED and request_id not in peer.cursors:
            text = f"a client follows at most {MAX_FOLLOWED} requests at once"
            self._clients.reply(peer, Error(code="too-many", message=text, request_id=request_id))
            return
        peer.follow(entry.log, after_sequence)
        if entry.log.done is None:
            (entry.observers if observe and peer not in entry.followers else entry.followers).add(peer)
        self._clients.pump_soon(peer)

    def leave(self, peer: Peer, request_id: RequestId) -> None:
        """Stop following. If `peer` was the last follower of a request that asked for it, the request is cancelled."""
        if peer.cursors.pop(request_id, None) is None:
            return
        entry = self._entries.get(request_id)
        if entry is None:
            return
        entry.observers.discard(peer)
        if peer not in entry.followers:
            return
        entry.followers.discard(peer)
        if not entry.followers and entry.on_disconnect is OnDisconnect.CANCEL and entry.log.done is None:
            self._handler.audit(audit_line("abandoned", peer.info, request=request_id))
            self.cancel(request_id)

    def cancel(self, request_id: RequestId) -> None:
        """Have the handler end a request."""
        try:
            self._handler.cancel(request_id)
        except Exception:  # the handler's edge
            self._counters["handler_errors"] += 1
            _log.exception("request %s could not be cancelled", request_id)

    def _appended(self, entry: RequestEntry, event: Event) -> None:
        if threading.get_ident() == self._thread:
            self._publish(entry, event)
        else:
            self._loop.call_soon_threadsafe(self._publish, entry, event)

    def _publish(self, entry: RequestEntry, event: Event) -> None:
        for peer in (*entry.followers, *entry.observers):
            self._clients.pump_soon(peer)
        self._broadcast(entry, event)
        if isinstance(event.body, Done):
            entry.finished_s = self._loop.time()
            entry.followers.clear()
            entry.observers.clear()
            self._finished[entry.log.request_id] = entry
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_s = self._loop.time() - self._limits.keep_finished_s
        while self._finished:
            request_id, entry = next(iter(self._finished.items()))
            if len(self._finished) <= self._limits.keep_finished and entry.finished_s > oldest_s:
                self._timers.arm("forget", self._limits.keep_finished_s, self._forget_old)
                return
            del self._finished[request_id], self._entries[request_id]
