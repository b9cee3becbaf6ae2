"""`buildd top`: what the daemon, its jobs and the GPUs do, drawn again twice a second until Ctrl-C.

Asks; draws on a terminal in place, and writes one screen after the other into a pipe. Knows no build.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from buildd.exits import OK, USAGE
from buildd.ui.problems import parser, print_problem
from protocol.errors import ProtocolError

if TYPE_CHECKING:
    from buildd.host.gpu_load import GpuLoad
    from buildd.ui.top import Rates, Screen

_GPU_EVERY_S = 2.0
_ANSWER_S = 5.0
_COLUMNS, _ROWS = 100, 1000
"""Size of the screen when the output is a pipe."""


def run(arguments: list[str]) -> int:
    """Carry out `buildd top`."""
    command = parser("top", "Show builds, jobs, memory, GPUs and hits a second, live. Ctrl-C ends it.")
    command.add_argument("--every", type=float, default=0.5, metavar="S", help="seconds between screens (default: 0.5)")
    command.add_argument("-n", "--number", type=int, default=0, metavar="N", help="end after N screens")
    options = command.parse_args(arguments)
    if not 0.05 <= options.every <= 3600:
        print_problem(f"--every {options.every} is out of range", next_step="give seconds from 0.05 to 3600")
        return USAGE
    from buildd.ui.screen import is_terminal

    in_place = is_terminal(sys.stdout, os.environ)
    drawn = left = 0
    meter = Meter()
    with Gpus(os.environ) as gpus:
        try:
            while True:
                screen = look(meter, gpus.loads)
                columns, rows = os.get_terminal_size(sys.stdout.fileno()) if in_place else (_COLUMNS, _ROWS)
                lines = screen.lines(max(1, columns - in_place), max(1, rows - in_place))
                back = f"\x1b[{drawn}A" if drawn else ""
                print(f"{back}\r\x1b[J" + "\n".join(lines) if in_place else "\n".join([*lines, ""]), flush=True)
                drawn, left = len(lines), left + 1
                if left == options.number:
                    return OK
                time.sleep(options.every)
        except KeyboardInterrupt:
            return OK


class Meter:
    """Hits and misses a second, from counts that grow."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None

    def rates(self, now_s: float, hits: int, misses: int) -> Rates:
        """The rates since the last call; none at the first one, and where a daemon has begun again."""
        from buildd.ui.top import Rates

        before, self._before = self._before, (now_s, hits, misses)
        if before is None or now_s <= before[0]:
            return Rates()
        spent_s = now_s - before[0]
        return Rates(max(0, hits - before[1]) / spent_s, max(0, misses - before[2]) / spent_s)


class Gpus:
    """Asks for the GPUs' load in a thread, from `with` on, where there is anything to ask."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from buildd.profiling.devices import driver_program

        self.loads: Sequence[GpuLoad] = ()
        self._program = driver_program(environ)
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="buildd-gpus", daemon=True)

    def __enter__(self) -> Gpus:
        self._thread.start()
        self._first.wait(1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _ask(self) -> None:
        from buildd.host.gpu_load import gpu_loads

        while not self._stop.is_set():
            self.loads = gpu_loads(self._program)
            self._first.set()
            if not self.loads or self._stop.wait(_GPU_EVERY_S):
                return  # a machine does not get a GPU while it runs


def look(meter: Meter, gpus: Sequence[GpuLoad]) -> Screen:
    """What is to be seen now."""
    from buildd.client.connect import connect
    from buildd.commands.status import runs_of
    from buildd.store.hit_notes import noted_so_far
    from buildd.ui.top import Screen

    try:
        with connect(os.environ, start=False, timeout_s=_ANSWER_S) as client:
            status = client.status()
    except ProtocolError:
        return Screen(None, gpus=gpus, now_ns=time.time_ns())
    direct = sum(sum(noted_so_far(Path(store)).values()) for store in status.stores)
    hits = status.counters.get("hits", 0) + direct
    rates = meter.rates(time.monotonic(), hits, status.counters.get("misses", 0))
    return Screen(status, runs_of(status), gpus, rates, time.time_ns())
