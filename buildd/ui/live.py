"""A build on a terminal: a region below the text with one line per running job, a bar and counters.

Does not word the lines (`narrator`) or compute the numbers (`model`). The drawing thread imports rich, and only once a
build lasts longer than people notice: a no-op build must not pay 50 ms for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from buildd.ui import text
from buildd.ui.model import BuildModel
from buildd.ui.narrator import Narrator
from buildd.ui.progress_words import counted, timed
from buildd.ui.text import Line, Style
from buildd.ui.view import Writer
from protocol.messages import Event

if TYPE_CHECKING:
    from buildd.ui.richlive import Region

QUIET_S = 0.15
"""A shorter build shows only its summary."""
REFRESH_S = 0.1
OUTPUT_LINES = 2000
"""Most lines of one job's output on a terminal; a template error of 10 MB helps nobody there."""
_BAR_COLUMNS = 24
_OVERDUE = 1.5
"""Once a job has taken this many times what was expected of it, nobody knows what is left of the build."""


def region(model: BuildModel, now_ns: int, columns: int, rows: int) -> list[Line]:
    """The lines of the live region.

    Args:
        model: the build.
        now_ns: time of day.
        columns: width that no line exceeds.
        rows: most lines; one line counts the jobs beyond.
    """
    lines: list[Line] = []
    jobs = list(model.running.values())
    room = max(1, rows - 3)
    shown = jobs if len(jobs) <= room else jobs[: room - 1]
    for job in shown:
        times = timed((now_ns - job.started_ns) / 1e9, job.expected_s)
        label = text.shortened(job.label, max(8, columns - len(times) - 4))
        lines.append(Line(_cut(f"  {label}  {times}", columns)))
    if len(shown) < len(jobs):
        more = text.count(len(jobs) - len(shown), "more job")
        lines.append(Line(_cut(f"  and {more}", columns), Style.FAINT))
    if model.waiting_for and len(jobs) == 0:
        lines.append(Line(_cut(f"  waiting for {text.clean(model.waiting_for)}", columns), Style.WARNING))
    elif model.waiting_for and not model.waiting_for.startswith("cpu:"):
        lines.append(Line(_cut(f"  others wait for {text.clean(model.waiting_for)}", columns), Style.FAINT))
    lines.append(Line(_cut(_status(model, now_ns, columns), columns), Style.HEADING))
    return lines[-max(1, rows) :]


def _status(model: BuildModel, now_ns: int, columns: int) -> str:
    counters = counted(model.done, model.total, model.hits, model.failures)
    remaining_s = model.remaining_s(now_ns)
    when = text.duration(model.elapsed_s(now_ns))
    known = [job for job in model.running.values() if job.expected_s > 0]
    overdue = any(now_ns - job.started_ns > _OVERDUE * job.expected_s * 1e9 for job in known)
    if remaining_s >= 1 and not overdue:
        when += f", ~{text.duration(remaining_s)} left"
    bar_columns = min(_BAR_COLUMNS, columns - len(counters) - len(when) - 6)
    if bar_columns < 5:
        return f"{counters}  {when}"
    filled = int(model.fraction(now_ns) * bar_columns)
    return f"{'#' * filled}{'.' * (bar_columns - filled)}  {counters}  {when}"


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: max(0, columns)]


class LiveView:
    """Draws on a terminal from a thread of its own; `event` only takes a lock, so output never delays the build.

    Args:
        writer: the terminal.
        narrator: its telling must not be `listing`.
        quiet_s: time before anything is drawn.
        now_ns: time of day, for tests.
    """

    def __init__(
        self,
        writer: Writer,
        narrator: Narrator,
        *,
        quiet_s: float = QUIET_S,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.narrator = narrator
        self._writer = writer
        self._now_ns = now_ns
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._pending: list[Line] = []
        self._stop = threading.Event()
        self.drawn = threading.Event()
        """Set once the region has been on the terminal."""
        self._thread = threading.Thread(target=self._draw, name="buildd-ui", daemon=True)
        self._thread.start()

    def event(self, event: Event) -> None:
        with self._lock:
            self._pending += self.narrator.event(event)

    def close(self) -> None:
        """Remove the region and write the remaining lines."""
        self._stop.set()
        self._thread.join()
        self._writer.lines(self._taken())

    def _taken(self) -> list[Line]:
        with self._lock:
            pending, self._pending = self._pending, []
        return pending

    def _draw(self) -> None:
        if self._stop.wait(self._quiet_s):
            return
        from buildd.ui.richlive import live_on

        try:
            with live_on(self._writer.stream, self._writer.colour, self._region) as live:
                while True:
                    self._print(live)
                    self.drawn.set()
                    if self._stop.wait(REFRESH_S):
                        return  # `close` writes the pending lines, after the region is gone.
        except OSError:  # The terminal is gone (EIO after a hang-up), the build goes on.
            self._writer.gone = True

    def _region(self, columns: int, rows: int) -> list[Line]:
        with self._lock:
            return region(self.narrator.model, self._now_ns(), columns, rows)

    def _print(self, live: Region) -> None:
        live.settle()
        lines = self._taken()
        if lines:
            written = "".join([line.encoded(self._writer.colour) for line in lines])
            live.print_above(written)
        else:
            live.refresh()
