"""Which jobs that ended run once more, and how: by themselves, or on this machine. PURE: reads and marks one job."""

from __future__ import annotations

from buildd.state.events import Ending, KillCause
from buildd.state.nodes import ScheduledJob

MOST_EVICTIONS = 3
"""A job that had to give way to memory pressure this often runs alone."""


def runs_again(job: ScheduledJob, ending: Ending, killed_for: KillCause | None) -> bool:
    """Whether a job is to run once more; it is marked with how."""
    if killed_for is KillCause.PRESSURE and ending is not Ending.SUCCESS:
        job.evictions += 1
        job.alone = job.alone or job.evictions >= MOST_EVICTIONS
        return True
    if ending is Ending.LOST:
        job.travels = False
        return True
    if ending is Ending.OUT_OF_MEMORY and not job.alone:
        job.alone = True
        return True
    return False
