"""A ledger of a program's start: where the time until its last kernel or graph, and the first call after it, went.

Runs in the user's own process, in the main thread's time: standard library only. At each moment one phase runs, the
innermost one, so the phases add up to the time on the clock. Knows Triton's `compile`; `torch_ledger` knows torch. The
ledger is written again after each part of the start, because a server is often killed in the end.
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
from collections.abc import Iterator
from typing import Any

from . import entries
from .compiler_calls import FOLDER

SUFFIX = ".programs"
INTERPRETER, IMPORTS, TRACING, PROGRAM = "interpreter", "imports", "tracing", "program"
PROBES, TRACES_FOUND = "compiler probes", "traces found"
GRAPHS_FOUND, GRAPHS_COMPILED = "graphs found", "graphs compiled"
KERNELS_FOUND, KERNELS_COMPILED, FIRST_CALL = "kernels found", "kernels compiled", "first call"
_WORKER = os.path.join("torch", "_inductor", "compile_worker")
"""In the command of a process that compiles kernels for another one."""
_MOST_CHARACTERS = 200
_WRITE_EVERY_S = 1.0


class Ledger:
    """The phases of one process.

    Args:
        store: the store's folder.
        build: the run's id.
        totals: the phases until now.
        now_s: on the clock of `time.monotonic`.
    """

    # Invariants: the sum of `totals` is the time from the process's start to `_mark_s`; the last of `_phases` runs.

    def __init__(self, store: str, build: str, totals: dict[str, float], now_s: float) -> None:
        self.store, self.build = store, build
        self.totals = totals
        self.counts: dict[str, int] = {}
        self._path = path_of(store, build)
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

    @property
    def phase(self) -> str:
        """The phase that runs."""
        return self._phases[-1]

    def is_in(self, *phases: str) -> bool:
        """Whether one of these phases runs, or is around the one that does."""
        return any(phase in self._phases for phase in phases)

    def enter(self, phase: str) -> int:
        """A phase begins inside the present one; the place by which `leave` ends it."""
        self._charge()
        self._phases.append(phase)
        self._own.append(0.0)
        return len(self._phases) - 1

    def leave(self, place: int, phase: str = "", parts: int = 0) -> None:
        """A phase ends, and those inside it that have not been ended.

        Args:
            place: what `enter` said.
            phase: what it turned out to be.
            parts: number of graphs or kernels that it found or compiled.
        """
        self._charge()
        if not 0 < place < len(self._phases):
            return  # it ended with one around it
        began, own_s = self._phases[place], self._own[place]
        del self._phases[place:], self._own[place:]
        ended = phase or began
        if ended != began:
            self.totals[began] -= own_s
            self.totals[ended] = self.totals.get(ended, 0.0) + own_s
        self.count(ended, parts)
        if parts or ended in (FIRST_CALL, TRACING):
            self._keep()

    def count(self, phase: str, parts: int) -> None:
        """So many graphs or kernels were found or compiled."""
        if parts:
            self.counts[phase] = self.counts.get(phase, 0) + parts

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
        """Count what happens inside."""
        place = self.enter(phase)
        try:
            yield
        finally:
            self.leave(place)


_ledger: Ledger | None = None
compiled_here = 0
"""Number of kernels that this process's Triton has compiled."""


def path_of(store: str, build: str) -> str:
    """The file to which the ledgers of a run's programs are appended; it is there while the run goes on."""
    return os.path.join(store, FOLDER, build + SUFFIX)


def present() -> Ledger | None:
    """The ledger, if there is one, and this is the thread whose time it counts."""
    return _ledger if _ledger is not None and _ledger.is_here else None


@contextlib.contextmanager
def during(phase: str) -> Iterator[None]:
    """Count what happens inside, if there is a ledger."""
    here = present()
    if here is None:
        yield
        return
    with here.during(phase):
        yield


def begin(store: str, imports: Any, site_s: float) -> None:
    """Count from now on, if a `buildd run` wants it.

    Args:
        store: the store's folder.
        imports: `seconds` of ended imports and `began_s` of the present one (0: none); gets the ledger.
        site_s: when sitecustomize began, on the clock of `time.monotonic`.
    """
    global _ledger
    build = os.environ.get("BUILDD_BUILD_ID", "")
    if _ledger is not None or not build.isascii() or not build.isalnum() or not os.path.isfile(path_of(store, build)):
        return
    if any(_WORKER in word for word in getattr(sys, "orig_argv", ())[:4]):
        return  # what it does counts in the program that has started it
    now_s = time.monotonic()
    present_s = now_s - imports.began_s if imports.began_s else 0.0
    imported_s = imports.seconds + present_s
    totals = {
        INTERPRETER: max(0.0, _age_s() - (now_s - site_s)),
        IMPORTS: imported_s,
        PROGRAM: max(0.0, now_s - site_s - imported_s),
    }
    _ledger = Ledger(store, build, totals, now_s)
    imports.place = _ledger.enter(IMPORTS) if imports.began_s else 0
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
        global compiled_here
        here, before = present(), entries.found_here
        place = here.enter(KERNELS_COMPILED) if here is not None else 0
        try:
            return original(*arguments, **named)
        finally:
            is_found = entries.found_here > before
            compiled_here += not is_found
            if here is not None:
                # Inductor's own kernels are counted, and launched, by what it generates.
                is_inductors = here.is_in(TRACING, GRAPHS_COMPILED)
                here.leave(place, KERNELS_FOUND if is_found else KERNELS_COMPILED, parts=not is_inductors)
                if not is_inductors:
                    with contextlib.suppress(Exception):  # Triton's own interface may have changed
                        _await_launch(here)

    compiler.compile = compile


def _await_launch(here: Ledger) -> None:
    """Count the time until the launch of the kernel that was just compiled ends."""
    runtime = sys.modules["triton.knobs"].runtime
    if here.phase == FIRST_CALL:
        return  # another kernel of the same call
    place = here.enter(FIRST_CALL)

    def launched(*arguments: Any, **named: Any) -> None:
        runtime.launch_exit_hook.remove(launched)
        if here.is_here:
            here.leave(place)

    runtime.launch_exit_hook.add(launched)


def _age_s() -> float:
    """How long ago this process began, to 10 ms. Raises OSError."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _command() -> str:
    words = getattr(sys, "orig_argv", sys.argv)
    return " ".join([os.path.basename(words[0]), *words[1:]]) if words else ""
