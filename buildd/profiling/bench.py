"""Measures candidates in processes: starts them, bounds their time, reads their answers.

Knows what the answers mean; nothing of GPUs, leases or rows. A crash costs only the candidate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from buildd.profiling.measuring_process import GpuFailed, LocalProcess, MeasuringProcess, decoder
from buildd.store.profiles import Outcome

TIMEOUT_S = 60.0


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
    """Index of the GPU that it ran on, after its node if that is another machine; empty if it ran on none."""
    wall_s: float = 0.0
    """How long that GPU was taken."""


_STARTED = "started"
_WORKED = (Outcome.MEASURED, Outcome.HOPELESS)


class Bench:
    """Measures candidates one after another in a process that keeps the GPU's context from one to the next.

    The process ends with the first candidate that does not work, and the next candidate gets a new one. If a candidate
    fails in a process that others used before, it is measured again in a new one: they may have damaged the context.

    Args:
        command: starts the measuring program.
        environ: of the process; the process sees one GPU only.
        device: that GPU, as `Gpu.shown_as` names it.
        begin: starts the process elsewhere; None: here.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        device: str,
        *,
        begin: Callable[[], Awaitable[MeasuringProcess]] | None = None,
    ) -> None:
        self._command, self._elsewhere = tuple(command), begin
        shown = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), device)
        # One queue is enough for one stream, and makes half a context.
        self._environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **environ, **shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process: MeasuringProcess | None = None
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

    async def _start(
        self, turn: Callable[[], AbstractAsyncContextManager[object]], timeout_s: float
    ) -> MeasuringProcess:
        """Start a process that has made its context and used the GPU for nothing else."""
        process = await (self._elsewhere() if self._elsewhere else LocalProcess.start(self._command, self._environ))
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
            said = decoder.decode(line)
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
            await process.ask(question)
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


def _measurement_of(answer: bytes) -> Measurement:
    line = decoder.decode(answer)
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
