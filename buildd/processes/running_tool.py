"""A tool that runs: its output by line, its end, its figures.

Knows neither actions nor keys nor budgets. The process belongs to the spawner, whose packets arrive here through its
client; `runner` starts tools.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from buildd.errors import RunnerError
from buildd.host.memory import OomCounter
from buildd.host.usage import Sampler
from buildd.processes.launch import SIGKILL, EndReason, Exit, Launch, decode, out_of_memory
from buildd.processes.spawner_client import Helper
from buildd.processes.streams import Capture, Lines
from protocol.messages import Timing

log = logging.getLogger(__name__)

OnLine = Callable[[str, str], None]
"""Called on the loop with ("stdout" or "stderr", the line without its newline). Must not block."""

_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Care:
    """What the tools of one runner share."""

    grace_s: float
    """From TERM to KILL."""
    linger_s: float
    """How long processes that a tool left behind may go on, or hold its output open, before they are ended."""
    sampler: Sampler
    oom_counter: OomCounter


class RunningTool:
    """A tool that runs. Made by `Runner.launch`."""

    def __init__(self, care: Care, helper: Helper[RunningTool], number: int, launch: Launch, on_line: OnLine) -> None:
        loop = asyncio.get_running_loop()
        self.launch = launch
        self.pid = 0
        self._care = care
        self._helper = helper
        self._number = number
        self._on_line = on_line
        self._streams: dict[int, tuple[str, Lines, Capture]] = {}
        """Invariant: read end of each pipe that is still open."""
        self.files: dict[str, int] = {}
        """Stream -> the file that a quiet tool writes it to; closed here."""
        self._captures: dict[str, Capture] = {}
        self._loop = loop
        self.started: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[Exit] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._reason: EndReason | None = None
        self._ended: tuple[int, Timing] | None = None
        self._held_s = 0.0
        """How long it was held before."""
        self._held_since_s: float | None = None
        self._gone = False
        self._lost = False
        self._oom_kills = care.oom_counter.read()

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole process tree, at most half a second old; 0 in the first 50 ms."""
        return self._care.sampler.now_bytes(self.pid)

    @property
    def done(self) -> bool:
        return self._done.done()

    async def wait(self) -> Exit:
        """How the tool ended, once none of its processes is left. Cancelling a waiter leaves the tool alone.

        Raises `RunnerError` where the tool could not be started.
        """
        return await asyncio.shield(self._done)

    def kill(self, reason: EndReason = EndReason.CANCELLED) -> None:
        """End the tool and all that it started: TERM, and KILL after the grace. The first reason counts."""
        if self._done.done():
            return
        if self._ended is None and self._reason is None:
            self._reason = reason
        self._helper.end(self._number, 0.0 if reason is EndReason.MEMORY else self._care.grace_s)

    def hold(self, held: bool) -> None:
        """Stop the tool and all that it started, or let them go on. The time meanwhile counts for no figure."""
        if held == (self._held_since_s is not None) or self._ended is not None:
            return
        self._helper.hold(self._number, held)
        if held:
            self._held_since_s = self._loop.time()
        else:
            self._held_s = self._all_held_s()
            self._held_since_s = None

    def _all_held_s(self) -> float:
        since_s = self._held_since_s
        return self._held_s + (0.0 if since_s is None else self._loop.time() - since_s)

    def _timed_out(self, spared_s: float) -> None:
        """End the tool, unless it was held meanwhile: then it has so much time left."""
        held_s = self._all_held_s()
        if held_s > spared_s:
            self._set_timer(held_s - spared_s, lambda: self._timed_out(held_s))
        else:
            self.kill(EndReason.TIMEOUT)

    # ---------------------------------------------------------------- called by the runner and its helper

    async def end(self) -> None:
        """Kill the tool and wait until it is gone, started or not."""
        self.kill()
        await asyncio.wait([self._done])

    def attach(self, name: str, descriptor: int) -> None:
        capture = self._captures[name] = Capture()
        self._streams[descriptor] = (name, Lines(), capture)
        self._loop.add_reader(descriptor, self._readable, descriptor)

    def _collect(self) -> None:
        """Read the output that a quiet tool has written to files."""
        for name, descriptor in self.files.items():
            capture, at = Capture(), 0
            while data := os.pread(descriptor, _READ_BYTES, at):
                capture.add(data)
                at += len(data)
            self._captures[name] = capture
        self._drop_files()

    def _drop_files(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()

    def _readable(self, descriptor: int) -> bool:
        """Read from a pipe; False when it is empty or closed."""
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
        self._care.sampler.add(pid)
        if self.launch.timeout_s > 0:
            self._set_timer(self.launch.timeout_s, lambda: self._timed_out(0.0))
        if not self.started.done():
            self.started.set_result(None)

    def failed(self, error: RunnerError) -> None:
        for descriptor in list(self._streams):
            self._detach(descriptor)
        self._drop_files()
        for future in (self.started, self._done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, also when nothing waits for it

    def exited(self, status: int, timing: Timing) -> None:
        ran_s = max(0.0, timing.wall_s - self._all_held_s())
        self._ended = (status, msgspec.structs.replace(timing, wall_s=ran_s))
        self._set_timer(self._care.linger_s, self._overstayed)

    def _overstayed(self) -> None:
        """The tool ended, but something that it started is still there or holds its output."""
        if not self._gone:
            self._helper.end(self._number, self._care.grace_s)
        else:
            self._finish_streams()

    def all_gone(self) -> None:
        self._gone = True
        # No process is left, so all output is in the pipes. A process of another job holds a pipe that is still open.
        for descriptor in list(self._streams):
            while self._readable(descriptor):
                pass
        self._collect()
        if self._streams:
            self._set_timer(self._care.linger_s, self._finish_streams)
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
        if not self.started.done():
            self.started.set_result(None)
        self.all_gone()
        self._finish_streams()

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, callback)

    def _advance(self) -> None:
        """The one place where a job becomes done: it has ended, no process of it is left, all output is read."""
        if self._ended is None or not self._gone or self._streams or self._done.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        code, timing = self._ended
        peak_bytes = max(timing.peak_rss_bytes, self._care.sampler.remove(self.pid))
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
                timed_out=self._reason is EndReason.TIMEOUT,
                cancelled=self._reason is EndReason.CANCELLED,
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
            return self._reason is EndReason.MEMORY
        return out_of_memory(status, output.values(), self._care.oom_counter.read() - self._oom_kills)
