"""The order of READY jobs, the request that each counts for, and when a further job may be spread. PURE: reads the
machine's data.

Starts nothing and asks no admission. It changes only heaps: entries of jobs that are no longer READY are dropped when
met.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from buildd.state.nodes import JobState, RequestGraph, ScheduledJob
from protocol.messages import JobId, Priority, RequestId

BACKFILL = 8
"""How many smaller jobs are tried when the first in line does not fit."""
SPREAD_WITHOUT_TOKENS = 8
"""How many jobs are spread at once where CPUs are not counted."""

_RANK = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}


class ReadyQueue:
    """The READY jobs of all requests.

    Args:
        requests: all requests.
        jobs: all jobs.
        running: jobs that hold resources.
        spread: jobs that requests of their own carry out.
        alone: READY jobs that have to run alone.
        cpus: CPU tokens; 0 means that they are not counted.
    """

    def __init__(
        self,
        requests: Mapping[RequestId, RequestGraph],
        jobs: Mapping[JobId, ScheduledJob],
        running: Mapping[JobId, ScheduledJob],
        spread: Mapping[JobId, ScheduledJob],
        alone: Mapping[JobId, ScheduledJob],
        *,
        cpus: int,
    ) -> None:
        self._requests = requests
        self._jobs = jobs
        self._running = running
        self._spread = spread
        self._alone = alone
        self._cpus = cpus

    def crowded(self, stepped: int) -> bool:
        """Whether jobs that could be spread had better do their steps themselves: there are as many as CPUs, so one
        each keeps all busy, and a request of its own would cost time and save none."""
        return stepped >= (self._cpus or SPREAD_WITHOUT_TOKENS)

    def may_spread(self, request: RequestId, taken: int) -> bool:
        """Whether a further job may be spread: only for a CPU that the jobs already spread will leave idle. A job whose
        next steps are still being looked up will want one."""
        most = self._cpus or SPREAD_WITHOUT_TOKENS
        soon = [job for job in self._spread.values() if not self._has_work(job)]
        graph = self._requests[request]
        theirs = sum(job.lead is not None and job.lead[0] == request for job in soon)
        within_cap = not graph.most_jobs or graph.running + theirs < graph.most_jobs
        return within_cap and taken + len(soon) < most and len(self._spread) < 2 * most

    def _has_work(self, job: ScheduledJob) -> bool:
        """Whether a spread job's own request has a job that runs or could."""
        graph = self._requests.get(job.within) if job.within is not None else None
        if graph is None:
            return False
        if any(other.lead is not None and other.lead[0] == graph.id for other in self._running.values()):
            return True
        return any(j in self._jobs and self._jobs[j].state is JobState.READY for _, j in graph.ready)

    def payer(self, graph: RequestGraph) -> RequestGraph:
        """The request whose cap counts a request's jobs: itself, or one that follows its owner."""
        owner = self._jobs.get(graph.owner) if graph.owner is not None else None
        if owner is None or not owner.followers:
            return graph
        if owner.lead is not None and owner.lead[0] in self._requests:
            return self._requests[owner.lead[0]]
        return self._requests[owner.followers[0][0]]

    def _rank(self, graph: RequestGraph) -> int:
        """Rank of the most urgent request that waits for a request's jobs."""
        owner = self._jobs.get(graph.owner) if graph.owner is not None else None
        followers = owner.followers if owner is not None else []
        return min((_RANK[self._requests[r].priority] for r, _ in followers), default=_RANK[graph.priority])

    def best_first(self) -> Iterator[tuple[ScheduledJob, tuple[RequestId, int]]]:
        """READY jobs whose request is under its cap, best first. Jobs that must run alone come first of all."""
        seen: set[JobId] = set()
        for job in list(self._alone.values()):
            seen.add(job.id)
            yield job, job.followers[0]
        heads: list[tuple[int, bool, float, JobId, RequestId]] = []
        for graph in self._requests.values():
            payer = self.payer(graph)
            if not graph.ready or (payer.most_jobs and payer.running >= payer.most_jobs):
                continue
            entries: list[tuple[float, JobId]] = []
            while graph.ready and len(entries) <= BACKFILL:
                entry = heapq.heappop(graph.ready)
                job_or_none = self._jobs.get(entry[1])
                if job_or_none is not None and job_or_none.state is JobState.READY and entry[1] not in seen:
                    entries.append(entry)
            for entry in entries:
                heapq.heappush(graph.ready, entry)
            rank = self._rank(graph)
            # What has begun is finished first: files of half-made results take room, and memory waits with them.
            heads.extend((rank, self._jobs[entry[1]].steps, *entry, graph.id) for entry in entries)
        heads.sort()
        for _, _, _, job_id, request in heads:
            if job_id in seen:
                continue
            seen.add(job_id)
            job = self._jobs[job_id]
            yield job, next(follower for follower in job.followers if follower[0] == request)
