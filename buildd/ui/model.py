"""The state of a build, folded from its events: running jobs, counters, reasons to wait.

Pure: no clock, no terminal, no socket. Times are the events' own. Accepts incomplete histories: a replay may start in
the middle of a build, and events may be missing.
"""

from __future__ import annotations

import msgspec

from buildd.ui import text
from protocol import messages
from protocol.messages import Event, JobId

_SLACK_S, _SLACK = 1.0, 0.1
"""A later end than expected before is shown if it is so many seconds, and this part of the time left, later."""


class RunningJob(msgspec.Struct):
    """A job that has started. `started_ns` is the event's time of day."""

    job_id: JobId
    action: str
    tool: str
    started_ns: int
    expected_s: float
    command: str

    @property
    def label(self) -> str:
        """ "nvcc saxpy/src/a.cu.o"."""
        return f"{self.tool} {self.action}" if self.tool else self.action


class BuildModel(msgspec.Struct):
    """The state of one request as its followers know it. `apply` is the only way in.

    Work is what runs: an action that was found in the store is none. Invariants: `done` counts each action that ran at
    most once; a job is in `running` from its `Started` to its `Finished` or `Failed`; `total` never falls below `done`,
    and is `done` at the end.
    """

    targets: tuple[str, ...] = ()
    planned: int = 0
    queued: int = 0
    hits: int = 0
    compiled: int = 0
    failures: int = 0
    would_run: int = 0
    running: dict[JobId, RunningJob] = msgspec.field(default_factory=dict)
    progress: messages.Progress | None = None
    first_ns: int = 0
    result: messages.Done | None = None
    end_ns: int = 0
    """When the build is expected to end; 0 if that is not known."""
    _reached: float = 0.0
    _finished: set[JobId] = msgspec.field(default_factory=set)
    """The jobs in `compiled`."""

    @property
    def done(self) -> int:
        """Number of actions that have run."""
        return self.compiled + self.failures

    @property
    def total(self) -> int:
        """Number of actions that have run, run, or will run, as far as is known."""
        if self.result is not None:
            return self.done
        announced = self.progress.to_run if self.progress is not None else 0
        return max(announced, self.queued, self.done + len(self.running))

    @property
    def waiting_for(self) -> str:
        """Why no job starts; empty while jobs start normally."""
        return self.progress.waiting_for if self.progress is not None else ""

    def remaining_s(self, now_ns: int) -> float:
        """Expected time to the end; 0 if unknown.

        Counts down. A report that expects a later end counts only if it is clearly later: more work was found, or a
        job takes longer than it did before.
        """
        return max(0, self.end_ns - now_ns) / 1e9 if self.end_ns else 0.0

    def elapsed_s(self, now_ns: int) -> float:
        """Time since the first event; never negative, even if the clock was set back."""
        return max(0, now_ns - self.first_ns) / 1e9 if self.first_ns else 0.0

    def fraction(self, now_ns: int) -> float:
        """Progress of the build, 0 to 1: by expected time if there is an estimate, else by actions that run.

        Never decreases: nobody believes a bar that goes back because a job takes longer than it did before.
        """
        if self.result is not None:
            return 1.0
        remaining_s = self.remaining_s(now_ns)
        if remaining_s > 0:
            elapsed_s = self.elapsed_s(now_ns)
            known = elapsed_s / (elapsed_s + remaining_s)
        else:
            known = self.done / self.total if self.total else 0.0
        self._reached = max(self._reached, min(0.99, known))
        return self._reached

    def apply(self, event: Event) -> RunningJob | None:
        """Fold in one event. Returns the job that it ended, if any."""
        if event.sequence == 1 and self.first_ns:
            self._restart()
        self.first_ns = self.first_ns or event.time_ns
        match event.body:
            case messages.Planned() as body:
                self.targets, self.planned = body.targets, body.actions
                if body.expected_s > 0:
                    self._expect(event.time_ns, body.expected_s)
            case messages.Queued():
                self.queued += 1
            case messages.Started() as body:
                self.running[body.job_id] = RunningJob(
                    job_id=body.job_id,
                    action=text.clean(body.action),
                    tool=text.tool_of(body.command),
                    started_ns=event.time_ns,
                    expected_s=body.expected_s,
                    command=body.command,
                )
            case messages.Progress() as body:
                self.progress = body
                if body.eta_s > 0:
                    self._expect(event.time_ns, body.eta_s)
            case messages.CacheHit():
                self.hit(event)
            case messages.Finished(job_id=job_id):
                self.compiled += 1
                self._finished.add(job_id)
                return self.running.pop(job_id, None)
            case messages.Failed(job_id=job_id):
                if job_id in self._finished:  # its tool ended well, but its files could not be put in place
                    self._finished.remove(job_id)
                    self.compiled -= 1
                self.failures += 1
                return self.running.pop(job_id, None)
            case messages.Explained(would_run=would_run):
                self.would_run += would_run
            case messages.Done() as body:
                self.result = body
                self.running.clear()
            case _:
                pass
        return None

    def hit(self, event: Event) -> None:
        """`apply` for a `CacheHit` alone."""
        self.first_ns = self.first_ns or event.time_ns
        self.hits += 1

    def _expect(self, at_ns: int, left_s: float) -> None:
        """Take in when the build is expected to end."""
        end_ns = at_ns + int(left_s * 1e9)
        slack_ns = int(max(_SLACK_S, _SLACK * left_s) * 1e9)
        if not self.end_ns or end_ns < self.end_ns or end_ns > self.end_ns + slack_ns:
            self.end_ns = end_ns

    def _restart(self) -> None:
        """Start over: another daemon, or this process, took the request. Only its start time stays."""
        self.planned = self.queued = self.hits = self.compiled = self.failures = self.would_run = self.end_ns = 0
        self._reached = 0.0
        self.progress = self.result = None
        self.running.clear()
        self._finished.clear()
