"""Whether a job may start now beside those that run, and which one has to go when memory ends. PURE.

Knows no clock, no process and no file: what the host has (`memory`), what other daemons have promised (`claims`) and
what the running jobs use come in as values. One rule stands above the others: when nothing runs, the next job is
admitted, whatever it needs; so a build always goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buildd.memory import HostMemory
from protocol.messages import JobId, Priority

MARGIN_BYTES = 256 << 20
MARGIN_SHARE = 0.03
"""What is never promised: the larger of the two, the second as a share of the total."""
FLOOR_BYTES = 128 << 20
FLOOR_SHARE = 0.015
"""Below this much available memory a job is ended, before the kernel ends something else."""
PRESSURE_HIGH = 20.0
PRESSURE_LOW = 5.0
"""Percent of time that tasks wait for memory (PSI some avg10): short of memory from the first, until the second."""
PRESSURE_SHARE = 0.25
"""PSI counts only where less than this share is available: system-wide it also tells of other people's cgroups."""
SETTLE_S = 5.0
"""After a job was ended, its effect is awaited this long; avg10 needs that to fall."""
WORTH_BYTES = 64 << 20
"""Ending a smaller job frees nothing worth it."""

_RANK = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job needs.

    Args:
        cpus: CPU tokens; more than there are counts as all. 0 for a program whose compiles are jobs themselves.
        memory_bytes: its expected peak.
        alone: nothing else may run beside it (it ran out of memory before).
    """

    cpus: int
    memory_bytes: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs.

    Args:
        memory_bytes: the peak that it was admitted with.
        resident_bytes: what its processes use now.
        started: orders jobs by their start; equal ones go by their place in the list.
    """

    job_id: JobId
    cpus: int
    memory_bytes: int
    resident_bytes: int
    alone: bool = False
    priority: Priority = Priority.BUILD
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class Others:
    """What other daemons on this host have promised to their jobs and those do not use yet.

    Args:
        bytes: sum of their claims.
        users: how many users have a daemon here, with us.
    """

    bytes: int = 0
    users: int = 1


NOBODY = Others()


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may start."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may not yet; `reason` is for people: "memory: needs 1.9 GiB, 0.8 GiB free"."""

    reason: str


def outstanding_bytes(running: Sequence[Running]) -> int:
    """What was promised to running jobs and is not in use yet: not visible in the host's available memory."""
    return sum(max(0, job.memory_bytes - job.resident_bytes) for job in running)


def margin_bytes(host: HostMemory) -> int:
    """What is left for everything that is not a job."""
    return max(MARGIN_BYTES, int(host.total_bytes * MARGIN_SHARE))


class Budget:
    """The rules for one daemon.

    Args:
        cpus: CPU tokens of the machine.
        memory_cap_bytes: all jobs together stay below this (BUILDD_MEMORY); 0 means no cap of ours.
    """

    def __init__(self, cpus: int, memory_cap_bytes: int = 0) -> None:
        self.cpus = max(1, cpus)
        self.memory_cap_bytes = memory_cap_bytes
        self._short = False
        """The host was found short of memory by `relieve` and has not recovered yet."""
        self._settled_s = 0.0
        """When the last relief has had its effect."""

    def can_start(
        self, ask: Ask, host: HostMemory, running: Sequence[Running], others: Others = NOBODY
    ) -> Admitted | Wait:
        """May a job start beside those that run? When nothing runs the answer is yes."""
        return self.without_memory(ask, running) or self._memory(ask, host, running, others)

    def without_memory(self, ask: Ask, running: Sequence[Running]) -> Admitted | Wait | None:
        """What can be said without looking at the host; None where its memory decides."""
        if ask.cpus:
            # Who takes no token waits for compiles of its own: were these to wait for it, neither would ever end.
            running = [job for job in running if job.cpus]
        elif sum(not job.cpus for job in running) >= self.cpus:
            return Wait(f"cpu: {self.cpus} programs run already, whose compiles are jobs of their own")
        if not running:
            return Admitted()
        if any(job.alone for job in running):
            return Wait("another job that needs the whole machine is running")
        if ask.alone:
            return Wait("memory: it runs alone, once the others have ended")
        used = sum(min(job.cpus, self.cpus) for job in running)
        if used + min(ask.cpus, self.cpus) > self.cpus:
            return Wait(f"cpu: needs {min(ask.cpus, self.cpus)}, {max(0, self.cpus - used)} of {self.cpus} free")
        return None

    def _memory(self, ask: Ask, host: HostMemory, running: Sequence[Running], others: Others) -> Admitted | Wait:
        needs = f"memory: needs {_size(ask.memory_bytes)}"
        margin = margin_bytes(host)
        if self.memory_cap_bytes:
            promised = sum(max(job.memory_bytes, job.resident_bytes) for job in running)
            left = self.memory_cap_bytes - promised
            if ask.memory_bytes > left:
                return Wait(
                    f"{needs}, {_size(left)} left of the {_size(self.memory_cap_bytes)} that BUILDD_MEMORY allows"
                )
        if ask.memory_bytes > host.total_bytes - margin:
            return Wait(f"{needs}, this machine has {_size(host.total_bytes)}: it runs alone")
        if self._short or _pressed(host):
            return Wait(f"{needs}, the host is short of memory ({_size(host.available_bytes)} available)")
        outstanding = outstanding_bytes(running)
        free = host.available_bytes - outstanding - others.bytes - margin
        if ask.memory_bytes > free:
            return Wait(f"{needs}, {_size(free)} free{_because(host, others)}")
        # What we promise beyond our share, the others could not tell from a mistake; see `claims`.
        if others.users > 1 and outstanding + ask.memory_bytes > host.total_bytes // others.users:
            return Wait(f"{needs}; {others.users} users share this machine")
        return Admitted()

    def relieve(self, running: Sequence[Running], host: HostMemory, now_s: float) -> JobId | None:
        """The job to end so that the host gets memory back: the newest of the lowest priority, never the only one.

        Call it regularly. After one job was named none is for `SETTLE_S`, unless even half of the floor is gone.

        Args:
            now_s: any monotonic clock.
        """
        floor = max(FLOOR_BYTES, int(host.total_bytes * FLOOR_SHARE))
        starved = host.available_bytes < floor
        if starved or _pressed(host):
            self._short = True
        elif host.available_bytes >= 2 * floor and (
            host.pressure <= PRESSURE_LOW or host.available_bytes >= host.total_bytes * PRESSURE_SHARE
        ):
            self._short = False
        if not (starved or _pressed(host)) or len(running) < 2:
            return None
        if now_s < self._settled_s and (host.available_bytes >= floor // 2 or now_s < self._settled_s - SETTLE_S + 1):
            return None
        worth = [job for job in running if job.resident_bytes >= WORTH_BYTES]
        if not worth:  # it is somebody else who uses it up
            return None
        lowest = max(_RANK[job.priority] for job in worth)
        candidates = [job for job in worth if _RANK[job.priority] == lowest]
        self._settled_s = now_s + SETTLE_S
        return max(enumerate(candidates), key=lambda item: (item[1].started, item[0]))[1].job_id


def _pressed(host: HostMemory) -> bool:
    return host.pressure >= PRESSURE_HIGH and host.available_bytes < host.total_bytes * PRESSURE_SHARE


def _because(host: HostMemory, others: Others) -> str:
    """What a person could look at: a cgroup's limit, other people's builds."""
    reasons = []
    if host.limited_by.startswith("/"):
        reasons.append(f"limited by {host.limited_by}")
    if others.bytes:
        reasons.append(f"{_size(others.bytes)} promised by other daemons")
    return f" ({', '.join(reasons)})" if reasons else ""


def _size(size_bytes: int) -> str:
    """In words: "1.9 GiB", "640 MiB"."""
    size_bytes = max(0, size_bytes)
    if size_bytes >= 1000 << 20:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes >> 20} MiB"
