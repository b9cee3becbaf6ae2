"""The daemon's side of the spawner: starts that process, talks to it and ends it.

Knows jobs by their number, and passes them the spawner's messages; output, timeouts and figures are theirs
(`running_tool`). If the spawner is killed, this module ends its jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from buildd.errors import RunnerError
from buildd.host.usage import Sampler, end_all
from buildd.processes import spawner, spawner_wire
from buildd.processes.launch import Launch, start_error
from protocol.messages import Timing

log = logging.getLogger(__name__)


class HelperJob(Protocol):
    """A job of the spawner, which receives the messages about it."""

    launch: Launch
    pid: int

    def begun(self, pid: int) -> None: ...

    def failed(self, error: RunnerError) -> None: ...

    def exited(self, status: int, timing: Timing) -> None: ...

    def all_gone(self) -> None:
        """No process of the job is left."""

    def was_lost(self) -> None:
        """The spawner was killed, so the job's end is unknown."""


JobT = TypeVar("JobT", bound=HelperJob)
NOT_BELOW_RUN = {"BUILDD_DISABLE": "1"}
"""The spawner's environment, from which it gives its jobs nothing. In an empty one, the library of a `buildd run`
around `buildd build --no-daemon` would pass itself on (preloaded.c), and lead the jobs to shims."""


class HelperProcess(Protocol):
    """The spawner's process: a child of this one, or of a client."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; in a thread. Raises TimeoutExpired."""

    def kill(self) -> None: ...


def start_spawner(grace_s: float) -> tuple[socket.socket, HelperProcess]:
    """Start a spawner of this process; returns the connection to it. Raises RunnerError."""
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", spawner.__file__, str(theirs.fileno()), str(grace_s)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=NOT_BELOW_RUN,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        channel.close()
        raise RunnerError(
            f"the process that starts tools could not be started: {error.strerror}",
            file=sys.executable,
            next_step="check the limits on processes and open files (ulimit -u, ulimit -n)",
        ) from error
    finally:
        theirs.close()
    return channel, process


class Helper(Generic[JobT]):
    """One spawner process and the jobs that it keeps.

    Args:
        channel: the connection to it.
        process: the spawner.
        grace_s: from TERM to KILL.
        sampler: knows which processes the jobs had.
        forget: called when this process starts no more jobs.
    """

    def __init__(
        self,
        channel: socket.socket,
        process: HelperProcess,
        grace_s: float,
        sampler: Sampler,
        forget: Callable[[Helper[JobT]], None],
    ) -> None:
        self.process = process
        self.jobs: dict[int, JobT] = {}
        self._grace_s = grace_s
        self._sampler = sampler
        self._forget = forget
        self.lost: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._closed = False
        self._channel = channel
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._receive)

    def send(self, packet: bytes, descriptors: list[int]) -> None:
        """Send a packet with descriptors, which are closed here once they are sent."""
        self._outgoing.append((packet, descriptors))
        self._flush()

    def hold(self, number: int, held: bool) -> None:
        self.send(spawner_wire.REQUEST.pack(spawner_wire.HOLD if held else spawner_wire.GO_ON, number, 0.0, 0, 0), [])

    def end(self, number: int, grace_s: float) -> None:
        self.send(spawner_wire.REQUEST.pack(spawner_wire.KILL, number, grace_s, 0, 0), [])

    def _flush(self) -> None:
        while self._outgoing:
            packet, descriptors = self._outgoing[0]
            try:
                if not self._closed:
                    socket.send_fds(self._channel, [packet], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._flush)
                return
            except OSError:  # the spawner died; `_receive` notices that too and reports its jobs as lost
                pass
            self._outgoing.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if not self._closed:
            self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        while not self._closed:
            try:
                data = self._channel.recv(spawner_wire.REPLY.size)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.hang_up()
                self.lost = self._loop.create_task(self._answer_for_jobs())
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        kind, number, pid, status, peak_bytes, user_s, system_s, wall_ns = spawner_wire.REPLY.unpack(data)
        job = self.jobs[number]
        if kind == spawner_wire.STARTED:
            job.begun(pid)
        elif kind == spawner_wire.FAILED:
            del self.jobs[number]
            job.failed(start_error(job.launch, status & 0xFFFF, status >> 16))
        elif kind == spawner_wire.EXITED:
            job.exited(
                status, Timing(wall_s=wall_ns / 1e9, user_s=user_s, system_s=system_s, peak_rss_bytes=peak_bytes)
            )
        elif kind == spawner_wire.GONE:
            del self.jobs[number]
            job.all_gone()

    def hang_up(self) -> None:
        """Close the channel; the process ends by itself once it has ended its jobs."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()
            self._flush()
            self._forget(self)

    async def _answer_for_jobs(self) -> None:
        """End the tools of a spawner that was killed, and report its jobs as lost."""
        jobs, self.jobs = list(self.jobs.values()), {}
        log.warning("the process that starts tools was killed (pid %d); %d jobs lost", self.process.pid, len(jobs))
        await self._loop.run_in_executor(None, self.process.wait)
        sessions = {job.pid for job in jobs if job.pid}
        if sessions:
            seen = [self._sampler.seen(pid) for pid in sessions]
            await self._loop.run_in_executor(None, end_all, sessions, seen)
        for job in jobs:
            job.was_lost()

    async def close(self) -> None:
        self.hang_up()
        if self.lost is not None:
            await self.lost
        try:
            await self._loop.run_in_executor(None, self.process.wait, self._grace_s + 5)
        except subprocess.TimeoutExpired:  # a tool hangs in the kernel, so its keeper waits for it
            log.warning("the process that starts tools (pid %d) does not end; killing it", self.process.pid)
            self.process.kill()
            await self._loop.run_in_executor(None, self.process.wait)
