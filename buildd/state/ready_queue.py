"""Which READY job starts next: the order of the jobs, the request that each counts for, and when one may be spread
or run away. PURE: reads the machine's data.

Starts nothing: it changes only heaps, whose entries of jobs that are no longer READY are dropped when met, and says on
each job whether it is to be spread or to run away, and how often it was overtaken.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from buildd.state.events import OwnLimit
from buildd.state.job_table import JobTable
from buildd.state.nodes import JobState, RequestGraph, ScheduledJob
from protocol.messages import JobId, Priority, RequestId

BACKFILL = 8
"""How many smaller jobs are tried when the first in line does not fit."""
MOST_OVERTAKES = 16
"""How often a job that does not fit may be overtaken before the others wait for it."""
SPREAD_WITHOUT_TOKENS = 8
"""How many jobs are spread at once where CPUs are not counted."""
CROWDED = 0.75
"""From so many jobs for each CPU on, no further one is spread. Of sixteen compilers that a build runs at once, two or
three are between two jobs at each moment."""

_RANK = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}


class Admission(Protocol):
    """Whether a job of a request may start beside those that run: empty means yes, else the reason in words."""

    def __call__(self, cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str: ...


class ReadyQueue:
    """The READY jobs of all requests.

    Args:
        requests: all requests.
        table: all jobs.
        admission: asked for each job that would hold resources, unless all CPU tokens are taken.
        cpus: CPU tokens; 0 means that they are not counted.
        slots: how many jobs of a size (bytes of memory) other machines may have at once.
    """

    def __init__(
        self,
        requests: Mapping[RequestId, RequestGraph],
        table: JobTable,
        admission: Admission,
        *,
        cpus: int,
        slots: Callable[[int], int],
    ) -> None:
        self._requests = requests
        self._table = table
        self._admission = admission
        self._cpus = cpus
        self._slots = slots
        self.waiting_for = ""
        """Why nothing more starts right now; empty when nothing waits."""

    def next_to_start(self) -> tuple[ScheduledJob, tuple[RequestId, int]] | None:
        """The best READY job that may start now and the node that it starts for; None if none may. The job says whether
        it is to be spread or to run away: that it does only if nothing may start here."""
        return self._next_here() or self._next_away()

    def _next_away(self) -> tuple[ScheduledJob, tuple[RequestId, int]] | None:
        taken = len(self._table.away)
        if not self._table.queued or taken >= self._slots(0):
            return None
        for job, lead in self._best_first():
            looks = self._requests[lead[0]].nodes[lead[1]].looks
            # A result is delivered unchecked after the last look; see `machine.MOST_LOOKS`.
            if job.travels and not job.alone and looks == 1 and taken < self._slots(job.memory_bytes):
                job.away, job.spread = True, False
                self.waiting_for = ""
                return job, lead
        return None

    def _next_here(self) -> tuple[ScheduledJob, tuple[RequestId, int]] | None:
        self.waiting_for = ""
        running = self._table.running
        taken = sum(job.cpus for job in running.values())
        if self._cpus and taken >= self._cpus:
            self.waiting_for = f"cpu: all {self._cpus} are taken" if self._table.queued else ""
            return None
        started, tried, why = False, 0, ""
        crowded = self._crowded()
        # The CPU that is left is a spread job's whose next step is being planned or looked up. Otherwise each job that
        # starts would pass it by, for as long as a compile takes.
        promised = self._table.queued and self._cpus and taken + len(self._between_steps()) >= self._cpus
        for job, lead in self._best_first():
            job.away = False
            job.spread = job.steps and not job.alone and not crowded
            if not job.spread and promised and not job.alone and self._requests[lead[0]].owner is None:
                self.waiting_for = self.waiting_for or f"cpu: all {self._cpus} are taken"
                continue
            if not job.spread:
                why = self._admission(job.cpus, job.memory_bytes, job.alone, len(running), lead[0])
                started = not why
                tried += not isinstance(why, OwnLimit)
                # One step at a time holds less memory than all of them for the whole time.
                job.spread = job.steps and not job.alone and not started
            if job.spread:
                started = self._may_spread(lead[0], taken)
            if started:
                self.waiting_for = ""
                return job, lead
            self.waiting_for = self.waiting_for or str(why)  # a subclass does not travel
            if job.spread or isinstance(why, OwnLimit):
                continue
            if job.alone or job.overtaken >= MOST_OVERTAKES or tried > BACKFILL:
                break
            job.overtaken += 1
        return None

    def _crowded(self) -> bool:
        """Whether jobs that could be spread had better do their steps themselves: there are nearly as many as CPUs, so
        one each keeps them busy, and a request of its own would cost time and save none."""
        return self._table.stepped >= CROWDED * (self._cpus or SPREAD_WITHOUT_TOKENS)

    def _may_spread(self, request: RequestId, taken: int) -> bool:
        """Whether a further job may be spread: only for a CPU that the jobs already spread will leave idle. A job whose
        next steps are still being looked up will want one."""
        most = self._cpus or SPREAD_WITHOUT_TOKENS
        soon = self._between_steps()
        graph = self._requests[request]
        theirs = sum(job.lead is not None and job.lead[0] == request for job in soon)
        within_cap = not graph.most_jobs or graph.running + theirs < graph.most_jobs
        return within_cap and taken + len(soon) < most and len(self._table.spread) < 2 * most

    def may_widen(self, number: JobId) -> bool:
        """Whether a job had better be spread from now on: see `State.may_widen`."""
        job = self._table.running.get(number)
        if job is None or job.state is not JobState.RUNNING or job.kill_cause or job.alone or job.lead is None:
            return False
        taken = sum(each.cpus for each in self._table.running.values())
        return not self._table.queued and not self._crowded() and self._may_spread(job.lead[0], taken)

    def _between_steps(self) -> list[ScheduledJob]:
        """The spread jobs that will want a CPU, and have no step now that runs or could."""
        return [job for job in self._table.spread.values() if not self._has_work(job)]

    def _has_work(self, job: ScheduledJob) -> bool:
        graph = self._requests.get(job.within) if job.within is not None else None
        numbers = () if graph is None else [node.job for node in graph.nodes if node.job is not None]
        steps = (self._table.jobs.get(number) for number in numbers)
        return any(step is not None and step.state in (JobState.READY, JobState.RUNNING) for step in steps)

    def payer(self, graph: RequestGraph) -> RequestGraph:
        """The request whose cap counts a request's jobs: itself, or one that follows its owner."""
        owner = self._table.jobs.get(graph.owner) if graph.owner is not None else None
        if owner is None or not owner.followers:
            return graph
        if owner.lead is not None and owner.lead[0] in self._requests:
            return self._requests[owner.lead[0]]
        return self._requests[owner.followers[0][0]]

    def charge(self, job: ScheduledJob, graph: RequestGraph) -> None:
        """Count a job that starts for a request, under the cap of its payer."""
        payer = self.payer(graph)
        job.charged = payer.id
        payer.running += 1

    def discharge(self, job: ScheduledJob) -> None:
        """Count a job no more."""
        payer = self._requests.get(job.charged) if job.charged is not None else None
        if payer is not None:
            payer.running -= 1
        job.charged = None

    @staticmethod
    def _is_at_its_cap(payer: RequestGraph) -> bool:
        return bool(payer.most_jobs) and payer.running >= payer.most_jobs

    def _rank(self, graph: RequestGraph) -> int:
        """Rank of the most urgent request that waits for a request's jobs."""
        owner = self._table.jobs.get(graph.owner) if graph.owner is not None else None
        followers = owner.followers if owner is not None else []
        return min((_RANK[self._requests[r].priority] for r, _ in followers), default=_RANK[graph.priority])

    def _best_first(self) -> Iterator[tuple[ScheduledJob, tuple[RequestId, int]]]:
        """READY jobs whose request is under its cap, best first. Jobs that must run alone come first of all."""
        seen: set[JobId] = set()
        for job in list(self._table.alone.values()):
            seen.add(job.id)
            # Nothing else of its request runs here when it starts, but something may run away.
            if not self._is_at_its_cap(self.payer(self._requests[job.followers[0][0]])):
                yield job, job.followers[0]
        heads: list[tuple[int, bool, float, JobId, RequestId]] = []
        for graph in self._requests.values():
            payer = self.payer(graph)
            if not graph.ready or self._is_at_its_cap(payer):
                continue
            entries: list[tuple[float, JobId]] = []
            while graph.ready and len(entries) <= BACKFILL:
                entry = heapq.heappop(graph.ready)
                job_or_none = self._table.jobs.get(entry[1])
                if job_or_none is not None and job_or_none.state is JobState.READY and entry[1] not in seen:
                    entries.append(entry)
            for entry in entries:
                heapq.heappush(graph.ready, entry)
            rank = self._rank(graph)
            # What has begun is finished first: files of half-made results take room, and memory waits with them.
            heads.extend((rank, self._table.jobs[entry[1]].steps, *entry, graph.id) for entry in entries)
        heads.sort()
        for _, _, _, job_id, request in heads:
            if job_id in seen:
                continue
            seen.add(job_id)
            job = self._table.jobs[job_id]
            yield job, next(follower for follower in job.followers if follower[0] == request)
