"""Measures candidates in processes: starts them, bounds their time, reads their answers.

Knows the lines that `measure.cu` prints; nothing of GPUs, leases or rows. A crash costs only the candidate.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from buildd.store.profiles import Outcome

TIMEOUT_S = 60.0
_MOST_BYTES = 64 << 10


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A process's answer about a candidate."""

    outcome: Outcome
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    samples: int = 0
    workspace_bytes: int = 0
    note: str = ""
    rivals_us: tuple[float, ...] = ()
    """Times of the candidates that were timed in turns with it."""
    gpu: str = ""
    """Index of the GPU that it ran on; empty if it ran on none."""
    wall_s: float = 0.0
    """How long that GPU was taken."""


_STARTED = "started"
_WORKED = (Outcome.MEASURED, Outcome.HOPELESS)


class GpuFailed(Exception):
    """The GPU did not work at all: the candidate is not to blame."""


class _Line(msgspec.Struct, frozen=True):
    outcome: str
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    samples: int = 0
    workspace_bytes: int = 0
    note: str = ""
    rivals_us: tuple[float, ...] = ()


_decoder = msgspec.json.Decoder(_Line)


class Bench:
    """Measures candidates one after another in a process that keeps the GPU's context from one to the next.

    The process ends with the first candidate that does not work, and the next candidate gets a new one. If a candidate
    fails in a process that others used before, it is measured again in a new one: they may have damaged the context.

    Args:
        command: starts the measuring program.
        environ: of the process; the process sees one GPU only.
        device: that GPU, as `Gpu.shown_as` names it.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], device: str) -> None:
        self._command = tuple(command)
        shown = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), device)
        # One queue is enough for one stream, and makes half a context.
        self._environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **environ, **shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process: _Process | None = None
        """It has measured a candidate, and waits for the next question."""

    async def start(
        self, turn: Callable[[], AbstractAsyncContextManager[object]], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Start a process and make its context on the GPU, so that the first candidate need not wait for that.

        Args, raises: as `measure`.
        """
        if self._process is None:
            self._process = await self._start(turn, timeout_s)

    async def measure(
        self,
        question: Sequence[str],
        turn: Callable[[], AbstractAsyncContextManager[object]],
        best_us: Callable[[], float],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Measurement:
        """Measure one candidate.

        Args:
            question: the arguments that `measure.cu` takes.
            turn: entered when the process is ready to use the GPU, and left when it has answered. A new process takes
                another turn before, to make its context.
            best_us: the time to beat, asked when the turn begins; 0 if there is none.
            timeout_s: limit for becoming ready, and again for the turn; then the process is killed.

        Raises: GpuFailed.
        """
        if self._process is not None:
            try:
                found = await self._ask(question, turn, best_us, timeout_s)
            except GpuFailed:
                pass
            else:
                if found.outcome in _WORKED:
                    return found
        return await self._ask(question, turn, best_us, timeout_s)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _start(self, turn: Callable[[], AbstractAsyncContextManager[object]], timeout_s: float) -> _Process:
        """Start a process that has made its context and used the GPU for nothing else."""
        process = await _Process.start(self._command, self._environ)
        starts = False
        try:
            if await asyncio.wait_for(process.is_ready(), timeout_s):
                async with turn():
                    process.tell(b"\n")
                    line = await asyncio.wait_for(process.answer(), timeout_s)
            else:
                line = await asyncio.wait_for(process.answer(), timeout_s)
            if line is None:
                raise GpuFailed(await asyncio.wait_for(process.last_words(), timeout_s))
            said = _decoder.decode(line)
            if said.outcome != _STARTED:
                raise GpuFailed(said.note or f"the measuring program answered {said.outcome!r}")
            starts = True
            return process
        except TimeoutError as error:
            raise GpuFailed(f"no answer within {timeout_s:.0f} s") from error
        finally:
            if not starts:
                await process.end()

    async def _ask(
        self,
        question: Sequence[str],
        turn: Callable[[], AbstractAsyncContextManager[object]],
        best_us: Callable[[], float],
        timeout_s: float,
    ) -> Measurement:
        process, self._process = self._process, None
        process = process or await self._start(turn, timeout_s)
        works = False
        try:
            process.tell(b"".join(os.fsencode(word) + b"\0" for word in question))
            if await asyncio.wait_for(process.is_ready(), timeout_s):
                async with turn():
                    process.tell(b"%.3f\n" % best_us())
                    line = await asyncio.wait_for(process.answer(), timeout_s)
            else:
                line = await asyncio.wait_for(process.answer(), timeout_s)
            if line is None:
                return Measurement(
                    outcome=Outcome.CRASHED, note=await asyncio.wait_for(process.last_words(), timeout_s)
                )
            found = _measurement_of(line)
            works = found.outcome in _WORKED
            return found
        except TimeoutError:
            return Measurement(outcome=Outcome.HUNG, note=f"killed after {timeout_s:.0f} s")
        finally:
            if works:
                self._process = process
            else:
                await process.end()


class _Process:
    """A measuring process; everything that it starts is in its process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: list[bytes] = []
        """Answers that arrived when "ready" was expected."""
        self._complaint = b""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str]) -> _Process:
        """Raises GpuFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=_MOST_BYTES,
                env=dict(environ),
            )
        except OSError as error:
            raise GpuFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        return cls(process)

    def tell(self, words: bytes) -> None:
        """Write to the process. If it has ended, the missing answer will show that."""
        assert self._process.stdin is not None
        self._process.stdin.write(words)

    async def is_ready(self) -> bool:
        """Whether the process waits for its turn; otherwise it has answered or ended."""
        while (line := await self._line()) is not None:
            if line == b"ready\n":
                return True
            if _is_answer(line):
                self._said.append(line)
                return False
        return False

    async def answer(self) -> bytes | None:
        """Its answer about the candidate; None if it ended without one."""
        if self._said:
            return self._said.pop()
        while (line := await self._line()) is not None:
            if _is_answer(line):
                return line
        return None

    async def last_words(self) -> str:
        """How it ended, and its last line of standard error."""
        await self._listening
        status = await self._process.wait()
        why = f"signal {-status}" if status < 0 else f"status {status}"
        said = self._complaint.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return f"{why}: {said}" if said else why

    async def end(self) -> None:
        """Kill the whole process group: nothing that it started may go on computing."""
        if self._process.returncode is None:  # else it was waited for: its pid may be another process's by now
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._listening.cancel()
        reaping = asyncio.ensure_future(self._reap())
        try:
            await asyncio.shield(reaping)
        except asyncio.CancelledError:
            await reaping  # a measurement is often cancelled twice; a killed process ends at once
            raise

    async def _reap(self) -> None:
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._process.wait()

    async def _line(self) -> bytes | None:
        """The next line; None at the end, or if the line is too long."""
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readline() or None
        except ValueError:  # a line beyond the limit
            return None

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while said := await self._process.stderr.read(_MOST_BYTES):
            self._complaint = (self._complaint + said)[-_MOST_BYTES:]


def _is_answer(line: bytes) -> bool:
    try:
        _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _measurement_of(answer: bytes) -> Measurement:
    line = _decoder.decode(answer)
    if line.outcome == "gpu":
        raise GpuFailed(line.note)
    try:
        outcome = Outcome(line.outcome)
    except ValueError:
        return Measurement(outcome=Outcome.CRASHED, note=f"unknown outcome {line.outcome!r}"[:200])
    whole = outcome not in _WORKED or (line.time_us > 0 and line.samples > 0)
    whole = whole and all(time_us > 0 for time_us in line.rivals_us)
    if not whole or not 0 <= line.spread < 1e9 or not line.error >= 0:
        return Measurement(outcome=Outcome.CRASHED, note="impossible numbers in its answer")
    return Measurement(
        outcome=outcome,
        time_us=line.time_us,
        spread=line.spread,
        error=line.error,
        samples=line.samples,
        workspace_bytes=line.workspace_bytes,
        note=line.note,
        rivals_us=line.rivals_us,
    )
