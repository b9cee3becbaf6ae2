"""The screen of `buildd top`: jobs, memory, GPUs, hits a second, builds, and why anything waits. Values in, lines out.

Knows no socket and no terminal. Each line has at most the columns that it is given: 20 are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buildd.ui.text import clean, count, duration, shortened, size
from protocol.messages import Mode, RequestStatus, Status

if TYPE_CHECKING:
    from buildd.host.gpu_load import GpuLoad
    from buildd.shims.run_log import OngoingRun

_BAR = 20
_LABEL = 5
_WIDE = 50
"""From so many columns on, there are bars."""
_LEAST_JOBS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """What was counted in a second."""

    hits: float = 0.0
    misses: float = 0.0


@dataclass(frozen=True, slots=True)
class Screen:
    """One moment.

    Args:
        status: the daemon's; None where none runs.
        runs: the `buildd run`s that go on.
        now_ns: time of day.
    """

    status: Status | None
    runs: Sequence[OngoingRun] = ()
    gpus: Sequence[GpuLoad] = ()
    rates: Rates = Rates()
    now_ns: int = 0

    def lines(self, columns: int, rows: int) -> list[str]:
        """The screen: at most so many lines of so many columns. What counts most comes first."""
        if self.status is None:
            found = ["no daemon is running; the next command starts one", *self._gpu_lines(columns)]
        else:
            head = [*self._head(self.status, columns), *self._gpu_lines(columns), self._hits(columns)]
            builds = list(self._builds(self.status))
            room = max(_LEAST_JOBS, rows - len(head) - len(builds))
            found = [*head, *builds, *self._jobs(self.status, columns, room)]
        return [line[:columns] for line in found[: max(1, rows)]]

    def _head(self, status: Status, columns: int) -> Iterator[str]:
        yield f"{status.state}, up {duration(status.uptime_s)}, {size(status.rss_bytes)}"
        running = len(status.running)
        of = f" of {status.cpus}" if status.cpus else ""
        yield _gauge("jobs", running, status.cpus, f"{running}{of}", columns)
        if status.queued:
            why = f" for {clean(status.waiting_for)}" if status.waiting_for else ""
            yield f"wait {status.queued}{why}"
        used = sum(job.memory_bytes for job in status.running)
        sizes = [size(used), *([size(status.budget_bytes)] if status.budget_bytes else [])]
        words = " of ".join(sizes) if columns >= _WIDE else "/".join(each.replace(" ", "") for each in sizes)
        yield _gauge("mem", used, status.budget_bytes, words, columns)

    def _gpu_lines(self, columns: int) -> Iterator[str]:
        for gpu in self.gpus:
            words = f"{gpu.busy:.0%} {size(gpu.used_bytes)} of {size(gpu.total_bytes)} {clean(gpu.name)}"
            yield _gauge(f"gpu{gpu.index}", gpu.busy, 1.0, words, columns)

    def _hits(self, columns: int) -> str:
        assert self.status is not None
        if columns < _WIDE:
            return f"hit {_short(self.rates.hits)}/s miss {_short(self.rates.misses)}/s"
        counters = self.status.counters
        total = f"{count(counters.get('hits', 0), 'hit')}, {count(counters.get('misses', 0), 'miss', 'misses')}"
        return f"hits {self.rates.hits:.1f}/s, misses {self.rates.misses:.1f}/s; {total}"

    def _builds(self, status: Status) -> Iterator[str]:
        named = {run.build_id for run in self.runs}
        for run in self.runs:
            works = [each for each in status.work if each.build_id == run.build_id]
            waiting = sum(each.jobs_waiting > 0 and not each.jobs_running for each in works)
            running = sum(each.jobs_running for each in works)
            since_s = max(0.0, (self.now_ns - run.started_ns) / 1e9)
            yield _build(f"run {clean(run.command)}", since_s, running, waiting, run.project)
        for each in status.work:
            if each.build_id not in named and each.mode is not Mode.COMPILE:
                yield _build(_what(each), each.elapsed_s, each.jobs_running, each.jobs_waiting, each.project)

    def _jobs(self, status: Status, columns: int, room: int) -> Iterator[str]:
        jobs = sorted(status.running, key=lambda job: -job.elapsed_s)
        shown = jobs if len(jobs) <= room else jobs[: room - 1]
        for job in shown:
            expected = f"/~{duration(job.expected_s)}" if job.expected_s > 0 and columns >= _WIDE else ""
            memory = f" {size(job.memory_bytes)}" if job.memory_bytes and columns >= _WIDE else ""
            tail = f"{duration(job.elapsed_s)}{expected}{memory}"
            yield f" {shortened(clean(job.action), max(6, columns - len(tail) - 2))} {tail}"
        if len(shown) < len(jobs):
            yield f" and {len(jobs) - len(shown)} more"


def _short(rate: float) -> str:
    """A rate in at most three characters, as far as there are such rates."""
    return f"{rate:.1f}" if 0 < rate < 9.95 else f"{rate:.0f}"


def _build(what: str, since_s: float, running: int, waiting: int, project: str) -> str:
    return f"{duration(since_s)} {running}+{waiting} {what}  {clean(project)}"


def _what(each: RequestStatus) -> str:
    return f"{each.mode.value} {clean(each.what)}".rstrip()


def _gauge(label: str, value: float, most: float, words: str, columns: int) -> str:
    if columns < _WIDE:
        return f"{label} {words}"
    filled = round(_BAR * min(1.0, value / most)) if most > 0 else 0
    return f"{label:<{_LABEL}}[{'#' * filled}{'.' * (_BAR - filled)}] {words}"
