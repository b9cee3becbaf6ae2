"""The asynchronous client: the same conversation as `client.Client`, for programs with an event loop.

Does not start a daemon: the caller passes the route to a running one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import zmq
import zmq.asyncio

from protocol import wire
from protocol.client import PING_EVERY_S, SILENCE_S
from protocol.endpoint import is_alive, open_pidfd
from protocol.errors import ConnectionLost, ProtocolError, RemoteError, TimedOut
from protocol.messages import (
    Accepted,
    Bye,
    CancelRequest,
    Digest,
    DrainRequest,
    Error,
    Event,
    Fetch,
    Follow,
    FromControl,
    GiveBack,
    Lease,
    LeaseId,
    LeaseWaits,
    Message,
    Ping,
    Request,
    RequestId,
    Status,
    StatusRequest,
    Submit,
    Unfollow,
)
from protocol.session import Download, HeldLease, Inbox, Route, Stream, check_welcome, hello, is_last
from protocol.sockets import open_socket


class AsyncClient:
    """A connection to one daemon, for one event loop. The events of several requests may be read side by side."""

    def __init__(
        self,
        route: Route,
        *,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 10.0,
        name: str = "python/0.1",
    ) -> None:
        self.route = route
        self._environ = environ
        self._timeout_s = timeout_s
        self._name = name
        self._context = zmq.asyncio.Context()
        self._work: Any = None
        self._control: Any = None
        self._inbox = Inbox()
        self._news = asyncio.Condition()
        self._failure: ProtocolError | None = None
        self._sending: set[asyncio.Future[Any]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._died = asyncio.Event()
        self._heard = time.monotonic()
        endpoint = route.endpoint
        self._death = open_pidfd(endpoint.pid, endpoint.start_ticks) if endpoint else None
        if self._death is not None:
            asyncio.get_running_loop().add_reader(self._death, self._died.set)

    async def submit(self, request: Request) -> AsyncIterator[Event]:
        """As `Client.submit`: `async for event in await client.submit(request)`."""
        await self._open()
        stream = self._inbox.open_stream(request.request_id, 0)
        return self._start(stream, Submit(request=request))

    async def follow(
        self, request_id: RequestId, after_sequence: int = 0, *, observe: bool = False
    ) -> AsyncIterator[Event]:
        """As `Client.follow`; with `observe`, this client only looks on."""
        await self._open()
        stream = self._inbox.open_stream(request_id, after_sequence)
        return self._start(stream, Follow(request_id=request_id, after_sequence=after_sequence, observe=observe))

    async def fetch(self, digest: Digest, store: str = "") -> bytes:
        """As `Client.fetch`."""
        await self._open()
        download = self._inbox.downloads[digest] = Download(digest)
        try:
            self._send(Fetch(digest=digest, store=store))
            async with self._news:
                await self._news.wait_for(
                    lambda: download.complete or download.error is not None or self._failure is not None
                )
        finally:
            del self._inbox.downloads[digest]
        if download.error is not None:
            raise RemoteError(download.error)
        if not download.complete:
            raise self._why(RequestId(""))
        return bytes(download.data)

    @asynccontextmanager
    async def lease(
        self, gpu: str, *, what: str = "", limit_s: float = 60.0, waits: Callable[[LeaseWaits], None] | None = None
    ) -> AsyncIterator[HeldLease]:
        """Hold a GPU alone, among all clients of all daemons of its machine. After the end, the lease's `lost` says
        whether it was held to the end, and `beside` which processes computed there without one.

        Args:
            gpu: UUID of the GPU, or of a part of a divided one.
            what: what it is for, for people who wait.
            limit_s: the daemon takes it back after so long.
            waits: called if the GPU is not free, with the processes that come first.

        Raises: RemoteError ("unknown-gpu", "too-many", "forbidden"), ConnectionLost, TimedOut.
        """
        await self._open()
        held = HeldLease(LeaseId(os.urandom(8).hex()))
        self._inbox.leases[held.lease_id] = held
        try:
            self._send(Lease(lease_id=held.lease_id, gpu=gpu, what=what, limit_s=limit_s))
            await self._lease_news(held, lambda: held.granted is not None or held.waits is not None)
            if held.granted is None:
                if held.waits is not None and waits is not None:
                    waits(held.waits)
                await self._lease_news(held, lambda: held.granted is not None)
            yield held
        finally:
            # Shielded: who is cancelled gives back what is held, and the GPU must be free when this returns.
            await asyncio.shield(self._give_back(held))
            del self._inbox.leases[held.lease_id]

    async def _lease_news(self, held: HeldLease, is_there: Callable[[], bool]) -> None:
        """Wait for an answer about a lease. Raises as `lease`."""
        async with self._news:
            await self._news.wait_for(lambda: is_there() or held.error is not None or self._failure is not None)
        if held.error is not None:
            raise RemoteError(held.error)
        if self._failure is not None:
            raise self._why(RequestId(""))

    async def _give_back(self, held: HeldLease) -> None:
        if held.error is not None or held.ended is not None or self._work is None:
            return
        try:
            if self._failure is None:
                self._send(GiveBack(lease_id=held.lease_id))
            await asyncio.wait_for(self._lease_news(held, lambda: held.ended is not None), self._timeout_s)
        except (ProtocolError, TimeoutError):
            held.lost = "the daemon has ended, or does not answer"

    def _start(self, stream: Stream, first: Message) -> AsyncIterator[Event]:
        try:
            self._send(first)
        except ProtocolError:
            self._inbox.close_stream(stream)
            raise
        return self._events(stream)

    async def _events(self, stream: Stream) -> AsyncIterator[Event]:
        finished = False
        try:
            while not finished:
                event = stream.take()
                if event is None:
                    if self._failure is not None:
                        raise self._why(stream.request_id)
                    async with self._news:
                        await self._news.wait_for(lambda: bool(stream.waiting) or self._failure is not None)
                    continue
                finished = is_last(event)
                yield event
        except RemoteError:
            finished = True
            raise
        finally:
            self._inbox.close_stream(stream)
            if not finished and self._failure is None and not self._context.closed:
                self._send(Unfollow(request_id=stream.request_id))

    def _why(self, request_id: RequestId) -> ProtocolError:
        if isinstance(self._failure, ConnectionLost):
            return self._inbox.lost(request_id, self._failure.message)
        return self._failure or ConnectionLost("the connection is closed")

    # ------------------------------------------------------------ the reader

    async def _open(self) -> None:
        async with self._opening:
            if self._work is not None:
                return
            work = open_socket(self._context, zmq.DEALER, self.route, self.route.work)
            try:
                await work.send_multipart(
                    wire.encode(hello(self._name, self._environ, local=self.route.endpoint is not None))
                )
                frames = await self._answer(work)
                welcome = check_welcome(wire.decode_from_daemon(frames))
            except ProtocolError:
                work.close()
                raise
            self._inbox.instance = welcome.instance
            self._work = work
            self._reader = asyncio.create_task(self._read(work))

    async def _answer(self, socket: Any) -> list[bytes]:
        """The next message, or the error that explains why there is none."""
        deadline = time.monotonic() + self._timeout_s
        received = asyncio.ensure_future(socket.recv_multipart())
        died = asyncio.ensure_future(self._died.wait())
        try:
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({received, died}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if received.done():
                frames: list[bytes] = received.result()
                return frames
            self._check_alive()
            raise TimedOut(f"the daemon did not answer within {self._timeout_s:.0f} s", next_step="buildd doctor")
        finally:
            died.cancel()
            received.cancel()

    def _check_alive(self) -> None:
        endpoint = self.route.endpoint
        if endpoint is not None and not is_alive(endpoint):
            raise ConnectionLost(f"the daemon (pid {endpoint.pid}) ended", instance=self._inbox.instance)
        if endpoint is None and time.monotonic() - self._heard > SILENCE_S:
            raise ConnectionLost(f"the daemon at {self.route.work} has been silent for {SILENCE_S:.0f} s")

    async def _read(self, work: Any) -> None:
        try:
            while True:
                try:
                    frames = await self._next(work)
                except TimeoutError:
                    self._check_alive()
                    if self.route.endpoint is None:
                        self._send(Ping())
                    continue
                self._heard = time.monotonic()
                self._inbox.put(wire.decode_from_daemon(frames))
                async with self._news:
                    self._news.notify_all()
        except ProtocolError as error:
            self._failure = error
            async with self._news:
                self._news.notify_all()

    async def _next(self, work: Any) -> list[bytes]:
        received = asyncio.ensure_future(work.recv_multipart())
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({received, died}, timeout=PING_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():
                raise TimeoutError
            frames: list[bytes] = received.result()
            return frames
        finally:
            died.cancel()
            received.cancel()

    def _send(self, message: Message) -> None:
        frames = wire.encode(message)
        # A send of zmq.asyncio begins at once; if the queue is full, it waits.
        sending = asyncio.ensure_future(self._work.send_multipart(frames))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    # ------------------------------------------------------------ control

    async def status(self, *, settle: bool = False) -> Status:
        """As `Client.status`."""
        reply = await self._ask(StatusRequest(settle=settle))
        if not isinstance(reply, Status):
            raise ProtocolError(f"the daemon answered a status request with {type(reply).__name__}")
        return reply

    async def cancel(self, request_id: RequestId) -> str:
        """As `Client.cancel`."""
        return await self._command(CancelRequest(request_id=request_id))

    async def drain(self, now: bool = False) -> str:
        """As `Client.drain`."""
        return await self._command(DrainRequest(now=now))

    async def _command(self, message: Message) -> str:
        reply = await self._ask(message)
        if not isinstance(reply, Accepted):
            raise ProtocolError(f"the daemon answered with {type(reply).__name__}")
        return reply.text

    async def _ask(self, message: Message) -> FromControl:
        async with self._asking:
            if self._control is None:
                self._control = open_socket(self._context, zmq.DEALER, self.route, self.route.control)
            try:
                await self._control.send_multipart(wire.encode(message))
                reply = wire.decode_from_control(await self._answer(self._control))
            except ProtocolError:
                self._control.close()
                self._control = None
                raise
        if isinstance(reply, Error):
            raise RemoteError(reply)
        return reply

    # ------------------------------------------------------------ end

    async def close(self) -> None:
        """Say goodbye and close the sockets. Safe to call twice."""
        if self._context.closed:
            return
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._death is not None:
            asyncio.get_running_loop().remove_reader(self._death)
            os.close(self._death)
        said = self._work is not None and self._failure is None
        if said:
            self._send(Bye())
            await asyncio.sleep(0)
        for socket in (self._work, self._control):
            if socket is not None:
                socket.close(linger=200 if said else 0)
        self._context.term()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
