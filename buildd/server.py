"""The daemon's work and broadcast sockets: handshake, submit, follow, fetch; who follows what, and who has left.

Knows nothing of how a request is carried out: that is the `Handler`'s, which only sees a `RequestLog` to append to.
Control messages come in on a thread of their own (`control`); all else here runs on one event loop and never waits for
a client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import zmq

from buildd.clients import Clients, Timers
from buildd.clients import Limits as Limits
from buildd.control import ControlActions, ControlThread, TcpOptions
from buildd.eventlog import RequestLog
from buildd.followers import MAX_FOLLOWED, MAX_TRANSFERS, Entry, Peer, Transfer
from buildd.handler import ClientInfo as ClientInfo
from buildd.handler import Handler as Handler
from buildd.handshake import answer
from buildd.sockets import LoopSocket, Sent, bind_router, key_of
from protocol import wire
from protocol.curve import ALL_SCOPES, Scope
from protocol.endpoint import Addresses, Endpoint, start_ticks
from protocol.errors import WireError
from protocol.messages import (
    Bye,
    Digest,
    Done,
    Error,
    Event,
    Fetch,
    Follow,
    FromClient,
    Hello,
    Message,
    OnDisconnect,
    Outcome,
    Ping,
    Pong,
    Refused,
    Request,
    RequestId,
    Status,
    Submit,
    Unfollow,
    Welcome,
)
from protocol.places import boot_id

MAX_REQUEST_ID_CHARACTERS = 200
_SUBSCRIPTION_BYTES = 4 << 10
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_DEFAULT_LIMITS = Limits()
_NO_REQUEST = RequestId("")
_NO_DIGEST = Digest("")
_log = logging.getLogger(__name__)


class Server:
    """The sockets of one daemon.

    Args:
        handler: carries requests out.
        addresses: of the local sockets, from `Folder.addresses(instance)`.
        instance: random id of this daemon process.
        daemon: name and version, for clients.
        tcp: also listen there; None keeps to local sockets.
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
        self._requests: dict[RequestId, Entry] = {}
        self._finished: OrderedDict[RequestId, Entry] = OrderedDict()
        self._subscriptions: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._routers: list[LoopSocket] = []

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Bind and serve. Raises zmq.ZMQError where an address cannot be bound; nothing is left open then."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._context: zmq.Context[Any] = zmq.Context()
        bound: list[Any] = []
        try:
            bound.append(bind_router(self._context, self.addresses.work, max_bytes=wire.MAX_MESSAGE_BYTES))
            if self._tcp is not None:
                keys = self._tcp.keys
                bound.append(bind_router(self._context, self._tcp.work, max_bytes=wire.MAX_MESSAGE_BYTES, keys=keys))
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
        self._clients = Clients(self._limits, self.counters, self._timers, self._leave)
        for number, socket in enumerate(bound[:-1]):
            self._routers.append(
                LoopSocket(socket, lambda frames, number=number: self._receive(number, frames))  # type: ignore[misc]
            )
        self._events = LoopSocket(events, self._subscribed)
        self._control.start()

    def endpoint(self, package_digest: str = "", store: str = "", package_stamp: str = "") -> Endpoint:
        """What the endpoint file should say about this process."""
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
        )

    async def close(self, linger_s: float = 1.0) -> None:
        """Let followers read what there is, for `linger_s` at most, then close everything."""
        self.draining = True
        deadline = self._loop.time() + linger_s
        while self._loop.time() < deadline and not self._clients.all_have_read:
            await asyncio.sleep(self._limits.retry_s)
        self._timers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._control.stop)
        for socket in self._routers:
            socket.close(int(linger_s * 1000))
        self._events.close()
        self._clients.close()
        await self._loop.run_in_executor(None, self._context.term)

    @property
    def open_requests(self) -> int:
        return len(self._requests) - len(self._finished)

    def status(self, settle: bool = False) -> Status:
        """The handler's status with what the server knows. From any thread."""
        status = self._handler.status(settle)
        return msgspec.structs.replace(
            status,
            daemon=self._daemon,
            instance=self.instance,
            state="draining" if self.draining else "serving",
            requests=self.open_requests,
            active=tuple(name for name, entry in list(self._requests.items()) if entry.log.done is None),
            clients=len(self._clients),
            counters={**status.counters, **self._control.counters, **self.counters},
        )

    # ------------------------------------------------------------ control, on its thread

    def _welcome(self, hello: Hello, scopes: frozenset[Scope]) -> Welcome | Refused:
        return answer(hello, scopes, daemon=self._daemon, instance=self.instance)

    def _cancel_from_control(self, request_id: RequestId) -> bool:
        entry = self._requests.get(request_id)
        if entry is None or entry.log.done is not None:
            return False
        self._loop.call_soon_threadsafe(self._cancel, request_id)
        return True

    def _drain_from_control(self, now: bool) -> None:
        self._loop.call_soon_threadsafe(self.drain, now)

    # ------------------------------------------------------------ what comes in

    def drain(self, now: bool = False) -> None:
        """Take nothing new and have the handler finish. On the loop; also for SIGTERM."""
        self.draining = True
        self._spawn(self._handler.drain(now))

    def _cancel(self, request_id: RequestId) -> None:
        try:
            self._handler.cancel(request_id)
        except Exception:  # the handler's edge
            self.counters["handler_errors"] += 1
            _log.exception("request %s could not be cancelled", request_id)

    def _receive(self, number: int, raw: Sequence[zmq.Frame]) -> None:
        key = b"%d:%b" % (number, raw[0].bytes)
        peer = self._clients.get(key)
        try:
            message = wire.decode_from_client([frame.bytes for frame in raw[1:]])
        except WireError as error:
            self.counters["malformed_frames"] += 1
            self._say(number, raw[0].bytes, peer, Error(code=error.code, message=error.message))
            return
        if isinstance(message, Hello):
            self._shake_hands(number, raw[0], key, message)
        elif peer is not None:
            peer.heard_s = self._loop.time()
            try:
                self._dispatch(peer, message)
            except Exception:  # the edge: whoever asked must not wait for an answer that never comes
                self.counters["handler_errors"] += 1
                _log.exception("a %s could not be handled", type(message).__name__)
                self._clients.reply(peer, Error(code="internal", message="the daemon failed; its log has the story"))
        elif not isinstance(message, Bye):  # a farewell may come after the death of its process
            self.counters["before_handshake"] += 1
            text = "the first message is a hello; this daemon does not know you"
            self._say(number, raw[0].bytes, None, Error(code="handshake", message=text))

    def _say(self, number: int, identity: bytes, peer: Peer | None, message: Message) -> None:
        """Answer a peer of the handshake through its queue, a stranger once and without a queue."""
        if peer is not None:
            self._clients.reply(peer, message)
        elif self._routers[number].send([identity, *wire.encode(message)]) is not Sent.SENT:
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

    def _dispatch(self, peer: Peer, message: FromClient) -> None:
        match message:
            case Ping():
                self._clients.reply(peer, Pong())
            case Submit(request=request):
                if self._allowed(peer, Scope.SUBMIT, request.request_id):
                    self._submit(peer, request)
            case Follow():
                if self._allowed(peer, Scope.FOLLOW, message.request_id):
                    self._follow(peer, message.request_id, message.after_sequence)
            case Unfollow():
                self._leave(peer, message.request_id)
            case Fetch():
                if self._allowed(peer, Scope.FETCH, digest=message.digest):
                    self._fetch(peer, message)
            case Bye():
                self._clients.drop(peer)
            case Hello():
                pass

    def _allowed(
        self, peer: Peer, scope: Scope, request_id: RequestId = _NO_REQUEST, digest: Digest = _NO_DIGEST
    ) -> bool:
        scopes = peer.info.scopes
        if peer.info.key and self._tcp is not None:
            # Looked up anew: a key that was taken off the list is out at once.
            client = self._tcp.allowed.find(peer.info.key)
            scopes = client.scopes if client else frozenset()
        if scope in scopes:
            return True
        self.counters["forbidden"] += 1
        self._audit("forbidden", peer, scope=scope.value, request=request_id)
        text = f"this key does not have the scope {scope.value!r}"
        self._clients.reply(
            peer,
            Error(
                code="forbidden",
                message=text,
                request_id=request_id,
                digest=digest,
                next_step="have it added on the daemon's host",
            ),
        )
        return False

    def _submit(self, peer: Peer, request: Request) -> None:
        request_id = request.request_id
        if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
            text = f"a request id has 1 to {MAX_REQUEST_ID_CHARACTERS} characters"
            self._clients.reply(peer, Error(code="bad-message", message=text, request_id=request_id))
            return
        if request_id in self._requests:
            # A retry after a lost connection: the work goes on, nothing runs twice.
            self._follow(peer, request_id, 0)
            return
        if self.draining:
            text = "this daemon is about to end and takes nothing new"
            self._clients.reply(
                peer, Error(code="draining", message=text, request_id=request_id, next_step="try again")
            )
            return
        self._audit(
            "submit",
            peer,
            request=request_id,
            build=request.build_id,
            mode=request.mode.value,
            project=request.project,
            targets=list(request.targets),
        )
        log = RequestLog(request_id, limit_bytes=self._limits.log_bytes)
        entry = Entry(log, request.on_disconnect)
        self._requests[request_id] = entry
        log.listen(lambda event: self._appended(entry, event))
        self._follow(peer, request_id, 0)
        try:
            self._handler.submit(peer.info, request, log)
        except Exception as error:  # the handler's edge: the client must get an end
            self.counters["handler_errors"] += 1
            _log.exception("request %s could not be begun", request_id)
            log.append(Done(outcome=Outcome.DAEMON_ERROR, code="internal", message=f"{type(error).__name__}: {error}"))

    def _follow(self, peer: Peer, request_id: RequestId, after_sequence: int) -> None:
        entry = self._requests.get(request_id)
        if entry is None:
            text = f"no request {request_id!r} is known"
            step = "submit it again; what was built is in the store"
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
            entry.followers.add(peer)
        self._clients.pump_soon(peer)

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
            self.counters["handler_errors"] += 1
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

    # ------------------------------------------------------------ what goes out

    def _appended(self, entry: Entry, event: Event) -> None:
        if threading.get_ident() == self._thread:
            self._publish(entry, event)
        else:
            self._loop.call_soon_threadsafe(self._publish, entry, event)

    def _publish(self, entry: Entry, event: Event) -> None:
        for peer in entry.followers:
            self._clients.pump_soon(peer)
        if self._subscriptions:
            for encoded in entry.log.encoded_after(event.sequence - 1, 1):
                self._events.send([event.request_id.encode("utf-8", "replace"), *encoded.frames])
        if isinstance(event.body, Done):
            entry.finished_s = self._loop.time()
            entry.followers.clear()
            self._finished[entry.log.request_id] = entry
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_s = self._loop.time() - self._limits.keep_finished_s
        while self._finished:
            request_id, entry = next(iter(self._finished.items()))
            if len(self._finished) <= self._limits.keep_finished and entry.finished_s > oldest_s:
                self._timers.arm("forget", self._limits.keep_finished_s, self._forget_old)
                return
            del self._finished[request_id], self._requests[request_id]

    def _subscribed(self, raw: Sequence[zmq.Frame]) -> None:
        wish = raw[0].bytes
        if wish[:1] == b"\x01":
            self._subscriptions.add(wish[1:])
        elif wish[:1] == b"\x00":
            self._subscriptions.discard(wish[1:])

    # ------------------------------------------------------------ who leaves

    def _leave(self, peer: Peer, request_id: RequestId) -> None:
        if peer.cursors.pop(request_id, None) is None:
            return
        entry = self._requests.get(request_id)
        if entry is None or peer not in entry.followers:
            return
        entry.followers.discard(peer)
        if not entry.followers and entry.on_disconnect is OnDisconnect.CANCEL and entry.log.done is None:
            self._audit("abandoned", peer, request=request_id)
            self._cancel(request_id)

    # ------------------------------------------------------------ small things

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.counters["handler_errors"] += 1
            _log.error("a task of the server failed", exc_info=task.exception())

    def _audit(self, what: str, peer: Peer, **facts: object) -> None:
        who = {"user": peer.info.user, "pid": peer.info.pid, "client": peer.info.name, "from": peer.info.origin}
        # JSON, so that a client's text can neither end the line nor look like another field.
        self._handler.audit(" ".join([what, *(f"{k}={json.dumps(v)}" for k, v in {**who, **facts}.items())]))
