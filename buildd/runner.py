"""Runs tools: one process group each, output streamed by line, ended on time, measured.

Knows neither actions nor keys nor budgets: a `Launch` comes in, an `Exit` goes out. The processes belong to a helper
(`spawner`), which outlives the daemon just long enough to end them; when the helper itself is killed, its jobs are
reported as lost and the next launch starts a new one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable

from buildd import spawner
from buildd.errors import RunnerError
from buildd.helper import Helper
from buildd.launch import SIGKILL, Exit, KillReason, Launch, decode, memory_file, out_of_memory, start_error
from buildd.memory import OomCounter
from buildd.streams import Capture, Lines
from buildd.usage import Sampler
from buildd.warm_workers import IDLE_S
from protocol.messages import Timing

__all__ = ["Exit", "Job", "KillReason", "Launch", "OnLine", "Runner"]

log = logging.getLogger(__name__)

OnLine = Callable[[str, str], None]
"""Called on the loop with ("stdout" or "stderr", the line without its newline). Must not block."""

_READ_BYTES = 64 << 10


class Job:
    """A tool that runs. Made by `Runner.launch`."""

    def __init__(self, runner: Runner, helper: Helper[Job], number: int, launch: Launch, on_line: OnLine) -> None:
        loop = asyncio.get_running_loop()
        self.launch = launch
        self.pid = 0
        self._runner = runner
        self._helper = helper
        self._number = number
        self._on_line = on_line
        self._streams: dict[int, tuple[str, Lines, Capture]] = {}
        """Invariant: read end of each pipe that is still open."""
        self._files: dict[str, int] = {}
        """Where a quiet tool writes its streams; ours to close."""
        self._captures: dict[str, Capture] = {}
        self._loop = loop
        self._started: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[Exit] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._reason: KillReason | None = None
        self._ended: tuple[int, Timing] | None = None
        self._gone = False
        self._lost = False
        self._oom_kills = runner._oom_counter.read()

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole process tree, at most half a second old; 0 in the first 50 ms."""
        return self._runner._sampler.now_bytes(self.pid)

    @property
    def done(self) -> bool:
        return self._done.done()

    async def wait(self) -> Exit:
        """How it ended, once nothing of it is left. Several may wait; cancelling one of them leaves the tool alone.

        Raises `RunnerError` where it could not be started.
        """
        return await asyncio.shield(self._done)

    def kill(self, reason: KillReason = KillReason.CANCELLED) -> None:
        """End the tool and all that it started: TERM, after the runner's grace KILL. The first reason counts."""
        if self._done.done():
            return
        if self._ended is None and self._reason is None:
            self._reason = reason
        self._helper.end(self._number, 0.0 if reason is KillReason.MEMORY else self._runner.grace_s)

    # ---------------------------------------------------------------- called by the runner and its helper

    async def _end(self) -> None:
        """Kill it and wait until it is gone, started or not."""
        self.kill()
        await asyncio.wait([self._done])

    def _attach(self, name: str, descriptor: int) -> None:
        capture = self._captures[name] = Capture()
        self._streams[descriptor] = (name, Lines(), capture)
        self._loop.add_reader(descriptor, self._readable, descriptor)

    def _collect(self) -> None:
        """What a quiet tool has written."""
        for name, descriptor in self._files.items():
            capture, at = Capture(), 0
            while data := os.pread(descriptor, _READ_BYTES, at):
                capture.add(data)
                at += len(data)
            self._captures[name] = capture
        self._drop_files()

    def _drop_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _readable(self, descriptor: int) -> bool:
        """Take what is there. False when the pipe is empty or closed."""
        name, lines, capture = self._streams[descriptor]
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        capture.add(data)
        self._tell(name, lines.feed(data) if data else lines.finish())
        if not data:
            self._detach(descriptor)
            self._advance()
        return bool(data)

    def _tell(self, name: str, lines: list[str]) -> None:
        try:
            for line in lines:
                self._on_line(name, line)
        except Exception:  # the edge: a listener's fault must not end the tool
            log.exception("the listener of %s failed", self.launch.command)

    def _detach(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        del self._streams[descriptor]

    def begun(self, pid: int) -> None:
        self.pid = pid
        self._runner._sampler.add(pid)
        if self.launch.timeout_s > 0:
            self._timer = self._loop.call_later(self.launch.timeout_s, self.kill, KillReason.TIMEOUT)
        if not self._started.done():
            self._started.set_result(None)

    def failed(self, error: RunnerError) -> None:
        for descriptor in list(self._streams):
            self._detach(descriptor)
        self._drop_files()
        for future in (self._started, self._done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # counts as looked at, also when nobody waits any more

    def exited(self, status: int, timing: Timing) -> None:
        self._ended = (status, timing)
        self._set_timer(self._runner.linger_s, self._overstayed)

    def _overstayed(self) -> None:
        """The tool ended, but something that it started is still there or holds its output."""
        if not self._gone:
            self._helper.end(self._number, self._runner.grace_s)
        else:
            self._finish_streams()

    def all_gone(self) -> None:
        self._gone = True
        # No process is left, so all output is in the pipes. One that is still open is held by a stranger.
        for descriptor in list(self._streams):
            while self._readable(descriptor):
                pass
        self._collect()
        if self._streams:
            self._set_timer(self._runner.linger_s, self._finish_streams)
        self._advance()

    def _finish_streams(self) -> None:
        for descriptor, (name, lines, _) in list(self._streams.items()):
            self._detach(descriptor)
            self._tell(name, lines.finish())
        self._advance()

    def was_lost(self) -> None:
        self._lost = True
        if self._ended is None:
            self._ended = (128 + SIGKILL, Timing())
        if not self._started.done():
            self._started.set_result(None)
        self.all_gone()
        self._finish_streams()

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, callback)

    def _advance(self) -> None:
        """The one place where a job becomes done: ended, nothing left of it, all output read."""
        if self._ended is None or not self._gone or self._streams or self._done.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        code, timing = self._ended
        peak_bytes = max(timing.peak_rss_bytes, self._runner._sampler.remove(self.pid))
        status, signal = (code, 0) if self._lost else decode(code)
        if self._lost:
            signal = SIGKILL
        output = {name: capture.value() for name, capture in self._captures.items()}
        self._done.set_result(
            Exit(
                status=status,
                signal=signal,
                timing=Timing(
                    wall_s=timing.wall_s, user_s=timing.user_s, system_s=timing.system_s, peak_rss_bytes=peak_bytes
                ),
                timed_out=self._reason is KillReason.TIMEOUT,
                cancelled=self._reason is KillReason.CANCELLED,
                out_of_memory=self._out_of_memory(status, output),
                output_truncated=any(capture.truncated for capture in self._captures.values()),
                lost=self._lost,
                stdout=output.get("stdout", b""),
                stderr=output.get("stderr", b""),
            )
        )

    def _out_of_memory(self, status: int, output: dict[str, bytes]) -> bool:
        if status == 0 or self._lost:
            return False
        if self._reason is not None:
            return self._reason is KillReason.MEMORY
        return out_of_memory(status, output.values(), self._runner._oom_counter.read() - self._oom_kills)


class Runner:
    """Runs tools on one event loop.

    Args:
        grace_s: from TERM to KILL.
        linger_s: how long processes that a tool left behind may go on, or hold its output open, before they are ended.
    """

    def __init__(self, *, grace_s: float = 2.0, linger_s: float = 2.0) -> None:
        self.grace_s = grace_s
        self.linger_s = linger_s
        self._sampler = Sampler()
        self._oom_counter = OomCounter()
        self._helper: Helper[Job] | None = None
        self._warm_until_s = 0.0
        self._former: list[Helper[Job]] = []
        self._number = 0
        self._closed = False

    async def start(self) -> None:
        """Start the helper process ahead of the first launch. Raises `RunnerError`."""
        self._current()

    async def launch(self, launch: Launch, on_line: OnLine) -> Job:
        """Start a tool and return while it runs.

        Raises `RunnerError` when it cannot be started: no such program or folder, not executable, too long. Its first
        lines may be heard before this returns. Cancelling this ends it.
        """
        job = self.begin(launch, on_line)
        try:
            await asyncio.shield(job._started)
        except asyncio.CancelledError:
            await job._end()
            raise
        return job

    async def run(self, launch: Launch, on_line: OnLine) -> Exit:
        """Start a tool and wait for its end. Cancelling this ends the tool, and returns once nothing of it is left."""
        job = await self.launch(launch, on_line)
        try:
            return await job.wait()
        except asyncio.CancelledError:
            await job._end()
            raise

    def memory_of(self, job: Job) -> int:
        """Memory of a job's process tree in bytes, at most half a second old."""
        return job.memory_bytes

    def jobs(self) -> tuple[Job, ...]:
        """All that run."""
        return tuple(self._helper.jobs.values()) if self._helper is not None else ()

    def processes(self) -> tuple[int, ...]:
        """The helper's pid and that of every tool that runs."""
        if self._helper is None:
            return ()
        return (self._helper.process.pid, *(job.pid for job in self.jobs() if job.pid))

    async def close(self) -> None:
        """End everything, wait until it is gone. No launch works afterwards."""
        self._closed = True
        helper = self._helper
        if helper is not None:
            jobs = self.jobs()
            for job in jobs:
                job.kill()
            await asyncio.gather(*(job.wait() for job in jobs), return_exceptions=True)
            await helper.close()
        for former in self._former:
            await former.close()
        self._sampler.close()

    def warm_s(self) -> float:
        """How long processes are still kept that later jobs start faster from: they end with us."""
        return max(0.0, self._warm_until_s - time.monotonic())

    def spare(self) -> None:
        """Memory is short: let processes end that are kept only so that later jobs start faster."""
        self._warm_until_s = 0.0
        if self._helper is not None:
            self._helper.send(spawner.REQUEST.pack(spawner.SPARE, 0, 0.0, 0, 0), [])

    def _current(self) -> Helper[Job]:
        if self._closed:
            raise RunnerError("the runner is closed")
        if self._helper is None:
            self._helper = Helper(self.grace_s, self._sampler, self._forget)
            self._sampler.keeper = self._helper.process.pid
        return self._helper

    def _forget(self, helper: Helper[Job]) -> None:
        if self._helper is helper:
            self._helper = None
            self._sampler.keeper = 0
            self._former = [former for former in self._former if former.lost and not former.lost.done()] + [helper]

    def begin(self, launch: Launch, on_line: OnLine) -> Job:
        """Like `launch`, for who only waits for the end: that it could not be started shows there, if not at once."""
        helper = self._current()
        argv = [os.fsencode(argument) for argument in launch.argv]
        environment = [os.fsencode(f"{name}={value}") for name, value in launch.environment]
        cwd = os.fsencode(launch.cwd)
        if not argv or any(b"\0" in item for item in (cwd, *argv, *environment)):
            raise start_error(launch, errno.EINVAL, 0)
        self._number += 1
        job = Job(self, helper, self._number, launch, on_line)
        passed: list[int] = []
        try:
            known_by = [launch.warm.encode()] if launch.warm else []
            passed.append(memory_file("launch", spawner.pack_spec(cwd, [*known_by, *argv], environment)))
            for name in ("stdout", "stderr"):
                if launch.quiet:
                    job._files[name] = os.memfd_create(name, os.MFD_CLOEXEC)
                    passed.append(os.dup(job._files[name]))
                    continue
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                passed.append(theirs)
                # Only our end: the tool's must block, or it would see EAGAIN when we are slow.
                os.set_blocking(ours, False)
                job._attach(name, ours)
            if launch.payload:
                passed.append(memory_file("stdin", launch.payload))
        except OSError as error:
            for descriptor in passed:
                os.close(descriptor)
            failure = start_error(launch, error.errno or errno.EIO, 0)
            job.failed(failure)
            raise failure from error
        helper.jobs[self._number] = job
        if launch.warm:
            self._warm_until_s = time.monotonic() + IDLE_S
        kind = spawner.WARM if launch.warm else spawner.LAUNCH
        request = spawner.REQUEST.pack(kind, self._number, 0.0, launch.umask, bool(launch.payload))
        helper.send(request, passed)
        return job
