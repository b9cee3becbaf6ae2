"""The limits of a process that its children share: processors, priority, limiting cgroups, resource limits.

`confinement_of` asks the kernel for those of any process; `take_off` gives this process back what it may have. Knows no
client and no job. A compile of a client with other limits than the daemon's runs below the client (`hosted_runner`).
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field

from buildd.host.memory import CGROUP, PROC, folders_of, limiting, text_of

_LIMITS = (
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_STACK,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_AS,
)
"""Limits that decide whether a compiler succeeds. The shim looks at that of the size of files (launcher.c); a compiler
needs a handful of open files."""
_USUAL_STACK_BYTES = 8 << 20
_MOST_PROCESSORS = 8192
"""Linux has at most so many; their numbers may have gaps."""
_STEP = re.compile(r"/slurm.*/(job|step)_")
"""Slurm accounts what runs in a step to it, and ends it with the step, also where the step has no limit."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """Limits of a process. Processes with equal ones share them.

    Args:
        processors: numbers of the processors that it may run on.
        priority: (nice value, scheduling policy).
        limits: soft limits, of `_LIMITS`.
        cgroups: the folders of cgroups that limit its memory or CPU time, or account for it.
        quota: how many processors' worth of time its cgroups leave it, rounded up; 0 means no limit.
        membership: its /proc/PID/cgroup.
    """

    processors: frozenset[int]
    priority: tuple[int, int]
    limits: tuple[int, ...]
    cgroups: tuple[str, ...]
    quota: int = 0
    membership: str = field(default="", compare=False)

    @property
    def cpus(self) -> int:
        """How many jobs can use a processor at once."""
        return min(self.quota or len(self.processors), len(self.processors))

    @property
    def has_limits(self) -> bool:
        """Whether its resource limits are others than this process's, so that a compiler might fail there alone. Its
        processors, priority and cgroups bound the work on this machine, and no result."""
        return self.limits != _soft_limits(0)


def confinement_of(
    pid: int, *, beside: Confinement | None = None, proc: str = PROC, cgroup: str = CGROUP
) -> Confinement | None:
    """The limits of a process of this user; None if it is gone. Takes 0.05 ms, and 1 ms if it is in other cgroups.

    Args:
        beside: the limits of another process, whose cgroups were read before.
        proc, cgroup: where the files of cgroups are.
    """
    try:
        processors = frozenset(os.sched_getaffinity(pid))
        priority = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
        limits = _soft_limits(pid)
    except OSError:
        return None
    membership = text_of(f"{proc}/{pid}/cgroup")
    if beside is not None and membership == beside.membership:
        # Equal ones of the same cgroups are equal also if somebody has changed the limits of these meanwhile.
        cgroups, quota = beside.cgroups, beside.quota
    else:
        quotas = dict(_quotas(membership, cgroup))
        steps = (path for line in membership.splitlines() if _STEP.search(path := line.split(":", 2)[-1]))
        cgroups = tuple(sorted({*limiting(*folders_of(membership, cgroup)), *quotas, *steps}))
        quota = min(quotas.values(), default=0)
    return Confinement(processors, priority, limits, cgroups, quota, membership)


def _soft_limits(pid: int) -> tuple[int, ...]:
    return tuple(resource.prlimit(pid, number)[0] for number in _LIMITS)


def take_off() -> None:
    """Take off the limits that this process has inherited from the client that started it, as far as it may.

    What only root may undo (hard limits, low priority, a cgroup) stays: compiles of other clients then run below them.
    """
    for number in _LIMITS:
        soft, hard = resource.getrlimit(number)
        wanted = hard
        if number == resource.RLIMIT_STACK:
            # Programs lay out their memory by this limit, and the usual one is finite.
            enough = soft == resource.RLIM_INFINITY or soft >= _USUAL_STACK_BYTES
            wanted = soft if enough else _USUAL_STACK_BYTES if hard == resource.RLIM_INFINITY else hard
        if wanted != soft:
            resource.setrlimit(number, (wanted, hard))
    with contextlib.suppress(OSError):  # its cgroup has none of them
        os.sched_setaffinity(0, range(_MOST_PROCESSORS))


def _quotas(membership: str, cgroup: str) -> Iterator[tuple[str, int]]:
    """(folder, processors' worth of time, rounded up) of each cgroup that limits CPU time."""
    for folder in folders_of(membership, cgroup)[0]:
        quota, _, period = text_of(f"{folder}/cpu.max").partition(" ")
        yield from _share(folder, quota, period)
    for folder in folders_of(membership, cgroup, "cpu")[1]:
        yield from _share(folder, text_of(f"{folder}/cpu.cfs_quota_us"), text_of(f"{folder}/cpu.cfs_period_us"))


def _share(folder: str, quota: str, period: str) -> Iterator[tuple[str, int]]:
    if quota.strip().isdecimal() and period.strip().isdecimal():  # "max" and -1 mean no limit
        yield folder, max(1, -(-int(quota) // max(1, int(period))))
