"""The daemon's sockets: bound, served and closed; handshakes, and the broadcast of events.

Hands a client's other messages to `dispatch`; knows nothing of requests. Control messages arrive on their own thread
(`control`); everything else runs on one event loop and never waits for a client.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec
import zmq

from buildd.daemon.clients import Clients, Timers
from buildd.daemon.clients import Limits as Limits
from buildd.daemon.control import ControlActions, ControlThread, TcpOptions
from buildd.daemon.dispatch import Dispatch
from buildd.daemon.followers import Peer
from buildd.daemon.gpu_leases import GpuLeases
from buildd.daemon.handler import ClientInfo as ClientInfo
from buildd.daemon.handler import Handler as Handler
from buildd.daemon.handshake import answer
from buildd.daemon.requests import RequestEntry, Requests
from buildd.daemon.sockets import LoopSocket, Sent, bind_router, key_of
from buildd.host import gpu_lock
from buildd.host.gpu_watch import GpuWatch
from protocol import wire
from protocol.curve import ALL_SCOPES, Scope
from protocol.endpoint import Addresses, Endpoint, own_code, start_ticks
from protocol.errors import WireError
from protocol.messages import (
    Bye,
    Error,
    Event,
    Hello,
    Message,
    Refused,
    RequestId,
    Status,
    Welcome,
)
from protocol.places import boot_id

_SUBSCRIPTION_BYTES = 4 << 10
_DEFAULT_LIMITS = Limits()
_log = logging.getLogger(__name__)


class Server:
    """The sockets of one daemon.

    Args:
        handler: carries requests out.
        addresses: of the local sockets, from `Folder.addresses(instance)`.
        instance: random id of this daemon process.
        daemon: name and version, for clients.
        tcp: also listen there; None keeps to local sockets.
        gpus: asks the driver about GPUs.
        gpu_locks: folder of the machine's locks on GPUs.
    """

    def __init__(
        self,
        handler: Handler,
        addresses: Addresses,
        *,
        instance: str,
        daemon: str = "buildd",
        tcp: TcpOptions | None = None,
        limits: Limits = _DEFAULT_LIMITS,
        gpus: GpuWatch | None = None,
        gpu_locks: str = gpu_lock.FOLDER,
    ) -> None:
        self.addresses = addresses
        self.instance = instance
        self.tcp_work = ""
        self.tcp_control = ""
        self.draining = False
        self.counters: Counter[str] = Counter()
        self._handler = handler
        self._daemon = daemon
        self._tcp = tcp
        self._limits = limits
        self._gpus, self._gpu_locks = gpus, gpu_locks
        self._subscriptions: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._routers: list[LoopSocket] = []

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind and serve. Raises zmq.ZMQError if an address cannot be bound; then nothing stays open."""
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[Any] = zmq.Context()
        bound: list[Any] = []
        try:
            bound.append(bind_router(self._context, self.addresses.work, max_bytes=wire.MAX_MESSAGE_BYTES))
            if self._tcp is not None:
                bound.append(
                    bind_router(self._context, self._tcp.work, max_bytes=wire.MAX_MESSAGE_BYTES, keys=self._tcp.keys)
                )
                self.tcp_work = bound[1].last_endpoint.decode("ascii")
            events = self._context.socket(zmq.XPUB)
            bound.append(events)
            events.linger = 0
            events.maxmsgsize = _SUBSCRIPTION_BYTES
            events.bind(self.addresses.events)
            actions = ControlActions(
                welcome=self._welcome,
                status=self.status,
                cancel=self._cancel_from_control,
                drain=self._drain_from_control,
                audit=self._handler.audit,
            )
            self._control = ControlThread(self._context, self.addresses.control, actions, self._tcp)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.tcp_control = self._control.tcp_address
        self._timers = Timers()
        self._clients = Clients(
            self._limits,
            self.counters,
            self._timers,
            lambda *left: self.requests.leave(*left),
            lambda peer: self._leases.gone(peer),
        )
        self._leases = GpuLeases(self._clients.reply, self._gpus, self._gpu_locks)
        self.requests = Requests(
            self._handler,
            self._clients,
            self._timers,
            self._limits,
            self.counters,
            broadcast=self._broadcast,
            is_draining=lambda: self.draining,
        )
        keys = self._tcp.allowed if self._tcp is not None else None
        self._dispatch = Dispatch(
            self._handler, self._clients, self.requests, self._leases, keys, self.counters, self._spawn
        )
        for number, socket in enumerate(bound[:-1]):
            self._routers.append(
                LoopSocket(socket, lambda frames, number=number: self._receive(number, frames))  # type: ignore[misc]
            )
        self._events = LoopSocket(events, self._subscribed)
        self._control.start()

    def endpoint(self, package_digest: str = "", store: str = "", package_stamp: str = "") -> Endpoint:
        """The content of the endpoint file for this process."""
        pid = os.getpid()
        return Endpoint(
            daemon=self._daemon,
            package_digest=package_digest,
            package_stamp=package_stamp,
            pid=pid,
            start_ticks=start_ticks(pid),
            boot_id=boot_id(),
            instance=self.instance,
            work=self.addresses.work,
            control=self.addresses.control,
            events=self.addresses.events,
            tcp_work=self.tcp_work,
            tcp_control=self.tcp_control,
            tcp_server_key=self._tcp.keys.public if self._tcp else "",
            store=store,
            code=own_code(),
        )

    async def close(self, linger_s: float = 1.0) -> None:
        """Give followers up to `linger_s` to read the queued messages, then close everything."""
        self.draining = True
        deadline = self._loop.time() + linger_s
        while self._loop.time() < deadline and not self._clients.all_have_read:
            await asyncio.sleep(self._limits.retry_s)
        self._timers.close()
        await self._leases.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._control.stop)
        for socket in self._routers:
            socket.close(int(linger_s * 1000))
        self._events.close()
        self._clients.close()
        await self._loop.run_in_executor(None, self._context.term)

    def status(self, settle: bool = False) -> Status:
        """The handler's status, completed with the server's own figures. From any thread."""
        status = self._handler.status(settle)
        return msgspec.structs.replace(
            status,
            daemon=self._daemon,
            instance=self.instance,
            state="draining" if self.draining else "serving",
            requests=self.requests.open_count,
            active=self.requests.active,
            clients=len(self._clients),
            gpus=self._leases.status(),
            counters={**status.counters, **self._control.counters, **self.counters},
        )

    # ------------------------------------------------------------ control, on its thread

    def _welcome(self, hello: Hello, scopes: frozenset[Scope]) -> Welcome | Refused:
        return answer(hello, scopes, daemon=self._daemon, instance=self.instance)

    def _cancel_from_control(self, request_id: RequestId) -> bool:
        if not self.requests.is_open(request_id):
            return False
        self._loop.call_soon_threadsafe(self.requests.cancel, request_id)
        return True

    def _drain_from_control(self, now: bool) -> None:
        self._loop.call_soon_threadsafe(self.drain, now)

    # ------------------------------------------------------------ incoming messages

    def drain(self, now: bool = False) -> None:
        """Accept no new requests, and have the handler finish. On the loop; also for SIGTERM."""
        self.draining = True
        self._spawn(self._handler.drain(now))

    def _receive(self, number: int, raw: Sequence[zmq.Frame]) -> None:
        key = b"%d:%b" % (number, raw[0].bytes)
        peer = self._clients.get(key)
        try:
            message = wire.decode_from_client([frame.bytes for frame in raw[1:]])
        except WireError as error:
            self.counters["malformed_frames"] += 1
            # An error that names a request says that no more of its events come.
            is_followed = peer is not None and error.request_id in peer.cursors
            name = RequestId("") if is_followed else error.request_id
            self._say(number, raw[0].bytes, peer, Error(code=error.code, message=error.message, request_id=name))
            return
        if isinstance(message, Hello):
            try:
                self._shake_hands(number, raw[0], key, message)
            except Exception:  # the edge: the client must not wait in vain
                self.counters["handler_errors"] += 1
                _log.exception("a hello could not be handled")
                text = "the daemon failed to handle this message; the daemon's log has the details"
                self._say(number, raw[0].bytes, None, Error(code="internal", message=text))
        elif peer is not None:
            peer.heard_s = self._loop.time()
            self._dispatch.take(peer, message)
        elif not isinstance(message, Bye):  # a Bye may arrive after the death of its process
            self.counters["before_handshake"] += 1
            text = "the first message has to be a hello; this daemon does not know this client"
            self._say(number, raw[0].bytes, None, Error(code="handshake", message=text))

    def _say(self, number: int, identity: bytes, peer: Peer | None, message: Message) -> None:
        """Reply through a peer's queue; to a client without a handshake directly."""
        if peer is not None:
            self._clients.reply(peer, message)
        else:
            self._say_directly(number, [identity, *wire.encode(message)], is_last=False)

    def _say_directly(self, number: int, frames: Sequence[bytes], *, is_last: bool) -> None:
        """Send a reply that no queue keeps: once more a little later if there is no room, and then no more."""
        sent = self._routers[number].send(frames)
        if sent is Sent.FULL and not is_last:
            again = partial(self._say_directly, number, frames, is_last=True)
            self._loop.call_later(self._limits.retry_s, again)
        elif sent is not Sent.SENT:
            self.counters["dropped_replies"] += 1

    def _shake_hands(self, number: int, identity: zmq.Frame, key: bytes, hello: Hello) -> None:
        scopes, origin, public = ALL_SCOPES, "local", ""
        if number > 0:
            public = key_of(identity)
            assert self._tcp is not None
            client = self._tcp.allowed.find(public)
            scopes = client.scopes if client else frozenset()
            origin = f"tcp:{client.name or public}" if client else "tcp:unknown"
        reply = self._welcome(hello, scopes)
        before = self._clients.get(key)
        if before is not None:
            self._clients.drop(before)
        if isinstance(reply, Welcome) and len(self._clients) >= self._limits.max_clients:
            reply = Refused(code="too-many", message=f"{len(self._clients)} clients are connected already")
        if not isinstance(reply, Welcome):
            self.counters["refused"] += 1
            self._say(number, identity.bytes, None, reply)
            return
        peer = Peer(
            key=key,
            identity=identity.bytes,
            info=ClientInfo(
                name=hello.client,
                user=hello.user,
                pid=hello.pid if number == 0 else 0,
                origin=origin,
                namespaces=hello.namespaces,
                capabilities=hello.capabilities,
                scopes=scopes,
                key=public,
            ),
            transmit=self._routers[number].send,
            heard_s=self._loop.time(),
        )
        if number == 0:
            self._clients.add(peer, hello.pid, hello.start_ticks)
        else:
            self._clients.add(peer)  # a pid from another host names nobody here
        self._clients.reply(peer, reply)

    # ------------------------------------------------------------ broadcast

    def _broadcast(self, entry: RequestEntry, event: Event) -> None:
        if self._subscriptions:
            for encoded in entry.log.encoded_after(event.sequence - 1, 1):
                self._events.send([event.request_id.encode("utf-8", "replace"), *encoded.frames])

    def _subscribed(self, raw: Sequence[zmq.Frame]) -> None:
        wish = raw[0].bytes
        if wish[:1] == b"\x01":
            self._subscriptions.add(wish[1:])
        elif wish[:1] == b"\x00":
            self._subscriptions.discard(wish[1:])

    # ------------------------------------------------------------ tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.counters["handler_errors"] += 1
            _log.error("a task of the server failed", exc_info=task.exception())
