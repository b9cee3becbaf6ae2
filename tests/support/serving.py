"""A real server on a loop in a thread of its own, with a handler that does what a test says."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from buildd.builds.event_log import RequestLog
from buildd.daemon.clients import Limits
from buildd.daemon.control import TcpOptions
from buildd.daemon.handler import ClientInfo
from buildd.daemon.server import Server
from buildd.host.gpu_watch import GpuWatch
from protocol.client import Client
from protocol.endpoint import Folder, new_instance, runtime_folder, write_endpoint
from protocol.messages import (
    BuildId,
    Digest,
    Done,
    JobId,
    LogLine,
    OnDisconnect,
    Outcome,
    Planned,
    Request,
    RequestId,
    Status,
)
from protocol.session import Route

T = TypeVar("T")
DEADLINE_S = 20.0
_DEFAULTS = Limits()


class FakeHandler:
    """Answers every submit with a few events and `Done`, or leaves the log to the test (`manual`)."""

    def __init__(self) -> None:
        self.manual = False
        self.lines = 3
        self.logs: dict[RequestId, RequestLog] = {}
        self.requests: dict[RequestId, Request] = {}
        self.clients: dict[RequestId, ClientInfo] = {}
        self.cancelled: list[RequestId] = []
        self.drained: list[bool] = []
        self.audit_lines: list[str] = []
        self.blobs: dict[Digest, bytes] = {}
        self.fail_submit = False

    def submit(self, client: ClientInfo, request: Request, log: RequestLog) -> None:
        if self.fail_submit:
            raise RuntimeError("no such luck")
        self.clients[request.request_id] = client
        self.requests[request.request_id] = request
        self.logs[request.request_id] = log
        if self.manual:
            return
        log.append(Planned(targets=request.targets, actions=self.lines))
        for number in range(self.lines):
            log.append(LogLine(job_id=JobId(1), stream="stdout", text=f"line {number}"))
        log.append(Done(outcome=Outcome.BUILT))

    def cancel(self, request_id: RequestId) -> bool:
        self.cancelled.append(request_id)
        if request_id in self.logs:
            self.logs[request_id].append(Done(outcome=Outcome.CANCELLED))
        return request_id in self.logs

    def status(self, settle: bool) -> Status:
        return Status(
            pid=os.getpid(),
            daemon="",
            instance="",
            state="",
            uptime_s=1.0,
            rss_bytes=1,
            requests=0,
            counters={"hits": 7},
        )

    async def blob(self, store: str, digest: Digest) -> bytes | None:
        return self.blobs.get(digest)

    async def drain(self, now: bool) -> None:
        self.drained.append(now)

    def audit(self, line: str) -> None:
        self.audit_lines.append(line)


class Serving:
    """A server, its handler and its loop."""

    def __init__(
        self, folder: Folder, handler: FakeHandler, tcp: TcpOptions | None, limits: Limits, gpus: GpuWatch | None
    ) -> None:
        self.folder = folder
        self.handler = handler
        instance = new_instance()
        self.server = Server(
            handler,
            folder.addresses(instance),
            instance=instance,
            daemon="buildd/test",
            tcp=tcp,
            limits=limits,
            gpus=gpus,
            gpu_locks=f"{folder.path}/gpus",
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(DEADLINE_S)
        write_endpoint(self.folder, self.server.endpoint())

    def stop(self, linger_s: float = 0.2) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(linger_s), self.loop).result(DEADLINE_S + linger_s)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def on_loop(self, call: Callable[[], T]) -> T:
        """Run `call` on the server's loop and return what it returns."""

        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE_S)

    def client(self, timeout_s: float = DEADLINE_S) -> Client:
        return Client(Route.local(self.server.endpoint()), timeout_s=timeout_s, name="test/1")


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for sockets, which pytest's `tmp_path` does not everywhere."""
    with tempfile.TemporaryDirectory(prefix="bd", dir="/tmp") as made:
        yield Path(made)


@contextmanager
def serving(
    base: Path,
    *,
    handler: FakeHandler | None = None,
    tcp: TcpOptions | None = None,
    limits: Limits = _DEFAULTS,
    linger_s: float = 0.2,
    gpus: GpuWatch | None = None,
) -> Iterator[Serving]:
    served = Serving(runtime_folder({"BUILDD_RUNTIME_DIR": str(base)}), handler or FakeHandler(), tcp, limits, gpus)
    served.start()
    try:
        yield served
    finally:
        served.stop(linger_s)


def a_request(name: str = "r1", *, on_disconnect: OnDisconnect = OnDisconnect.DETACH) -> Request:
    return Request(
        request_id=RequestId(name),
        build_id=BuildId("b1"),
        project="/somewhere",
        targets=("all",),
        on_disconnect=on_disconnect,
    )
