"""Compiles the kernels of a manifest side by side, each in a process of the program's own interpreter.

Knows how many processes the machine has room for and what becomes of one that dies or hangs; nothing of Triton
(`worker_replay`). One process serves one group of kernels, one kernel after another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from buildd import memory
from buildd.kernel_manifest import Line

WORKER = Path(__file__).with_name("worker_replay.py")
MEMORY_BYTES = 1 << 30
"""Of one process, with torch imported and LLVM at work."""
TIMEOUT_S = 600.0
_END_S = 10.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one kernel. Without `problem` it is in the store, or, with `prove`, `hit` says whether it is."""

    hit: bool = False
    hash: str = ""
    triton: str = ""
    python: str = ""
    problem: str = ""
    wall_s: float = 0.0


def room(kernels: int) -> int:
    """How many processes this machine has room for, at most one a kernel."""
    return max(1, min(kernels, len(os.sched_getaffinity(0)), memory.read().available_bytes // MEMORY_BYTES))


class Warming:
    """One manifest being compiled.

    Args:
        interpreter: the program's Python.
        environ: of the processes.
        root: folder that paths in the manifest are relative to.
        prove: compile nothing, say what is not there.
        timeout_s: for one kernel.
    """

    def __init__(
        self,
        interpreter: str,
        environ: Mapping[str, str],
        root: Path,
        *,
        prove: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._argv = [interpreter, str(WORKER), str(root), "prove" if prove else "compile"]
        self._environ = dict(environ)
        self._timeout_s = timeout_s
        self._groups: dict[tuple[Any, ...], deque[Line]] = defaultdict(deque)
        self._lock = threading.Lock()
        """Of the groups, of who is told, and of the processes that live."""
        self._living: set[_Worker] = set()
        self._stopped = False

    def run(self, lines: Iterable[Line], width: int, tell: Callable[[Line, Answer], None]) -> None:
        """Compile all of them, `width` at once; `tell` hears of each when it is done, one at a time."""
        for line in lines:
            self._groups[line.group].append(line)
        threads = [threading.Thread(target=self._serve, args=(tell,), daemon=True) for _ in range(width)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            with self._lock:
                self._stopped = True
                for worker in self._living:
                    worker.kill()
            for thread in threads:
                thread.join()

    def _serve(self, tell: Callable[[Line, Answer], None]) -> None:
        worker, group = None, None
        while (line := self._next(group)) is not None:
            if worker is None or line.group != group:
                self._end(worker)
                worker, group = self._begin(), line.group
            answer = Answer(problem="stopped") if worker is None else worker.ask(line, self._timeout_s)
            if answer is None:
                answer = Answer(problem=worker.story() if worker else "")
                self._end(worker)
                worker = None
            with self._lock:
                if self._stopped:
                    break
                tell(line, answer)
        self._end(worker)

    def _next(self, group: tuple[Any, ...] | None) -> Line | None:
        """Of the same group as the last one while there is one: what was imported serves again."""
        with self._lock:
            left = self._groups.get(group) if group is not None else None
            left = left or max(self._groups.values(), key=len, default=None)
            return left.popleft() if left and not self._stopped else None

    def _begin(self) -> _Worker | None:
        with self._lock:
            if self._stopped:
                return None
            worker = _Worker(self._argv, self._environ)
            self._living.add(worker)
            return worker

    def _end(self, worker: _Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._living.discard(worker)
            worker.end()


class _Worker:
    """One process, in a group of its own: what it starts (ptxas) ends with it."""

    def __init__(self, argv: list[str], environ: Mapping[str, str]) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._late = False
        self._process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )

    def ask(self, line: Line, timeout_s: float) -> Answer | None:
        """None where the process ended instead of answering."""
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(timeout_s, self._too_late)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(line.text + b"\n")
            self._process.stdin.flush()
            return msgspec.json.decode(self._process.stdout.readline(), type=Answer)
        except (OSError, msgspec.MsgspecError):
            return None
        finally:
            timer.cancel()

    def _too_late(self) -> None:
        self._late = True
        self.kill()

    def story(self) -> str:
        """Why there was no answer."""
        self._finish()
        if self._late:
            return "it took too long and was stopped"
        status = self._process.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        self._said.seek(0)
        said = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        return f"its process ended with {how}" + (f": {said[-1]}" if said else "")

    def kill(self) -> None:
        # Nobody has waited for it yet: the group is still its own.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let it go."""
        self._finish()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()

    def _finish(self) -> None:
        """By the end of its input: it has nothing to do by then."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
