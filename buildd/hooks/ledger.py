"""A ledger of a program's start: where the time until its last kernel or graph, and the first call after it, went.

Runs in the user's own process, in the main thread's time: standard library only. At each moment one phase runs, the
innermost one, so the phases add up to the time on the clock. Knows Triton's `compile` and Dynamo's callbacks; if one of
them is not there, its time counts as the program's own. The ledger is written again after each part of the start,
because a server is often killed in the end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import entries

FOLDER = os.path.join("answers", "failed")
"""Below the store, beside the other files of a `buildd run` that goes on."""
SUFFIX = ".programs"
INTERPRETER, IMPORTS, TRACING, PROGRAM = "interpreter", "imports", "tracing", "program"
GRAPHS_FOUND, GRAPHS_COMPILED = "graphs found", "graphs compiled"
KERNELS_FOUND, KERNELS_COMPILED, FIRST_CALL = "kernels found", "kernels compiled", "first call"
_COUNTED = (GRAPHS_FOUND, GRAPHS_COMPILED, KERNELS_FOUND, KERNELS_COMPILED)
_MOST_CHARACTERS = 200
_WRITE_EVERY_S = 1.0


class Ledger:
    """The phases of one process.

    Args:
        path: the file to which lines are appended; it must be there.
        totals: the phases until now.
        now_s: on the clock of `time.monotonic`.
    """

    # Invariants: the sum of `totals` is the time from the process's start to `_mark_s`; the last of `_phases` runs.

    def __init__(self, path: str, totals: dict[str, float], now_s: float) -> None:
        self.totals = totals
        self.counts: dict[str, int] = {}
        self._path = path
        self._pid = os.getpid()
        self._thread = threading.main_thread().ident
        self._phases = [PROGRAM]
        self._own = [0.0]
        """Seconds of each of `_phases` that are in no inner one."""
        self._mark_s = now_s
        self._kept: tuple[dict[str, float], dict[str, int]] | None = None
        """The ledger as it was after the last part of the start."""
        self._written_s = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this is the thread, and the process, whose time is counted."""
        return threading.get_ident() == self._thread and os.getpid() == self._pid

    def enter(self, phase: str) -> None:
        """A phase begins inside the present one."""
        self._charge()
        self._phases.append(phase)
        self._own.append(0.0)

    def leave(self, phase: str = "") -> None:
        """The innermost phase ends; `phase` is what it turned out to be."""
        self._charge()
        if len(self._phases) < 2:
            return
        began, own_s = self._phases.pop(), self._own.pop()
        if phase and phase != began:
            self.totals[began] -= own_s
            self.totals[phase] = self.totals.get(phase, 0.0) + own_s
        ended = phase or began
        if ended in _COUNTED:
            self.counts[ended] = self.counts.get(ended, 0) + 1
        if ended in _COUNTED or ended in (FIRST_CALL, TRACING):
            self._keep()

    def _charge(self) -> None:
        now_s = time.monotonic()
        phase, spent_s = self._phases[-1], now_s - self._mark_s
        self.totals[phase] = self.totals.get(phase, 0.0) + spent_s
        self._own[-1] += spent_s
        self._mark_s = now_s

    def _keep(self) -> None:
        self._kept = dict(self.totals), dict(self.counts)
        if self._mark_s - self._written_s >= _WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Append the ledger as it was after the last part of the start; of a program without one, as it is now."""
        if os.getpid() != self._pid:
            return  # a child that was forked
        if self._kept is None:
            self._charge()
        totals, counts = self._kept or (self.totals, self.counts)
        phases = {name: round(seconds, 6) for name, seconds in totals.items() if seconds > 0}
        line = json.dumps(
            {
                "type": "program_start",
                "program": _command()[:_MOST_CHARACTERS],
                "pid": self._pid,
                "wall_s": round(sum(phases.values()), 6),
                "phases": phases,
                "counts": counts,
            }
        )
        self._written_s = time.monotonic()
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(descriptor, line.encode(errors="replace") + b"\n")
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count what happens inside, if it is in the thread that counts."""
        if not self.is_here:
            yield
            return
        self.enter(phase)
        try:
            yield
        finally:
            self.leave()


_ledger: Ledger | None = None


def begin(store: str, imports: Any, site_s: float) -> None:
    """Count from now on, if a `buildd run` wants it.

    Args:
        store: the store's folder.
        imports: `seconds` of ended imports and `began_s` of the present one (0: none); gets the ledger.
        site_s: when sitecustomize began, on the clock of `time.monotonic`.
    """
    global _ledger
    build = os.environ.get("BUILDD_BUILD_ID", "")
    path = os.path.join(store, FOLDER, build + SUFFIX)
    if _ledger is not None or not build.isascii() or not build.isalnum() or not os.path.isfile(path):
        return
    now_s = time.monotonic()
    present_s = now_s - imports.began_s if imports.began_s else 0.0
    imported_s = imports.seconds + present_s
    totals = {
        INTERPRETER: max(0.0, _age_s() - (now_s - site_s)),
        IMPORTS: imported_s,
        PROGRAM: max(0.0, now_s - site_s - imported_s),
    }
    _ledger = Ledger(path, totals, now_s)
    if imports.began_s:
        _ledger.enter(IMPORTS)
    imports.ledger = _ledger
    atexit.register(_ledger.write)


def watch_triton(compiler: Any) -> None:
    """Count the kernels that Triton's `compile` makes or finds, and the launch after each.

    Args:
        compiler: the module triton.compiler.compiler, just imported: other modules take `compile` from it.
    """
    original = compiler.compile

    @functools.wraps(original)
    def compile(*arguments: Any, **named: Any) -> Any:
        ledger = _ledger
        if ledger is None or not ledger.is_here:
            return original(*arguments, **named)
        before = entries.found_here
        ledger.enter(KERNELS_COMPILED)
        try:
            return original(*arguments, **named)
        finally:
            ledger.leave(KERNELS_FOUND if entries.found_here > before else KERNELS_COMPILED)
            with contextlib.suppress(Exception):  # Triton's own interface may have changed
                _await_launch(ledger)

    compiler.compile = compile


def _await_launch(ledger: Ledger) -> None:
    """Count the time until the launch of the kernel that was just compiled ends."""
    runtime = sys.modules["triton.knobs"].runtime

    def launched(*arguments: Any, **named: Any) -> None:
        runtime.launch_exit_hook.remove(launched)
        if ledger.is_here and ledger._phases[-1] == FIRST_CALL:
            ledger.leave()

    if ledger._phases[-1] == FIRST_CALL:
        return  # another kernel of the same call
    runtime.launch_exit_hook.add(launched)
    ledger.enter(FIRST_CALL)


def watch_dynamo(callback: Any) -> None:
    """Count the time in which Dynamo and what is below it compile a frame.

    Args:
        callback: the module torch._dynamo.callback, just imported.
    """
    depth: list[bool] = []

    def start(*arguments: Any) -> None:
        if _ledger is not None and _ledger.is_here:
            depth.append(True)
            _ledger.enter(TRACING)

    def end(*arguments: Any) -> None:
        if _ledger is not None and _ledger.is_here and depth:
            depth.pop()
            _ledger.leave()

    callback.callback_handler.register_start_callback(start)
    callback.callback_handler.register_end_callback(end)


def watch_inductor(compile_fx: Any) -> None:
    """Count the graphs that Inductor compiles.

    Args:
        compile_fx: the module torch._inductor.compile_fx, just imported.
    """
    original: Callable[..., Any] | None = getattr(compile_fx, "fx_codegen_and_compile", None)
    if original is None:
        return

    @functools.wraps(original)
    def compiled(*arguments: Any, **named: Any) -> Any:
        with during(GRAPHS_COMPILED):
            return original(*arguments, **named)

    compile_fx.fx_codegen_and_compile = compiled


def found_graph(look: Callable[[], Any]) -> Any:
    """What a look-up of a graph returns; its time counts as a found graph's if it is not None."""
    ledger = _ledger
    if ledger is None or not ledger.is_here:
        return look()
    found = None
    ledger.enter(GRAPHS_FOUND)
    try:
        found = look()
    finally:
        ledger.leave(GRAPHS_FOUND if found is not None else TRACING)
    return found


@contextlib.contextmanager
def during(phase: str) -> Iterator[None]:
    """Count what happens inside, if there is a ledger."""
    if _ledger is None:
        yield
        return
    with _ledger.during(phase):
        yield


def _age_s() -> float:
    """How long ago this process began, to 10 ms. Raises OSError."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _command() -> str:
    words = getattr(sys, "orig_argv", sys.argv)
    return " ".join([os.path.basename(words[0]), *words[1:]]) if words else ""
