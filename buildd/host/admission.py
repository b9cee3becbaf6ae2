"""Admission: whether a job may start beside those that run, and which one has to end when memory is short. PURE.

Jobs start in the belief that they need as much as others of their kind. If they need more, the young ones are stopped
until the older ones have ended (`hold`), and only if that is not enough, one is ended (`relieve`).

Knows no clock, no process and no file: the host's memory (`memory`), the promises of other daemons (`claims`) and the
usage of the running jobs come in as values. The first rule: when nothing runs, the next job is admitted, however much
it needs; so a build always goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buildd.host.confinement import Confinement
from buildd.host.memory import HostMemory
from protocol.messages import JobId, Priority

MARGIN_BYTES = 256 << 20
MARGIN_SHARE = 0.03
"""Memory that is never promised: the larger of the two, the second as a share of the total."""
HOLD_BYTES = 384 << 20
HOLD_SHARE = 0.08
"""Below this much available memory (the larger of the two) jobs are held, the youngest first, until one is left that
runs; from twice as much on they go on."""
FLOOR_BYTES = 128 << 20
FLOOR_SHARE = 0.015
"""Below this much available memory a job is ended, before the kernel ends something else."""
PRESSURE_HIGH = 20.0
PRESSURE_LOW = 5.0
"""Percent of time that tasks wait for memory (PSI some avg10): short of memory from the first, until the second."""
PRESSURE_SHARE = 0.25
"""PSI counts only where less than this share is available: the system-wide value includes other people's cgroups."""
SETTLE_S = 5.0
"""After a job was ended, no other is ended for this long; avg10 needs that to fall."""
WORTH_BYTES = 64 << 20
"""Ending a smaller job is not worth it."""

_RANK = {Priority.EDITOR: 0, Priority.BUILD: 1, Priority.WARM: 2}


@dataclass(frozen=True, slots=True)
class Ask:
    """The resources that a job needs.

    Args:
        cpus: CPU tokens; more than there are counts as all. 0 for a program whose compiles are jobs themselves.
        memory_bytes: its expected peak.
        alone: nothing else may run beside it (it ran out of memory before).
        within: the limits of the client that runs it; None for jobs of the daemon.
    """

    cpus: int
    memory_bytes: int
    alone: bool = False
    within: Confinement | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs.

    Args:
        memory_bytes: the peak that it was admitted with.
        resident_bytes: what its processes use now.
        started: orders jobs by their start; equal ones go by their place in the list.
        within: as for `Ask`.
        held: its processes are stopped, so that it needs no more memory for now.
    """

    job_id: JobId
    cpus: int
    memory_bytes: int
    resident_bytes: int
    alone: bool = False
    priority: Priority = Priority.BUILD
    started: float = 0.0
    within: Confinement | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A running job is to be stopped, or (`go_on`) to go on."""

    job_id: JobId
    go_on: bool = False


@dataclass(frozen=True, slots=True)
class Others:
    """Memory that other daemons on this host have promised to jobs which do not use it yet.

    Args:
        bytes: sum of their claims.
        users: how many users have a daemon here, this one included.
    """

    bytes: int = 0
    users: int = 1


NOBODY = Others()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The job may start."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The job may not start yet; `reason` is for people: "memory: needs 1.9 GiB, 0.8 GiB free"."""

    reason: str


def outstanding_bytes(running: Sequence[Running]) -> int:
    """Memory promised to running jobs and not in use yet: the host's available memory does not show it."""
    return sum(max(0, job.memory_bytes - job.resident_bytes) for job in running)


def budget_bytes(host: HostMemory, running: Sequence[Running], others: Others, cap_bytes: int = 0) -> int:
    """The memory that all jobs together may use now: what those that run use, and what is free for more."""
    used = sum(job.resident_bytes for job in running)
    room = used + max(0, host.available_bytes - others.bytes - margin_bytes(host))
    return min(room, cap_bytes) if cap_bytes else room


def margin_bytes(host: HostMemory) -> int:
    """Memory left for everything that is not a job."""
    return max(MARGIN_BYTES, int(host.total_bytes * MARGIN_SHARE))


def holding_bytes(host: HostMemory) -> int:
    """Available memory below which jobs are held."""
    return max(HOLD_BYTES, int(host.total_bytes * HOLD_SHARE))


class Budget:
    """The rules for one daemon.

    Args:
        cpus: CPU tokens of the machine.
        memory_cap_bytes: all jobs together stay below this (BUILDD_MEMORY); 0 means no cap.
    """

    def __init__(self, cpus: int, memory_cap_bytes: int = 0) -> None:
        self.cpus = max(1, cpus)
        self.memory_cap_bytes = memory_cap_bytes
        self._short = False
        """The host was found short of memory by `relieve` and has not recovered yet."""
        self._settled_s = 0.0
        """When the last relief should have had its effect (s)."""
        self._available_bytes = -1
        """At the last look for `hold`; -1 before the first."""
        self._soon_bytes = 0
        """The memory that will be available at the next look, if all goes on like this."""

    def can_start(
        self, ask: Ask, host: HostMemory, running: Sequence[Running], others: Others = NOBODY
    ) -> Admitted | Wait:
        """Whether a job may start beside those that run. When nothing runs, it may."""
        return self.without_memory(ask, running) or self._memory(ask, host, running, others)

    def without_memory(self, ask: Ask, running: Sequence[Running]) -> Admitted | Wait | None:
        """The answer if the host's memory is not needed for it; None where memory decides."""
        if ask.cpus:
            # A job without a token waits for compiles of its own: if these waited for it, neither would ever end.
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
        if any(job.held for job in running):
            return Wait(f"{needs}, jobs that have begun wait for memory ({_size(host.available_bytes)} available)")
        outstanding = outstanding_bytes(running)
        free = host.available_bytes - outstanding - others.bytes - margin
        if ask.memory_bytes > free:
            return Wait(f"{needs}, {_size(free)} free{_because(host, others)}")
        # Other daemons would take promises beyond this user's share for a mistake; see `claims`.
        if others.users > 1 and outstanding + ask.memory_bytes > host.total_bytes // others.users:
            return Wait(f"{needs}; {others.users} users share this machine")
        return Admitted()

    def hold(self, running: Sequence[Running], host: HostMemory) -> tuple[Hold, ...]:
        """The jobs to stop, or to let go on, so that those that run use no more than there is.

        Nothing is lost, unlike with `relieve`: what a job has done stays. The oldest job of the highest priority is
        never held. Call it regularly, and before `relieve`.
        """
        # At the next look as much again may be gone, and some of it before a signal arrives.
        falling = max(0, self._available_bytes - host.available_bytes) if self._available_bytes >= 0 else 0
        self._available_bytes = host.available_bytes
        self._soon_bytes = host.available_bytes - 2 * falling
        enough = holding_bytes(host)
        by_age = sorted(running, key=lambda job: (_RANK[job.priority], job.started))
        active, held = [job for job in by_age if not job.held], [job for job in by_age if job.held]
        if held and (not active or host.available_bytes >= 2 * enough):
            return (Hold(held[0].job_id, go_on=True),)
        if self._soon_bytes >= enough:
            return ()
        youngest = active[1:] if self._soon_bytes < enough // 2 else active[1:][-1:]
        return tuple(Hold(job.job_id) for job in youngest)

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
        if len(running) < 2:
            return None
        held = [job for job in running if job.held]
        # Half-made jobs keep memory from those that run.
        short = 2 * len(held) >= len(running) and self._soon_bytes < holding_bytes(host)
        if short and self._soon_bytes < holding_bytes(host) // 2:
            return max(held, key=lambda job: (_RANK[job.priority], job.started)).job_id
        # Peaks are brief: of two jobs, the one that runs is often beyond its own before the other's memory is needed.
        crowded = short and len(running) > 2
        if not (starved or crowded or _pressed(host)):
            return None
        if now_s < self._settled_s and (host.available_bytes >= floor // 2 or now_s < self._settled_s - SETTLE_S + 1):
            return None
        worth = [job for job in running if job.resident_bytes >= WORTH_BYTES]
        if not worth:  # other processes use the memory
            return None
        lowest = max(_RANK[job.priority] for job in worth)
        candidates = [job for job in worth if _RANK[job.priority] == lowest]
        self._settled_s = now_s + SETTLE_S
        return max(enumerate(candidates), key=lambda item: (item[1].started, item[0]))[1].job_id


def _pressed(host: HostMemory) -> bool:
    return host.pressure >= PRESSURE_HIGH and host.available_bytes < host.total_bytes * PRESSURE_SHARE


def _because(host: HostMemory, others: Others) -> str:
    """Causes that a person could look at: a cgroup's limit, other people's builds."""
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
