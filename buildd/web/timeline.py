"""A build as a picture: bars on lanes, memory over time, the critical path. Events in, plain structs out. PURE.

Knows no store, no daemon and no page. Works for a build that goes on as for one that has ended: each change gets a
number, so that a reader asks for what is new. Jobs of a `buildd run` come from many requests; they are drawn alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from buildd.ui.text import tool_of
from buildd.web.critical_path import Link, critical_path
from buildd.web.picture import Bar, BarOutcome, Change, GpuRun, Head, Said, Sample, StepBar
from protocol import messages as m

T = TypeVar("T", Sample, Said, GpuRun)
MOST_LINES = 2000
"""Log lines that are kept, the last ones."""
_HIT_LANE = "hits"


class Timeline:
    """One build, event by event.

    Args:
        is_run: the jobs are those of a `buildd run`, which end with requests of their own.
    """

    # Invariants: _bars holds each bar once, in the order in which they appeared; a lane holds at most one bar that
    # runs; everything new gets a `revision` above all earlier ones.

    def __init__(self, *, is_run: bool = False) -> None:
        self.id = os.urandom(6).hex()
        self.is_run = is_run
        self.head = Head()
        self.revision = 0
        self._bars: list[Bar] = []
        self._open: dict[m.JobId, Bar] = {}
        self._samples: list[Sample] = []
        self._said: list[Said] = []
        self._measurements: list[GpuRun] = []
        self._programs: list[m.ProgramStart] = []
        self._taken: dict[int, Bar] = {}
        """Number of a CPU slot -> the bar that holds it."""
        self._slots = 0
        self._gpus: dict[str, None] = {}

    @classmethod
    def of(cls, events: Iterable[m.Event]) -> Timeline:
        """The picture of a build that has ended. The rows of a `buildd run` are not in the order of their times."""
        made = cls()
        for event in sorted(events, key=lambda event: (event.time_ns, event.sequence)):
            made.add(event)
        made.close()
        return made

    def add(self, event: m.Event) -> None:
        head = self.head
        head.began_ns = head.began_ns or event.time_ns
        at_s = max(0.0, (event.time_ns - head.began_ns) / 1e9)
        head.elapsed_s = max(head.elapsed_s, at_s)
        self.revision += 1
        match event.body:
            case m.Planned() as body:
                head.targets, head.total = body.targets, body.actions
            case m.Queued() as body:
                self._queue(at_s, body)
            case m.Started() as body:
                self._start(at_s, body)
            case m.Finished() as body:
                self._finish(at_s, body)
            case m.Failed() as body:
                self._fail(at_s, body)
            case m.CacheHit() as body:
                self._hit(at_s, body)
            case m.Progress() as body:
                self._progress(at_s, body)
            case m.LogLine() as body:
                bar = self._open.get(body.job_id)
                self._say(Said(bar=bar.id if bar is not None else -1, text=body.text, revision=self.revision))
            case m.Notice() as body if body.text.startswith("command: ") and not head.command:
                self.is_run, head.command = True, body.text.removeprefix("command: ")
            case m.Notice() as body:
                self._say(Said(bar=-1, text=body.text, severity=body.severity.value, revision=self.revision))
            case m.Measured() as body:
                self._measured(at_s, body)
            case m.ProgramStart() as body:
                self._programs.append(body)
            case m.Done() as body:
                self._done(body)
            case _:
                pass

    def close(self) -> None:
        """No event will come: what runs is lost."""
        self.revision += 1
        for bar in self._bars:
            if not bar.has_ended:
                self._end(bar, self.head.elapsed_s, BarOutcome.LOST)
        self._open.clear()
        self.head.ended = True
        self.head.running = 0

    def since(self, revision: int, picture: str = "") -> Change:
        """What is new since a revision that `Change.revision` named; everything for 0, or for another picture's."""
        full = revision <= 0 or picture != self.id
        after = 0 if full else revision
        self.head.peaks_only = not self._samples
        return Change(
            picture=self.id,
            revision=self.revision,
            full=full,
            head=self.head,
            lanes=self.lanes,
            bars=tuple(bar for bar in self._bars if bar.revision > after),
            samples=tuple(_newer(self._samples, after)) if self._samples else tuple(self._from_peaks()),
            said=tuple(_newer(self._said, after)),
            measurements=tuple(_newer(self._measurements, after)),
            critical=tuple(critical_path(self._links(), by_time=self.is_run)),
            programs=tuple(self._programs),
        )

    @property
    def lanes(self) -> tuple[str, ...]:
        """The CPU slots, the GPUs, then the hits."""
        slots = tuple(f"cpu {number}" for number in range(1, self._slots + 1))
        hits = (_HIT_LANE,) if any(bar.outcome is BarOutcome.HIT for bar in self._bars) else ()
        return (*slots, *(f"gpu {name}" for name in self._gpus), *hits)

    @property
    def bars(self) -> tuple[Bar, ...]:
        return tuple(self._bars)

    # ------------------------------------------------------------ events

    def _new(self, job: m.JobId, name: str) -> Bar:
        bar = Bar(id=len(self._bars), name=name)
        self._bars.append(bar)
        if job > 0:
            self._open[job] = bar
        return bar

    def _queue(self, at_s: float, body: m.Queued) -> None:
        bar = self._new(body.job_id, body.action)
        bar.queued_s, bar.reasons, bar.after, bar.expected_s = at_s, body.reasons, body.after, body.expected_s
        bar.revision = self.revision

    def _start(self, at_s: float, body: m.Started) -> None:
        bar = self._open.get(body.job_id)
        if bar is None or bar.has_ended:
            bar = self._new(body.job_id, body.action)
            bar.queued_s = at_s
        self._free(bar)  # it runs again
        slot = next(number for number in range(1, len(self._taken) + 2) if number not in self._taken)
        self._taken[slot] = bar
        self._slots = max(self._slots, slot)
        bar.lane, bar.start_s, bar.outcome = f"cpu {slot}", at_s, BarOutcome.RUNNING
        bar.kind = body.kind or tool_of(body.command)
        bar.command, bar.expected_s = body.command, body.expected_s or bar.expected_s
        bar.revision = self.revision

    def _finish(self, at_s: float, body: m.Finished) -> None:
        bar = self._ended(at_s, body.job_id, body.action, body.timing, BarOutcome.BUILT)
        bar.message = body.note
        bar.output_bytes = sum(output.size_bytes for output in body.outputs)
        bar.kernels = len(body.kernels)
        bar.steps = tuple(
            StepBar(name=s.name, start_s=s.start_s, wall_s=s.wall_s, peak_bytes=s.peak_rss_bytes, hit=s.hit)
            for s in body.steps
        )

    def _fail(self, at_s: float, body: m.Failed) -> None:
        bar = self._ended(at_s, body.job_id, body.action, body.timing, BarOutcome.FAILED)
        bar.message, bar.command = body.message, body.command or bar.command
        for found in body.diagnostics:
            where = f"{found.file}:{found.line}: " if found.file else ""
            text = f"{where}{found.message}"
            self._say(Said(bar=bar.id, text=text, severity=found.severity.value, revision=self.revision))

    def _ended(self, at_s: float, job: m.JobId, name: str, timing: m.Timing, outcome: BarOutcome) -> Bar:
        bar = self._open.pop(job, None)
        if bar is None:
            bar = self._new(m.JobId(0), name)
            bar.queued_s = bar.start_s = max(0.0, at_s - timing.wall_s)
        bar.user_s, bar.system_s, bar.peak_bytes = timing.user_s, timing.system_s, timing.peak_rss_bytes
        self._end(bar, at_s, outcome)
        return bar

    def _end(self, bar: Bar, at_s: float, outcome: BarOutcome) -> None:
        self._free(bar)
        bar.outcome, bar.end_s, bar.revision = outcome, at_s, self.revision

    def _free(self, bar: Bar) -> None:
        for slot, holder in list(self._taken.items()):
            if holder is bar:
                del self._taken[slot]

    def _hit(self, at_s: float, body: m.CacheHit) -> None:
        bar = self._new(m.JobId(0), body.action)
        bar.outcome, bar.lane, bar.saved_s = BarOutcome.HIT, _HIT_LANE, body.saved_s
        bar.queued_s = bar.start_s = bar.end_s = at_s
        bar.kernels, bar.revision = len(body.kernels), self.revision

    def _progress(self, at_s: float, body: m.Progress) -> None:
        head = self.head
        head.running, head.waiting_for, head.eta_s = body.running, body.waiting_for, body.eta_s
        head.total = max(head.total, body.total)
        head.done = body.done
        if body.budget_bytes:
            self._samples.append(
                Sample(
                    at_s=at_s,
                    used_bytes=body.memory_bytes,
                    budget_bytes=body.budget_bytes,
                    waiting_for=body.waiting_for,
                    revision=self.revision,
                )
            )

    def _measured(self, at_s: float, body: m.Measured) -> None:
        self._gpus[body.gpu] = None
        wall_s = min(at_s, body.wall_s)
        self._measurements.append(
            GpuRun(
                at_s=at_s - wall_s,
                wall_s=wall_s,
                gpu=f"gpu {body.gpu}",
                name=f"{body.target} {body.problem}".strip(),
                outcome=body.outcome,
                time_us=body.time_us,
                revision=self.revision,
            )
        )

    def _done(self, body: m.Done) -> None:
        head = self.head
        head.ended, head.outcome, head.message = True, body.outcome.value, body.message
        head.hits, head.misses, head.failures, head.saved_s = body.hits, body.misses, body.failures, body.saved_s
        head.running, head.waiting_for, head.eta_s = 0, "", 0.0

    def _say(self, said: Said) -> None:
        self._said.append(said)
        if len(self._said) > MOST_LINES:
            del self._said[0]

    # ------------------------------------------------------------ derived

    def _links(self) -> list[Link]:
        return [
            Link(id=bar.id, name=bar.name, after=bar.after, queued_s=bar.queued_s, start_s=bar.start_s, end_s=bar.end_s)
            for bar in self._bars
            if bar.outcome in (BarOutcome.BUILT, BarOutcome.FAILED)
        ]

    def _from_peaks(self) -> list[Sample]:
        """The most that jobs can have used: each counts with its peak from its start to its end."""
        edges = [(bar.start_s, bar.peak_bytes) for bar in self._bars if bar.peak_bytes]
        edges += [(bar.end_s, -bar.peak_bytes) for bar in self._bars if bar.peak_bytes]
        samples: list[Sample] = []
        used = 0
        for at_s, change in sorted(edges):
            used += change
            if samples and samples[-1].at_s == at_s:
                samples.pop()
            samples.append(Sample(at_s=at_s, used_bytes=used))
        return samples


def _newer(items: list[T], revision: int) -> list[T]:
    """The items after a revision: they stand at the end."""
    first = len(items)
    while first and items[first - 1].revision > revision:
        first -= 1
    return items[first:]
