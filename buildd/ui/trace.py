"""A build's events as a Chrome trace (chrome://tracing, Perfetto): one lane per job slot, its steps below, hits as
instants. The jobs and steps on each node of a cluster have lanes of their own.

Pure: events in, JSON bytes out. Format: "Trace Event Format", JSON array form; times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from buildd.ui.text import clean, tool_of
from protocol import messages
from protocol.messages import Event, JobId

_PROCESS = 1
_STORE_LANE = 0
_STEP_LANES = 1000
"""The lanes of steps are numbered from a job's lane times this."""


def chrome_trace(events: Iterable[Event]) -> bytes:
    """The events of one build as a JSON array.

    Jobs that never ended are drawn up to the last event and marked "unfinished". A job takes the lowest free lane at
    its start, so there are as many lanes as jobs ran at most side by side. `args` hold the measured times.
    """
    return msgspec.json.encode(_Tracer().trace(events))


class TraceView:
    """Collects a build's events and writes their trace at its end, also after a failure.

    Args:
        path: the file; opened at once, so that a wrong path does not show only after an hour's build.

    Raises: OSError if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        self._events: list[Event] = []

    def event(self, event: Event) -> None:
        if not isinstance(event.body, messages.LogLine | messages.Progress):
            self._events.append(event)

    def close(self) -> None:
        with self._file:
            self._file.write(chrome_trace(self._events))


class _Tracer:
    def __init__(self) -> None:
        self._zero_ns = 0
        self._last_ns = 0
        self._lanes: dict[JobId, int] = {}
        self._started: dict[JobId, tuple[int, messages.Started]] = {}
        self._reasons: dict[JobId, tuple[str, ...]] = {}
        self._lane_count = 0
        self._rows: dict[tuple[int, int], int] = {}
        """Process and lane -> number of lanes that its jobs' steps take."""
        self._away: dict[str, list[int]] = {}
        """Name of a node -> when each of its lanes is free again (ns)."""
        self._entries: list[dict[str, Any]] = []

    def trace(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        for event in sorted(events, key=lambda event: event.time_ns):  # those of a `buildd run` are in no order
            self._zero_ns = self._zero_ns or event.time_ns
            self._last_ns = max(self._last_ns, event.time_ns)
            match event.body:
                case messages.Queued() as body:
                    self._reasons[body.job_id] = body.reasons
                case messages.Started() as body:
                    self._start(event.time_ns, body)
                case messages.Finished() as body:
                    peak = {"outputs_bytes": sum(output.size_bytes for output in body.outputs)}
                    place = self._end(event.time_ns, body.job_id, body.action, body.timing, peak, body.node)
                    self._add_steps(place, body)
                case messages.Failed() as body:
                    what = {"failed": clean(body.message), "exit_status": body.exit_status}
                    self._end(event.time_ns, body.job_id, body.action, body.timing, what)
                case messages.CacheHit() as body:
                    self._instant(event.time_ns, body)
                case _:
                    pass
        for job_id, (_, started) in list(self._started.items()):
            self._end(self._last_ns, job_id, started.action, messages.Timing(), {"unfinished": True})
        return [*self._names(), *self._entries]

    def _microseconds(self, time_ns: int) -> float:
        return max(0, time_ns - self._zero_ns) / 1000

    def _start(self, time_ns: int, body: messages.Started) -> None:
        taken = set(self._lanes.values())
        lane = next(lane for lane in range(1, len(taken) + 2) if lane not in taken)
        self._lanes[body.job_id] = lane
        self._lane_count = max(self._lane_count, lane)
        self._started[body.job_id] = (time_ns, body)

    def _end(
        self,
        time_ns: int,
        job_id: JobId,
        action: str,
        timing: messages.Timing,
        more: dict[str, Any],
        node: str = "",
    ) -> tuple[int, int, int]:
        """Draw a job; returns its process, its lane and its start."""
        lane = self._lanes.pop(job_id, 1)
        started_ns, body = self._started.pop(job_id, (time_ns - int(timing.wall_s * 1e9), None))
        process, thread = self._lane_at(node, started_ns, time_ns) if node else (_PROCESS, lane)
        command = body.command if body is not None else ""
        self._entries.append(
            {
                "name": clean(action),
                "cat": tool_of(command) or "job",
                "ph": "X",
                "ts": self._microseconds(started_ns),
                "dur": max(0, time_ns - started_ns) / 1000,
                "pid": process,
                "tid": thread,
                "args": {
                    "command": clean(command),
                    "expected_s": body.expected_s if body is not None else 0.0,
                    "wall_s": timing.wall_s,
                    "user_s": timing.user_s,
                    "system_s": timing.system_s,
                    "peak_rss_bytes": timing.peak_rss_bytes,
                    "reasons": [clean(reason) for reason in self._reasons.pop(job_id, ())],
                    **more,
                },
            }
        )
        return process, thread, started_ns

    def _lane_at(self, node: str, started_ns: int, ended_ns: int) -> tuple[int, int]:
        """The node's number among the processes, and a lane of it that is free from a job's start to its end."""
        free_ns = self._away.setdefault(clean(node), [])
        row = next((row for row, at_ns in enumerate(free_ns) if at_ns <= started_ns), len(free_ns))
        free_ns[row : row + 1] = [ended_ns]
        return _PROCESS + 1 + list(self._away).index(clean(node)), row + 1

    def _add_steps(self, place: tuple[int, int, int], body: messages.Finished) -> None:
        """Draw the steps that ran, on lanes below the job's: one lane for each that ran side by side.

        A step that ran on a node, of a job that ran here, is drawn among the jobs of that node too.
        """
        process, lane, began_ns = place
        free_s: list[float] = []
        for step in sorted(body.steps, key=lambda step: step.start_s):
            if step.hit:
                continue
            row = next((row for row, at_s in enumerate(free_s) if at_s <= step.start_s), len(free_s))
            free_s[row : row + 1] = [step.start_s + step.wall_s]
            self._rows[process, lane] = max(self._rows.get((process, lane), 0), row + 1)
            self._add_step(step, clean(step.name), (process, _STEP_LANES * lane + row), began_ns)
            if step.node and step.node != body.node:
                started_ns = began_ns + int(step.start_s * 1e9)
                there = self._lane_at(step.node, started_ns, started_ns + int(step.wall_s * 1e9))
                self._add_step(step, f"{clean(body.action)}: {clean(step.name)}", there, began_ns)

    def _add_step(self, step: messages.Step, name: str, place: tuple[int, int], began_ns: int) -> None:
        process, thread = place
        self._entries.append(
            {
                "name": name,
                "cat": "step",
                "ph": "X",
                "ts": self._microseconds(began_ns) + step.start_s * 1e6,
                "dur": step.wall_s * 1e6,
                "pid": process,
                "tid": thread,
                "args": {
                    "peak_rss_bytes": step.peak_rss_bytes,
                    **({"node": clean(step.node)} if step.node else {}),
                },
            }
        )

    def _instant(self, time_ns: int, body: messages.CacheHit) -> None:
        self._entries.append(
            {
                "name": clean(body.action),
                "cat": "hit",
                "ph": "i",
                "s": "t",
                "ts": self._microseconds(time_ns),
                "pid": _PROCESS,
                "tid": _STORE_LANE,
                "args": {"reason": clean(body.reason), "saved_s": body.saved_s},
            }
        )

    def _names(self) -> list[dict[str, Any]]:
        names = list(
            _named(_PROCESS, "buildd", {_STORE_LANE: "hits", **self._lanes_of(_PROCESS, "slot", self._lane_count)})
        )
        for process, (node, free_ns) in enumerate(self._away.items(), start=_PROCESS + 1):
            names += _named(process, node, self._lanes_of(process, node, len(free_ns)))
        return names

    def _lanes_of(self, process: int, name: str, count: int) -> dict[int, str]:
        """Number -> name of each lane of a process: of its jobs, and of their steps."""
        lanes = {lane: f"{name} {lane}" for lane in range(1, count + 1)}
        for (of, lane), rows in self._rows.items():
            if of == process:
                lanes |= {_STEP_LANES * lane + row: f"{name} {lane}, steps" for row in range(rows)}
        return lanes


def _named(process: int, name: str, lanes: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}
    for lane, words in lanes.items():
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": lane, "args": {"name": words}}
