"""All clients on the work sockets: who is there, whose turn it is, who is slow, who has gone.

Knows no message but the heartbeat's and no request: it pumps each `Peer` at its own pace and says who has left what.
Runs on the event loop and never waits for a client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from buildd.deathwatch import DeathWatch
from buildd.eventlog import DEFAULT_LIMIT_BYTES
from buildd.followers import Peer, Pumped, has_read_all
from protocol.messages import Message, Pong, RequestId

_SLOWEST_RETRY_S = 0.25

Left = Callable[[Peer, RequestId], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, sizes in bytes; smaller ones are for tests."""

    beat_s: float = 10.0
    """A client to whom nothing was said for so long gets a `Pong`: both sides notice when the other has gone."""
    expiry_s: float = 30.0
    """A client whose process cannot be watched is dropped after so much silence."""
    retry_s: float = 0.01
    """First pause before a full client is tried again; doubles up to a quarter second."""
    keep_finished_s: float = 600.0
    keep_finished: int = 100
    max_clients: int = 10_000
    log_bytes: int = DEFAULT_LIMIT_BYTES


class Timers:
    """Named timers that ring once; none runs unless something asked for it, so an idle daemon sleeps."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Call once after a while, unless that is planned already."""
        if name not in self._handles:
            self._handles[name] = self._loop.call_later(delay_s, self._ring, name, call)

    def _ring(self, name: str, call: Callable[[], None]) -> None:
        del self._handles[name]
        call()

    @property
    def armed(self) -> frozenset[str]:
        return frozenset(self._handles)

    def close(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()


class Clients:
    """The clients of one server.

    Args:
        limits: of beat, expiry and retry.
        counters: where departures and slowness are counted.
        timers: the server's.
        left: called for each request that a dropped client still followed.
    """

    # Invariants: _dirty and _full hold only peers of _peers, and no peer is in both; while _full is not empty the
    # "retry" timer is armed, while _dirty is not empty a pump is on its way, while _peers is not empty "beat" is armed.

    def __init__(self, limits: Limits, counters: Counter[str], timers: Timers, left: Left) -> None:
        self._limits = limits
        self._counters = counters
        self._timers = timers
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._deaths = DeathWatch(self._died)
        self._peers: dict[bytes, Peer] = {}
        self._dirty: set[Peer] = set()
        self._full: set[Peer] = set()
        self._pumping = False
        self._retry_s = limits.retry_s

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, key: bytes) -> Peer | None:
        return self._peers.get(key)

    def __contains__(self, peer: Peer) -> bool:
        return self._peers.get(peer.key) is peer

    @property
    def all_have_read(self) -> bool:
        return all(has_read_all(peer) for peer in self._peers.values())

    # ------------------------------------------------------------ who comes and goes

    def add(self, peer: Peer, pid: int = 0, start_ticks: int = 0) -> None:
        """A client after its handshake; with `pid` and `start_ticks` its process is watched where that is possible."""
        self._peers[peer.key] = peer
        peer.watched = self._deaths.watch(peer.key, pid, start_ticks)
        self._timers.arm("beat", self._limits.beat_s, self._beat)

    def drop(self, peer: Peer, why: str = "") -> None:
        """Forget a client; `why` is counted, nothing where it said goodbye."""
        if self._peers.pop(peer.key, None) is None:
            return
        if why:
            self._counters[f"clients_{why}"] += 1
        self._deaths.forget(peer.key)
        self._dirty.discard(peer)
        self._full.discard(peer)
        peer.transfers.clear()
        for request_id in list(peer.cursors):
            self._left(peer, request_id)

    def _died(self, key: bytes) -> None:
        peer = self._peers.get(key)
        if peer is not None:
            self.drop(peer, "died")

    def _beat(self) -> None:
        now_s = self._loop.time()
        for peer in list(self._peers.values()):
            if not peer.watched and now_s - peer.heard_s > self._limits.expiry_s:
                self.drop(peer, "expired")
                continue
            if not peer.spoken and peer not in self._full:
                self.reply(peer, Pong())
            peer.spoken = False
        if self._peers:
            self._timers.arm("beat", self._limits.beat_s, self._beat)

    # ------------------------------------------------------------ what goes out

    def reply(self, peer: Peer, message: Message) -> None:
        """Queue a message for a client. One that asks without ever reading loses answers, counted."""
        if not peer.reply(message):
            self._counters["dropped_replies"] += 1
        self.pump_soon(peer)

    def pump_soon(self, peer: Peer) -> None:
        """There is something for this client."""
        if peer in self._full:
            return  # the retry timer has it
        self._dirty.add(peer)
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump_dirty)

    def _pump_dirty(self) -> None:
        self._pumping = False
        dirty, self._dirty = self._dirty, set()
        for peer in dirty:
            if peer in self:
                self._pump(peer)

    def _pump(self, peer: Peer) -> None:
        match peer.pump():
            case Pumped.MORE:
                self.pump_soon(peer)
            case Pumped.FULL:
                if not peer.full:
                    peer.full = True
                    self._counters["slow_clients"] += 1
                self._full.add(peer)
                self._timers.arm("retry", self._retry_s, self._retry)
            case Pumped.GONE:
                self.drop(peer, "gone")
            case Pumped.IDLE:
                pass

    def _retry(self) -> None:
        """No event tells that one peer of a ROUTER takes messages again, so they are tried."""
        waiting, self._full = self._full, set()
        moved = False
        for peer in waiting:
            peer.spoken = False
            self._pump(peer)
            moved = moved or peer.spoken
        self._retry_s = self._limits.retry_s if moved else min(2 * self._retry_s, _SLOWEST_RETRY_S)

    def close(self) -> None:
        self._deaths.close()
        self._peers.clear()
