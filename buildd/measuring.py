"""One candidate measured in a process of its own: started, bounded in time, understood.

Knows the line that `measure.cu` prints; nothing of GPUs, leases or rows. A crash costs only the candidate.
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


_decoder = msgspec.json.Decoder(_Line)


async def measure(
    command: Sequence[str],
    environ: Mapping[str, str],
    device: str,
    turn: AbstractAsyncContextManager[None],
    best_us: Callable[[], float],
    *,
    timeout_s: float = TIMEOUT_S,
) -> Measured:
    """Run a measuring process to its end.

    Args:
        command: its program and arguments.
        environ: of the process; it sees one GPU only.
        device: that GPU's UUID.
        turn: entered when the process is ready to use the GPU, until it has ended.
        best_us: what it has to compare itself with when its turn comes; 0 where there is nothing.
        timeout_s: after this it is killed; the time to become ready and the turn each have it.

    Raises: GpuFailed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_MOST_BYTES,
            env={**environ, "CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
    except OSError as error:
        raise GpuFailed(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        early = await asyncio.wait_for(_before_ready(process), timeout_s)
        if early is None:
            async with turn:
                stdout, stderr = await asyncio.wait_for(process.communicate(b"%.3f\n" % best_us()), timeout_s)
        else:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
            stdout = early + stdout
        return _understood(stdout, stderr, process.returncode or 0)
    except TimeoutError:
        return Measured(outcome=Outcome.HUNG, note=f"killed after {timeout_s:.0f} s")
    finally:
        _end(process)
        await process.wait()


async def _before_ready(process: asyncio.subprocess.Process) -> bytes | None:
    """None when a process is ready; what it said instead, where it ended or said too much."""
    assert process.stdout is not None
    said = b""
    while len(said) < _MOST_BYTES:
        try:
            line = await process.stdout.readline()
        except ValueError:  # a line beyond the limit
            break
        if line == b"ready\n":
            return None
        if not line:
            break
        said += line
    return said


def _end(process: asyncio.subprocess.Process) -> None:
    """Its whole group: what it started must not go on computing."""
    if process.returncode is not None:
        return  # waited for: its number may be somebody else's by now
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _understood(stdout: bytes, stderr: bytes, status: int) -> Measured:
    last = stdout.strip().rpartition(b"\n")[2]
    try:
        line = _decoder.decode(last)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        why = f"signal {-status}" if status < 0 else f"status {status}"
        said = stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return Measured(outcome=Outcome.CRASHED, note=f"{why}: {said}" if said else why)
    if line.outcome == "gpu":
        raise GpuFailed(line.note)
    try:
        outcome = Outcome(line.outcome)
    except ValueError:
        return Measured(outcome=Outcome.CRASHED, note=f"it said {line.outcome!r}"[:200])
    whole = outcome not in (Outcome.MEASURED, Outcome.HOPELESS) or (line.time_us > 0 and line.samples > 0)
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
    )
