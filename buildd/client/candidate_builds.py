"""Builds requests side by side for profiling: each through the daemon, or all in this process.

Knows connections and schedulers, nothing of kernels. A build's result is the artifacts of one request, in their places.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from buildd.builds.event_log import RequestLog
from protocol import messages as m
from protocol.errors import ProtocolError
from protocol.resubmission import submit_through
from protocol.session import Route

_LOOKED_UP = 2
"""Requests looked up at once: while the daemon handles one, the next is on its way."""
LOOKS_S = 0.5
"""Longest that a request counts as being looked up: if other requests compile its jobs, no event says so."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    outcome: m.Outcome
    paths: tuple[str, ...] = ()
    """Absolute paths of its artifacts."""
    is_its_own_fault: bool = False
    """It does not compile, so another try would not help."""
    failed: tuple[str, ...] = ()
    """Names of the failed actions."""
    message: str = ""
    hits: int = 0
    misses: int = 0
    cpu_s: float = 0.0
    """CPU time of everything that ran for it."""


class Builder(Protocol):
    """Builds requests, any number at once."""

    @property
    def route(self) -> Route | None:
        """The way to the daemon that builds; None if this process builds."""

    async def build(self, request: m.Request) -> Built: ...

    async def close(self) -> None: ...


class ThroughDaemon:
    """Builds each request on a connection of its own, with a thread that listens to it.

    Requests are looked up almost one by one: side by side, all hits would arrive last and together. Results that have
    to be made delay no look-up.

    Args:
        environ: says where the daemon is; one is started if none runs.

    Raises: ProtocolError if there is no daemon and none can be started.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        from buildd.client.connect import connect

        self._environ = environ
        # Kept to the end: a daemon neither ends nor restarts itself while a client is connected.
        self._client = connect(environ, start=True)
        assert self._client.instance  # shakes hands
        self._looking = asyncio.Semaphore(_LOOKED_UP)

    @property
    def route(self) -> Route | None:
        return self._client.route

    async def build(self, request: m.Request) -> Built:
        """Build one request. Raises ProtocolError if the daemon went away and no other can be started."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[m.EventBody]] = loop.create_future()
        is_made = asyncio.Event()

        def listen() -> None:
            from buildd.client.connect import connect

            heard: list[m.EventBody] = []
            try:
                for event in submit_through(lambda: connect(self._environ, start=True), request):
                    heard.append(event.body)
                    if isinstance(event.body, m.Queued | m.Started):
                        _call(loop, is_made.set)
            except ProtocolError as error:
                _tell(loop, answer, error)
            else:
                _tell(loop, answer, heard)
            _call(loop, is_made.set)

        # Not in a pool: the interpreter waits for pools at its end, and Ctrl-C must not wait for compilers.
        thread = threading.Thread(target=listen, name=request.targets[0], daemon=True)
        async with self._looking:
            thread.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(is_made.wait(), LOOKS_S)
        return _built(request, await answer)

    async def close(self) -> None:
        self._client.close()


class InProcess:
    """Builds everything in this process, with the same store and the same results."""

    route: Route | None = None

    def __init__(self, store: str) -> None:
        from buildd.scheduling.scheduler import Scheduler  # late: users of a daemon do not need it

        self._scheduler = Scheduler(default_store=Path(store))

    async def build(self, request: m.Request) -> Built:
        loop = asyncio.get_running_loop()
        log, done = RequestLog(request.request_id), asyncio.Event()
        heard: list[m.EventBody] = []

        def tell(event: m.Event) -> None:
            loop.call_soon_threadsafe(hear, event.body)

        def hear(body: m.EventBody) -> None:
            heard.append(body)
            if isinstance(body, m.Done):
                done.set()

        log.listen(tell)
        self._scheduler.submit(request, log)
        try:
            await done.wait()
        except asyncio.CancelledError:
            self._scheduler.cancel(request.request_id)
            raise
        return _built(request, heard)

    async def close(self) -> None:
        await self._scheduler.close()


class Presence:
    """Held while this process has candidates in a project: the last process to end removes them all."""

    def __init__(self, store: str, project: str) -> None:
        name = hashlib.sha256(os.fsencode(os.path.realpath(project))).hexdigest()[:16]
        self._path = os.path.join(store, "profiles", f"{name}.lock")
        self._file = -1

    def __enter__(self) -> Presence:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return self

    def is_last(self) -> bool:
        """Whether no other process holds it; then none can take it before this one lets go."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def tidy(folder: str, prefix: str) -> None:
    """Remove the candidates from a project's outputs; their kernels stay in the store, where later builds find them."""
    if not os.path.isdir(folder):
        return
    for entry in list(os.scandir(folder)):
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)


def _tell(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[list[m.EventBody]],
    said: list[m.EventBody] | ProtocolError,
) -> None:
    def work() -> None:
        if answer.done():
            return
        if isinstance(said, ProtocolError):
            answer.set_exception(said)
        else:
            answer.set_result(said)

    _call(loop, work)


def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nothing waits any more
        loop.call_soon_threadsafe(work)


def _built(request: m.Request, heard: list[m.EventBody]) -> Built:
    done = next((body for body in reversed(heard) if isinstance(body, m.Done)), None)
    if done is None:
        return Built(outcome=m.Outcome.DAEMON_ERROR, message="the daemon did not report the outcome")
    failures = [body for body in heard if isinstance(body, m.Failed)]
    first = failures[0] if failures else None
    message = first.message if first is not None else done.message
    if first is not None and first.diagnostics:
        message = f"{message}: {first.diagnostics[0].message}"
    return Built(
        outcome=done.outcome,
        paths=tuple(f"{request.project}/{body.path}" for body in heard if isinstance(body, m.Artifact)),
        is_its_own_fault=first is not None and first.kind is m.FailureKind.COMPILE_ERROR,
        failed=tuple(failure.action for failure in failures),
        message=message,
        hits=done.hits,
        misses=done.misses,
        cpu_s=sum(body.timing.user_s + body.timing.system_s for body in heard if isinstance(body, m.Finished)),
    )
