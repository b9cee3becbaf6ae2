"""Candidates measured in processes: started, bounded in time, understood.

Knows the lines that `measure.cu` prints; nothing of GPUs, leases or rows. A crash costs only the candidate.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from buildd.profiles import Outcome

TIMEOUT_S = 60.0
_MOST_BYTES = 64 << 10


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a process said of a candidate."""

    outcome: Outcome
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    samples: int = 0
    workspace_bytes: int = 0
    note: str = ""
    rivals_us: tuple[float, ...] = ()
    """Of those that were timed in turns with it."""


_STARTED = "started"
_WORKED = (Outcome.MEASURED, Outcome.HOPELESS)


class GpuFailed(Exception):
    """The GPU could not be asked at all: the candidate is not to blame."""


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
    """Candidates measured one after another by a process that keeps the GPU's context from one to the next.

    It ends with the first candidate that does not work, and the next one gets a new process. What does not work in a
    process that others used before is asked again in one of its own: what they left behind is not its fault.

    Args:
        command: the program that measures.
        environ: of the process; it sees one GPU only.
        device: that GPU, as `Gpu.shown_as` has it.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], device: str) -> None:
        self._command = tuple(command)
        shown = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), device)
        # One queue is enough for one stream, and makes half a context.
        self._environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **environ, **shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process: _Process | None = None
        """One that has measured something, and waits for the next question."""

    async def start(
        self, turn: Callable[[], AbstractAsyncContextManager[None]], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Have a process with a context on the GPU, so that the first candidate need not wait for that.

        Args, raises: as `measure`.
        """
        if self._process is None:
            self._process = await self._started(turn, timeout_s)

    async def measure(
        self,
        question: Sequence[str],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        best_us: Callable[[], float],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Measured:
        """Measure one candidate.

        Args:
            question: the words that `measure.cu` takes.
            turn: entered when the process is ready to use the GPU, until it has answered; by a new one also before, for
                its context.
            best_us: what it has to compare itself with when its turn comes; 0 where there is nothing.
            timeout_s: after this it is killed; the time to become ready and the turn each have it.

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

    async def _started(self, turn: Callable[[], AbstractAsyncContextManager[None]], timeout_s: float) -> _Process:
        """A new process, which has asked the GPU for nothing but a context."""
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
                raise GpuFailed(said.note or f"the program that measures said {said.outcome!r}")
            starts = True
            return process
        except TimeoutError as error:
            raise GpuFailed(f"it does not answer within {timeout_s:.0f} s") from error
        finally:
            if not starts:
                await process.end()

    async def _ask(
        self,
        question: Sequence[str],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        best_us: Callable[[], float],
        timeout_s: float,
    ) -> Measured:
        process, self._process = self._process, None
        process = process or await self._started(turn, timeout_s)
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
                return Measured(outcome=Outcome.CRASHED, note=await asyncio.wait_for(process.last_words(), timeout_s))
            found = _understood(line)
            works = found.outcome in _WORKED
            return found
        except TimeoutError:
            return Measured(outcome=Outcome.HUNG, note=f"killed after {timeout_s:.0f} s")
        finally:
            if works:
                self._process = process
            else:
                await process.end()


class _Process:
    """One that measures; all that it starts is in its group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: list[bytes] = []
        """Lines of an answer that came where "ready" was expected."""
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
        """Say something; where nobody listens any more, the answer will show it."""
        assert self._process.stdin is not None
        self._process.stdin.write(words)

    async def is_ready(self) -> bool:
        """Whether it waits for its turn; else it has answered, or ended."""
        while (line := await self._line()) is not None:
            if line == b"ready\n":
                return True
            if _is_answer(line):
                self._said.append(line)
                return False
        return False

    async def answer(self) -> bytes | None:
        """What it says of the candidate; None where it ended without."""
        if self._said:
            return self._said.pop()
        while (line := await self._line()) is not None:
            if _is_answer(line):
                return line
        return None

    async def last_words(self) -> str:
        """How it ended, and its last line."""
        await self._listening
        status = await self._process.wait()
        why = f"signal {-status}" if status < 0 else f"status {status}"
        said = self._complaint.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return f"{why}: {said}" if said else why

    async def end(self) -> None:
        """Kill its whole group: what it started must not go on computing."""
        if self._process.returncode is None:  # else it was waited for: its number may be somebody else's by now
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._process.wait()

    async def _line(self) -> bytes | None:
        """None where it says no more, or too much."""
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


def _understood(answer: bytes) -> Measured:
    line = _decoder.decode(answer)
    if line.outcome == "gpu":
        raise GpuFailed(line.note)
    try:
        outcome = Outcome(line.outcome)
    except ValueError:
        return Measured(outcome=Outcome.CRASHED, note=f"it said {line.outcome!r}"[:200])
    whole = outcome not in _WORKED or (line.time_us > 0 and line.samples > 0)
    whole = whole and all(time_us > 0 for time_us in line.rivals_us)
    if not whole or not 0 <= line.spread < 1e9 or not line.error >= 0:
        return Measured(outcome=Outcome.CRASHED, note="it said numbers that cannot be")
    return Measured(
        outcome=outcome,
        time_us=line.time_us,
        spread=line.spread,
        error=line.error,
        samples=line.samples,
        workspace_bytes=line.workspace_bytes,
        note=line.note,
        rivals_us=line.rivals_us,
    )
