"""A process that measures one candidate after another, as a bench talks with it: here, or on a node of a cluster.

Knows the lines that `measure.cu` prints, not what they mean for a candidate.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

_MOST_BYTES = 64 << 10


class GpuFailed(Exception):
    """The GPU did not work at all: the candidate is not to blame."""


class PlaceLost(Exception):
    """The process is gone with its node, or its GPU cannot be had: neither the candidate nor the GPU is to blame.

    Args:
        final: another try would meet the same.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class MeasuredLine(msgspec.Struct, frozen=True):
    """An answer about a candidate, as it stands in a line."""

    outcome: str
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    samples: int = 0
    workspace_bytes: int = 0
    note: str = ""
    rivals_us: tuple[float, ...] = ()


decoder = msgspec.json.Decoder(MeasuredLine)


class MeasuringProcess(ABC):
    """A measuring process."""

    def __init__(self) -> None:
        self._said: list[bytes] = []
        """Answers that arrived when "ready" was expected."""

    async def ask(self, question: Sequence[str]) -> None:
        """Write a question to the process."""
        self.tell(b"".join(os.fsencode(word) + b"\0" for word in question))

    @abstractmethod
    def tell(self, words: bytes) -> None:
        """Write to the process. If it has ended, the missing answer will show that."""

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

    @abstractmethod
    async def last_words(self) -> str:
        """How it ended, and its last line of standard error."""

    @abstractmethod
    async def end(self) -> None:
        """Kill it and all that it has started: nothing of it may go on computing."""

    @abstractmethod
    async def _line(self) -> bytes | None:
        """The next line; None at the end, or if the line is too long."""


class LocalProcess(MeasuringProcess):
    """A measuring process on this machine; everything that it starts is in its process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process
        self._complaint = b""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str]) -> LocalProcess:
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
        assert self._process.stdin is not None
        self._process.stdin.write(words)

    async def last_words(self) -> str:
        await self._listening
        return ending_words(await self._process.wait(), self._complaint)

    async def end(self) -> None:
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
        decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def ending_words(status: int, complaint: bytes) -> str:
    """How a process ended, in words.

    Args:
        status: negative: a signal.
        complaint: its standard error.
    """
    why = f"signal {-status}" if status < 0 else f"status {status}"
    said = complaint.decode(errors="replace").strip().rpartition("\n")[2][:200]
    return f"{why}: {said}" if said else why
