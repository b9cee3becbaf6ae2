"""The runner starts tools: one process group each, output streamed by line, ended on time, measured.

Knows neither actions nor keys nor budgets: a `Launch` comes in, an `Exit` goes out. The processes belong to a helper
(`spawner`), which outlives the daemon just long enough to end them. If the helper itself is killed, its jobs are
reported as lost, and the next launch starts a new helper.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time

from buildd.errors import RunnerError
from buildd.host.memory import OomCounter
from buildd.host.usage import Sampler
from buildd.processes import spawner_wire
from buildd.processes.launch import Exit, Launch, memory_file, start_error
from buildd.processes.running_tool import Care, OnLine, RunningTool
from buildd.processes.spawner_client import Helper, HelperProcess, start_spawner
from buildd.processes.warm_workers import IDLE_S

GRACE_S = 2.0


class Runner:
    """Runs tools on one event loop.

    Args:
        grace_s: from TERM to KILL.
        linger_s: how long processes that a tool left behind may go on, or hold its output open, before they are ended.
        oom_counter: counts those that the kernel killed for memory; that of this process's cgroup if none is given.
    """

    def __init__(
        self, *, grace_s: float = GRACE_S, linger_s: float = 2.0, oom_counter: OomCounter | None = None
    ) -> None:
        self._sampler = Sampler()
        self._care = Care(grace_s, linger_s, self._sampler, oom_counter or OomCounter())
        self._helper: Helper[RunningTool] | None = None
        self._warm_until_s = 0.0
        self._former: list[Helper[RunningTool]] = []
        self._number = 0
        self._closed = False

    async def start(self) -> None:
        """Start the helper process ahead of the first launch. Raises `RunnerError`."""
        self._current()

    async def launch(self, launch: Launch, on_line: OnLine) -> RunningTool:
        """Start a tool and return while it runs.

        Raises `RunnerError` when it cannot be started: no such program or folder, not executable, too long. `on_line`
        may be called before this returns. Cancelling this ends the tool.
        """
        job = self.begin(launch, on_line)
        try:
            await asyncio.shield(job.started)
        except asyncio.CancelledError:
            await job.end()
            raise
        return job

    async def run(self, launch: Launch, on_line: OnLine) -> Exit:
        """Start a tool and wait for its end. Cancelling this ends the tool, and returns once nothing of it is left."""
        job = await self.launch(launch, on_line)
        try:
            return await job.wait()
        except asyncio.CancelledError:
            await job.end()
            raise

    def memory_of(self, job: RunningTool) -> int:
        """Memory of a job's process tree in bytes, at most half a second old."""
        return job.memory_bytes

    def jobs(self) -> tuple[RunningTool, ...]:
        """All tools that run."""
        return tuple(self._helper.jobs.values()) if self._helper is not None else ()

    def processes(self) -> tuple[int, ...]:
        """The helper's pid and that of every tool that runs."""
        if self._helper is None:
            return ()
        return (self._helper.process.pid, *(job.pid for job in self.jobs() if job.pid))

    async def close(self) -> None:
        """End everything and wait until all processes are gone. No launch works afterwards."""
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
        """How long (s) warm workers may still be kept; they end with the runner."""
        return max(0.0, self._warm_until_s - time.monotonic())

    def spare(self) -> None:
        """Free memory: let the warm workers end, which only make later jobs start faster."""
        self._warm_until_s = 0.0
        if self._helper is not None:
            self._helper.send(spawner_wire.REQUEST.pack(spawner_wire.SPARE, 0, 0.0, 0, 0), [])

    def _current(self) -> Helper[RunningTool]:
        if self._closed:
            raise RunnerError("the runner is closed")
        if self._helper is None:
            self._helper = Helper(*self._spawner(), self._care.grace_s, self._sampler, self._forget)
            self._sampler.keeper = self._helper.process.pid
        return self._helper

    def _spawner(self) -> tuple[socket.socket, HelperProcess]:
        return start_spawner(self._care.grace_s)

    def _forget(self, helper: Helper[RunningTool]) -> None:
        if self._helper is helper:
            self._helper = None
            self._sampler.keeper = 0
            self._former = [former for former in self._former if former.lost and not former.lost.done()] + [helper]

    def begin(self, launch: Launch, on_line: OnLine) -> RunningTool:
        """Like `launch`, but without waiting for the start: a failed start shows at `wait`, if not at once."""
        helper = self._current()
        argv = [os.fsencode(argument) for argument in launch.argv]
        environment = [os.fsencode(f"{name}={value}") for name, value in launch.environment]
        cwd = os.fsencode(launch.cwd)
        if not argv or any(b"\0" in item for item in (cwd, *argv, *environment)):
            raise start_error(launch, errno.EINVAL, 0)
        self._number += 1
        job = RunningTool(self._care, helper, self._number, launch, on_line)
        passed: list[int] = []
        try:
            known_by = [launch.warm.encode()] if launch.warm else []
            passed.append(memory_file("launch", spawner_wire.pack_spec(cwd, [*known_by, *argv], environment)))
            for name in ("stdout", "stderr"):
                if launch.quiet:
                    job.files[name] = os.memfd_create(name, os.MFD_CLOEXEC)
                    passed.append(os.dup(job.files[name]))
                    continue
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                passed.append(theirs)
                # Only buildd's end: the tool's end must block, or it would see EAGAIN when buildd is slow.
                os.set_blocking(ours, False)
                job.attach(name, ours)
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
        kind = spawner_wire.WARM if launch.warm else spawner_wire.LAUNCH
        request = spawner_wire.REQUEST.pack(kind, self._number, 0.0, launch.umask, bool(launch.payload))
        helper.send(request, passed)
        return job
