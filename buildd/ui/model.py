"""What is going on in a build, folded from its events: jobs that run, counters, what is waited for.

Pure: no clock, no terminal, no socket. Times are the events' own. Nobody has to send well-formed histories: a replay
may start in the middle, events may have been dropped.
"""

from __future__ import annotations

import msgspec

from buildd.ui import text
from protocol import messages
from protocol.messages import Event, JobId


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

    Invariants: `done` counts each action at most once; a job is in `running` from its `Started` to its `Finished` or
    `Failed`; `total` never falls below `done`.
    """

    targets: tuple[str, ...] = ()
    planned: int = 0
    expected_s: float = 0.0
    done: int = 0
    hits: int = 0
    compiled: int = 0
    failures: int = 0
    would_run: int = 0
    running: dict[JobId, RunningJob] = msgspec.field(default_factory=dict)
    progress: messages.Progress | None = None
    progress_ns: int = 0
    first_ns: int = 0
    result: messages.Done | None = None
    announced_total: int = 0
    _reached: float = 0.0

    @property
    def total(self) -> int:
        """How many actions there are, as far as is known: plans grow while probes answer."""
        return max(self.planned, self.announced_total, self.done + len(self.running))

    @property
    def waiting_for(self) -> str:
        """Why nothing starts; empty while something runs its way."""
        return self.progress.waiting_for if self.progress is not None else ""

    def remaining_s(self, now_ns: int) -> float:
        """Learned time to the end, counted down since it was said; 0 when unknown."""
        if self.progress is not None and self.progress.eta_s > 0:
            return max(0.0, self.progress.eta_s - max(0, now_ns - self.progress_ns) / 1e9)
        if self.expected_s > 0:
            return max(0.0, self.expected_s - self.elapsed_s(now_ns))
        return 0.0

    def elapsed_s(self, now_ns: int) -> float:
        """Time since the first event; never negative, whatever the clock did in between."""
        return max(0, now_ns - self.first_ns) / 1e9 if self.first_ns else 0.0

    def fraction(self, now_ns: int) -> float:
        """How far the build is, 0 to 1: by learned time where there is an estimate, else by actions.

        Never less than it was: a bar that goes back, because a job takes longer than it did, is not believed.
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
        """Fold one event in. Returns the job that it ended, where it ended one."""
        if event.sequence == 1 and self.first_ns:
            self._restart()
        self.first_ns = self.first_ns or event.time_ns
        match event.body:
            case messages.Planned() as body:
                self.targets, self.planned, self.expected_s = body.targets, body.actions, body.expected_s
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
                self.progress, self.progress_ns = body, event.time_ns
                self.announced_total = body.total
            case messages.CacheHit():
                self.hit(event)
            case messages.Finished(job_id=job_id):
                self.compiled += 1
                self.done += 1
                return self.running.pop(job_id, None)
            case messages.Failed(job_id=job_id):
                self.failures += 1
                self.done += 1
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
        self.done += 1

    def _restart(self) -> None:
        """The request begins anew: another daemon took it over, or this process did. Only its start stays."""
        self.planned = self.done = self.hits = self.compiled = self.failures = self.would_run = 0
        self.announced_total = 0
        self._reached = 0.0
        self.progress = self.result = None
        self.running.clear()
