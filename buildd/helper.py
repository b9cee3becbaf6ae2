"""The daemon's side of the process that starts tools (`spawner`): starting it, the wire with it, and its end.

Knows jobs by their number: what one is told is its own business (`runner`), and so are output, timeouts and figures.
Where the process is killed, its jobs are ended from here.
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

from buildd import spawner
from buildd.errors import RunnerError
from buildd.launch import Launch, start_error
from buildd.usage import Sampler, end_all
from protocol.messages import Timing

log = logging.getLogger(__name__)


class Kept(Protocol):
    """A job, as far as it matters here: it is told what becomes of it."""

    launch: Launch
    pid: int

    def begun(self, pid: int) -> None: ...

    def failed(self, error: RunnerError) -> None: ...

    def exited(self, status: int, timing: Timing) -> None: ...

    def all_gone(self) -> None:
        """No process of it is left."""

    def was_lost(self) -> None:
        """The process that kept it was killed."""


JobT = TypeVar("JobT", bound=Kept)


class Helper(Generic[JobT]):
    """One life of the spawner process and the jobs that it keeps.

    Args:
        grace_s: from TERM to KILL.
        sampler: has seen which sessions jobs have opened.
        forget: is told once nothing more is started here.
    """

    def __init__(self, grace_s: float, sampler: Sampler, forget: Callable[[Helper[JobT]], None]) -> None:
        self.jobs: dict[int, JobT] = {}
        self._grace_s = grace_s
        self._sampler = sampler
        self._forget = forget
        self.lost: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._closed = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", spawner.__file__, str(theirs.fileno()), str(grace_s)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._channel.close()
            raise RunnerError(
                f"the process that starts tools could not be started: {error.strerror}",
                file=sys.executable,
                next_step="check the limits on processes and open files (ulimit -u, ulimit -n)",
            ) from error
        finally:
            theirs.close()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._receive)

    def send(self, packet: bytes, descriptors: list[int]) -> None:
        """Send a packet with descriptors, which are closed here once they are on their way."""
        self._outgoing.append((packet, descriptors))
        self._flush()

    def end(self, number: int, grace_s: float) -> None:
        self.send(spawner.REQUEST.pack(spawner.KILL, number, grace_s, 0, 0), [])

    def _flush(self) -> None:
        while self._outgoing:
            packet, descriptors = self._outgoing[0]
            try:
                if not self._closed:
                    socket.send_fds(self._channel, [packet], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._flush)
                return
            except OSError:  # it died; `_receive` sees that too and answers for its jobs
                pass
            self._outgoing.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if not self._closed:
            self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        while not self._closed:
            try:
                data = self._channel.recv(spawner.REPLY.size)
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
        kind, number, pid, status, peak_bytes, user_s, system_s, wall_ns = spawner.REPLY.unpack(data)
        job = self.jobs[number]
        if kind == spawner.STARTED:
            job.begun(pid)
        elif kind == spawner.FAILED:
            del self.jobs[number]
            job.failed(start_error(job.launch, status & 0xFFFF, status >> 16))
        elif kind == spawner.EXITED:
            job.exited(
                status, Timing(wall_s=wall_ns / 1e9, user_s=user_s, system_s=system_s, peak_rss_bytes=peak_bytes)
            )
        elif kind == spawner.GONE:
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
        """The process was killed, so nobody keeps its tools any more: end them from here."""
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
