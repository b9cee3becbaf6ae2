"""All clients on the work sockets: connected, pumped in turn, slow, or gone.

Knows no request, and no message but the heartbeat: pumps each `Peer` at its own pace, and reports the requests that a
client stops following when it goes. Runs on the event loop and never waits for a client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from buildd.builds.event_log import DEFAULT_LIMIT_BYTES
from buildd.daemon.deathwatch import DeathWatch
from buildd.daemon.followers import Peer, Pumped, has_read_all
from protocol.messages import Message, Pong, RequestId

_SLOWEST_RETRY_S = 0.25

OnLeave = Callable[[Peer, RequestId], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds, sizes in bytes; smaller ones are for tests."""

    beat_s: float = 10.0
    """A client gets a `Pong` after so long without a message: so both sides notice when the other has gone."""
    expiry_s: float = 30.0
    """A client whose process cannot be watched is dropped after being silent for so long."""
    return_s: float = 10.0
    """A living process whose connection was closed without a `bye` counts as a follower for so long: a lost connection
    comes back."""
    retry_s: float = 0.01
    """First pause before sending to a full client again; doubles up to a quarter second."""
    keep_finished_s: float = 600.0
    keep_finished: int = 100
    max_clients: int = 10_000
    log_bytes: int = DEFAULT_LIMIT_BYTES


class Timers:
    """Named timers that ring once. None runs unless it was armed, so an idle daemon sleeps."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` once after a delay, unless a timer of this name is armed already."""
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
        limits: uses beat, expiry and retry.
        counters: count departures and slow clients.
        timers: the server's.
        on_leave: called for each request that a dropped client still followed.
        on_gone: called when a client's connection is closed, whatever it was for.
    """

    # Invariants: no peer is in _peers and in _away; _dirty and _full hold only peers of _peers, and no peer is in both;
    # while _full is not empty the "retry" timer is armed, while _dirty is not empty a pump is on its way, while _peers
    # is not empty "beat" is armed.

    def __init__(
        self,
        limits: Limits,
        counters: Counter[str],
        timers: Timers,
        on_leave: OnLeave,
        on_gone: Callable[[Peer], None],
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._timers = timers
        self._on_leave, self._on_gone = on_leave, on_gone
        self._loop = asyncio.get_running_loop()
        self._deaths: DeathWatch[Peer] = DeathWatch(self._died)
        self._peers: dict[bytes, Peer] = {}
        self._away: dict[Peer, asyncio.TimerHandle] = {}
        """Clients without a connection that still follow requests, until their process ends or their time is up."""
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

    # ------------------------------------------------------------ arrivals and departures

    def add(self, peer: Peer, pid: int = 0, start_ticks: int = 0) -> None:
        """Add a client after its handshake. With `pid` and `start_ticks` its process is watched, if possible."""
        self._peers[peer.key] = peer
        peer.watched = self._deaths.watch(peer, pid, start_ticks)
        self._timers.arm("beat", self._limits.beat_s, self._beat)

    def drop(self, peer: Peer, why: str = "") -> None:
        """Forget a client. Counted under `why`, unless that is empty: the client said goodbye."""
        if self._disconnect(peer, why):
            self._end(peer)

    def _disconnect(self, peer: Peer, why: str) -> bool:
        if peer not in self:
            return False
        del self._peers[peer.key]
        if why:
            self._counters[f"clients_{why}"] += 1
        self._dirty.discard(peer)
        self._full.discard(peer)
        peer.replies.clear()
        peer.transfers.clear()
        self._on_gone(peer)
        return True

    def _lost(self, peer: Peer) -> None:
        """Handle a connection that was closed without a `bye`.

        What a living process follows stays followed for a while: cancelling it at once would make it unsafe to send a
        request again.
        """
        if self._disconnect(peer, "gone"):
            if peer.watched and peer.cursors:
                self._away[peer] = self._loop.call_later(self._limits.return_s, self._end, peer)
            else:
                self._end(peer)

    def _end(self, peer: Peer) -> None:
        timer = self._away.pop(peer, None)
        if timer is not None:
            timer.cancel()
        self._deaths.forget(peer)
        for request_id in list(peer.cursors):
            self._on_leave(peer, request_id)

    def _died(self, peer: Peer) -> None:
        if peer in self._away:
            self._end(peer)
        else:
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

    # ------------------------------------------------------------ outgoing messages

    def reply(self, peer: Peer, message: Message) -> None:
        """Queue a message for a client. A client that asks without reading loses replies; they are counted."""
        if not peer.reply(message):
            self._counters["dropped_replies"] += 1
        self.pump_soon(peer)

    def pump_soon(self, peer: Peer) -> None:
        """Send what is queued for this client, on the loop's next turn."""
        if peer in self._full or peer in self._away:
            return  # the retry timer has it; it has no connection
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
                self._lost(peer)
            case Pumped.IDLE:
                pass

    def _retry(self) -> None:
        """Try all full clients: no event tells when a peer of a ROUTER takes messages again."""
        waiting, self._full = self._full, set()
        moved = False
        for peer in waiting:
            peer.spoken = False
            self._pump(peer)
            moved = moved or peer.spoken
        self._retry_s = self._limits.retry_s if moved else min(2 * self._retry_s, _SLOWEST_RETRY_S)

    def close(self) -> None:
        self._deaths.close()
        for timer in self._away.values():
            timer.cancel()
        self._away.clear()
        self._peers.clear()
