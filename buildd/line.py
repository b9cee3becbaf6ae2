"""Which READY job comes next, for whom it counts, and when a further job may be spread. PURE: reads `state`'s data.

Starts nothing and asks no admission. Of the data only heaps are touched: entries of jobs that are no longer READY are
dropped when met.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from buildd.graph import Asked, Job, JobState
from protocol.messages import JobId, Priority, RequestId

BACKFILL = 8
"""How many smaller jobs are tried when the first in line does not fit."""
SPREAD_WITHOUT_TOKENS = 8
"""How many jobs are spread at once where CPUs are not counted."""

_RANK = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}


class Line:
    """The queue over all requests.

    Args:
        requests: all.
        jobs: all.
        running: those that hold resources.
        spread: those that requests of their own carry out.
        alone: READY ones that have to run alone.
        cpus: CPU tokens; 0 means that they are not counted.
    """

    def __init__(
        self,
        requests: Mapping[RequestId, Asked],
        jobs: Mapping[JobId, Job],
        running: Mapping[JobId, Job],
        spread: Mapping[JobId, Job],
        alone: Mapping[JobId, Job],
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
        """Whether jobs that could be spread had better do all by themselves: as many are there as CPUs, so one each
        keeps all busy, and what a request of its own costs buys no time."""
        return stepped >= (self._cpus or SPREAD_WITHOUT_TOKENS)

    def may_spread(self, request: RequestId, taken: int) -> bool:
        """Whether a further job may be spread: only for a CPU that those already spread will leave idle. One whose
        next steps are still being looked up will want one."""
        most = self._cpus or SPREAD_WITHOUT_TOKENS
        soon = [job for job in self._spread.values() if not self._has_work(job)]
        asked = self._requests[request]
        theirs = sum(job.lead is not None and job.lead[0] == request for job in soon)
        within_cap = not asked.most_jobs or asked.running + theirs < asked.most_jobs
        return within_cap and taken + len(soon) < most and len(self._spread) < 2 * most

    def _has_work(self, job: Job) -> bool:
        """Whether a spread job's own request has a job that runs or could."""
        asked = self._requests.get(job.within) if job.within is not None else None
        if asked is None:
            return False
        if any(other.lead is not None and other.lead[0] == asked.id for other in self._running.values()):
            return True
        return any(j in self._jobs and self._jobs[j].state is JobState.READY for _, j in asked.ready)

    def payer(self, asked: Asked) -> Asked:
        """The request whose cap counts a request's jobs: itself, or one that follows its owner."""
        owner = self._jobs.get(asked.owner) if asked.owner is not None else None
        if owner is None or not owner.followers:
            return asked
        if owner.lead is not None and owner.lead[0] in self._requests:
            return self._requests[owner.lead[0]]
        return self._requests[owner.followers[0][0]]

    def _rank(self, asked: Asked) -> int:
        """Of the most urgent that wait for a request's jobs."""
        owner = self._jobs.get(asked.owner) if asked.owner is not None else None
        followers = owner.followers if owner is not None else []
        return min((_RANK[self._requests[r].priority] for r, _ in followers), default=_RANK[asked.priority])

    def best_first(self) -> Iterator[tuple[Job, tuple[RequestId, int]]]:
        """READY jobs whose request is under its cap, best first. Jobs that must run alone come first of all."""
        seen: set[JobId] = set()
        for job in list(self._alone.values()):
            seen.add(job.id)
            yield job, job.followers[0]
        heads: list[tuple[int, bool, float, JobId, RequestId]] = []
        for asked in self._requests.values():
            payer = self.payer(asked)
            if not asked.ready or (payer.most_jobs and payer.running >= payer.most_jobs):
                continue
            entries: list[tuple[float, JobId]] = []
            while asked.ready and len(entries) <= BACKFILL:
                entry = heapq.heappop(asked.ready)
                job_or_none = self._jobs.get(entry[1])
                if job_or_none is not None and job_or_none.state is JobState.READY and entry[1] not in seen:
                    entries.append(entry)
            for entry in entries:
                heapq.heappush(asked.ready, entry)
            rank = self._rank(asked)
            # What has begun comes to its end first: files of half-made results take room, and memory waits with them.
            heads.extend((rank, self._jobs[entry[1]].steps, *entry, asked.id) for entry in entries)
        heads.sort()
        for _, _, _, job_id, request in heads:
            if job_id in seen:
                continue
            seen.add(job_id)
            job = self._jobs[job_id]
            yield job, next(follower for follower in job.followers if follower[0] == request)
