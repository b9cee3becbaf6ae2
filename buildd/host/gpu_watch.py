"""Who computes on a GPU, asked of the driver without ever waiting for it long.

Has a thread of its own for NVML: a driver may take seconds, or hang. Knows processes, and no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Collection

from buildd.host.nvml import LIBRARY, GpuDivided, GpuLost, Nvml, NvmlError
from buildd.host.proc import stat_of

_NVIDIA = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PATIENCE_S = 2.0
_KEEP_S = 30.0
"""NVML is closed after so long without a question: an open one keeps the driver loaded."""
_AGAIN_S = 10.0
"""Where NVML cannot be opened, it is tried again after so long."""
_MOST_ANCESTORS = 64
_Answer = asyncio.Future[tuple[int, ...] | None]


class GpuWatch:
    """The driver's view of the GPUs' processes.

    Args:
        library: NVML's file name.
        patience_s: how long an answer may take; None is the answer from then on, until the driver comes back.
    """

    def __init__(self, library: str = LIBRARY, patience_s: float = _PATIENCE_S) -> None:
        self._library, self._patience_s = library, patience_s
        self._questions: queue.SimpleQueue[tuple[str, asyncio.AbstractEventLoop, _Answer] | None] = queue.SimpleQueue()
        self._open = 0
        """Questions without an answer."""
        self._thread: threading.Thread | None = None

    async def pids(self, gpu: str) -> tuple[int, ...] | None:
        """The processes that compute on a GPU; None if nobody can tell: no driver, another maker's GPU.

        Raises: GpuLost, GpuDivided.
        """
        if not _NVIDIA.fullmatch(gpu) or self._open:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer, daemon=True, name="nvml")
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        self._open += 1
        self._questions.put((gpu, loop, answer))
        try:
            return await asyncio.wait_for(asyncio.shield(answer), self._patience_s)
        except TimeoutError:
            answer.add_done_callback(lambda late: late.exception())  # or asyncio reports that nobody has seen it
            return None

    def close(self) -> None:
        """End the thread, unless the driver hangs: then it ends with this process."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(self._patience_s)

    def _answer(self) -> None:
        nvml: Nvml | None = None
        closed_s = -_AGAIN_S
        while True:
            try:
                asked = self._questions.get(timeout=_KEEP_S if nvml is not None else None)
            except queue.Empty:
                _close(nvml)
                nvml = None
                continue
            if asked is None:
                _close(nvml)
                return
            gpu, loop, answer = asked
            found: tuple[int, ...] | GpuLost | GpuDivided | None = None
            try:
                if nvml is None and time.monotonic() - closed_s >= _AGAIN_S:
                    closed_s = time.monotonic()
                    nvml = Nvml(self._library)
                found = nvml.pids(gpu) if nvml is not None else None
            except (GpuLost, GpuDivided) as error:
                found = error
            except NvmlError:
                _close(nvml)
                nvml = None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._settle, answer, found)

    def _settle(self, answer: _Answer, found: tuple[int, ...] | GpuLost | GpuDivided | None) -> None:
        self._open -= 1
        if isinstance(found, NvmlError):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def _close(nvml: Nvml | None) -> None:
    if nvml is not None:
        with contextlib.suppress(NvmlError):
            nvml.close()


def foreign(pids: Collection[int], ours: Collection[int]) -> tuple[int, ...]:
    """The members of `pids` that are neither in `ours` nor descend from them. Processes of other pid namespaces, which
    /proc does not list, are left out: they may be ours under another number."""
    return tuple(pid for pid in pids if stat_of(pid) is not None and not _descends(pid, ours))


def _descends(pid: int, ours: Collection[int]) -> bool:
    for _ in range(_MOST_ANCESTORS):
        if pid in ours:
            return True
        stat = stat_of(pid)
        if stat is None or stat[0] <= 1:
            return False
        pid = stat[0]
    return False


def command_of(pid: int) -> str:
    """The beginning of a process's command line in one line, or its short name; empty if it is gone."""
    for name in ("cmdline", "comm"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                program, _, rest = file.read(400).partition(b"\0")
            words = f"{os.path.basename(program).decode(errors='replace')} {rest.decode(errors='replace')}"
            if words := " ".join(words.replace("\0", " ").split()):
                return words
    return ""
