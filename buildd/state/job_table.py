"""All jobs of the state machine: which key leads to which, and which hold resources, are spread, away, or to run alone.
PURE: data with its invariants.

Knows no node and no instruction. Every change of a job's state goes through `move`.
"""

from __future__ import annotations

from buildd.state.nodes import JobState, ScheduledJob
from protocol.messages import JobId


class JobTable:
    """The jobs that have not ended."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, ScheduledJob] = {}
        self.in_flight: dict[str, JobId] = {}
        """By in-flight key, the job that further equal nodes join."""
        self.running: dict[JobId, ScheduledJob] = {}
        """Exactly the jobs that are RUNNING or ENDING and neither spread nor away."""
        self.spread: dict[JobId, ScheduledJob] = {}
        """Exactly the spread jobs that are RUNNING or ENDING."""
        self.away: dict[JobId, ScheduledJob] = {}
        """Exactly the away jobs that are RUNNING or ENDING."""
        self.alone: dict[JobId, ScheduledJob] = {}
        """Exactly the READY jobs that have to run alone."""
        self.keeping = 0
        """How many jobs are KEEPING."""
        self.stepped = 0
        """How many jobs may be spread, spread or not."""
        self._next = 1

    @property
    def queued(self) -> int:
        """Jobs that wait to run."""
        return len(self.jobs) - len(self.running) - len(self.spread) - len(self.away) - self.keeping

    def to_join(self, in_flight_key: str) -> ScheduledJob | None:
        """The job that an equal node joins; None if there is none, or it was killed."""
        number = self.in_flight.get(in_flight_key)
        job = self.jobs.get(number) if number is not None else None
        return None if job is None or job.state is JobState.ENDING else job

    def add(self, in_flight_key: str, cpus: int, memory_bytes: int, *, steps: bool, travels: bool) -> ScheduledJob:
        """A new job, READY and without followers, which equal nodes join from now on."""
        job = ScheduledJob(JobId(self._next), in_flight_key, cpus, memory_bytes, steps=steps, travels=travels)
        self._next += 1
        self.stepped += job.steps
        self.jobs[job.id] = job
        self.in_flight[in_flight_key] = job.id
        return job

    def move(self, job: ScheduledJob, state: JobState) -> None:
        """Change a job's state."""
        self.keeping += (state is JobState.KEEPING) - (job.state is JobState.KEEPING)
        job.state = state
        if state in (JobState.READY, JobState.KEEPING):
            self.running.pop(job.id, None)
            self.spread.pop(job.id, None)
            self.away.pop(job.id, None)
            if job.alone and state is JobState.READY:
                self.alone[job.id] = job
        else:
            self.alone.pop(job.id, None)
            (self.spread if job.spread else self.away if job.away else self.running)[job.id] = job

    def widen(self, job: ScheduledJob) -> None:
        """Spread a job that runs."""
        del self.running[job.id]
        job.spread = True
        self.spread[job.id] = job

    def close(self, job: ScheduledJob) -> None:
        """Let no further node join a job."""
        if self.in_flight.get(job.in_flight_key) == job.id:
            del self.in_flight[job.in_flight_key]

    def forget(self, job: ScheduledJob) -> None:
        """Remove a job that has ended, or that no node waits for any more."""
        self.jobs.pop(job.id, None)
        self.running.pop(job.id, None)
        self.spread.pop(job.id, None)
        self.away.pop(job.id, None)
        self.alone.pop(job.id, None)
        self.keeping -= job.state is JobState.KEEPING
        self.stepped -= job.steps
        self.close(job)
