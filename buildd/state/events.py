"""Events, which go into the state machine, and instructions, which come out of it. Plain data; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.messages import JobId, Outcome, Priority, RequestId


class Ending(Enum):
    """How a job ended."""

    SUCCESS = "success"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """Killed on purpose, by an instruction; the state knows why."""
    STALE = "stale"
    """An input changed while it ran: the result was not stored."""
    LOST = "lost"
    """It ran away from this machine, and what came back is not to be used."""


class OwnLimit(str):
    """Why a job does not start, if only jobs of clients with the same limits could make room: others overtake it."""


class KillCause(Enum):
    """Why the state machine has a job killed."""

    CANCELLED = "cancelled"
    PRESSURE = "pressure"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One action of a request. `depends` are indices of nodes of the same request."""

    depends: tuple[int, ...]
    wall_s: float


# ---- events


@dataclass(frozen=True, slots=True)
class Submitted:
    request: RequestId
    nodes: tuple[NodeSpec, ...]
    priority: Priority = Priority.BUILD
    most_jobs: int = 0
    keep_going: bool = False
    owner: JobId | None = None
    """The job that these nodes carry out, in the order in which its tool would. They count as jobs of the requests that
    follow that job, and have its priority; once one has failed, only those before it go on. The job is spread from now
    on, if it was not."""
    replaces: tuple[RequestId, ...] = ()
    """Requests that start nothing more. They are cancelled once all nodes of this request that can be looked up have
    been, so that a job that both want goes on."""
    done: frozenset[int] = frozenset()
    """Nodes that are done, with all that they depend on: they are not looked up."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A node was looked up, found and delivered."""

    request: RequestId
    node: int


@dataclass(frozen=True, slots=True)
class Missed:
    request: RequestId
    node: int
    in_flight_key: str
    """Nodes with equal keys share one execution."""
    cpus: int
    memory_bytes: int
    steps: bool = False
    """It can be *spread*: carried out by a request of its own (`Submitted.owner`). Then it holds no CPU, no memory."""
    travels: bool = False
    """It can run *away*: on another machine. Then it holds no CPU and no memory of this one."""


@dataclass(frozen=True, slots=True)
class Released:
    """The job's processes have ended well; their outputs are being stored. It holds no CPU and no memory any more."""

    job: JobId


@dataclass(frozen=True, slots=True)
class JobEnded:
    job: JobId
    ending: Ending
    needs_bytes: int = 0
    """If memory was short: what it needs at least, as far as it was seen."""


@dataclass(frozen=True, slots=True)
class Delivered:
    request: RequestId
    node: int


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A look-up or a delivery failed for a reason that running again would not mend (disk full)."""

    request: RequestId
    node: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    request: RequestId


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that admission looks at may have changed: memory, another daemon's claims."""


@dataclass(frozen=True, slots=True)
class Relieve:
    """The host is short of memory: this job has to give way."""

    job: JobId


StateEvent = Submitted | Hit | Missed | Released | JobEnded | Delivered | Undeliverable | Cancelled | Tick | Relieve


# ---- instructions


@dataclass(frozen=True, slots=True)
class LookUp:
    request: RequestId
    node: int
    fresh: bool
    """The inputs changed: an earlier look at them is not to be used."""


@dataclass(frozen=True, slots=True)
class Attach:
    """A node joined a job that already exists."""

    request: RequestId
    node: int
    job: JobId


@dataclass(frozen=True, slots=True)
class Start:
    job: JobId
    request: RequestId
    node: int
    """The node whose action runs; the job's other followers get its result."""
    final: bool
    """Deliver the result even if inputs change meanwhile (and do not store it)."""
    alone: bool
    spread: bool = False
    """A request of its own carries it out; else the job does all its steps itself."""
    away: bool = False
    """It runs on another machine."""


@dataclass(frozen=True, slots=True)
class Kill:
    job: JobId
    cause: KillCause


@dataclass(frozen=True, slots=True)
class Deliver:
    request: RequestId
    node: int
    job: JobId


@dataclass(frozen=True, slots=True)
class Retry:
    """A job goes back into the queue. For the log."""

    job: JobId
    ending: Ending


@dataclass(frozen=True, slots=True)
class NodeFailed:
    request: RequestId
    node: int
    job: JobId


@dataclass(frozen=True, slots=True)
class Complete:
    request: RequestId
    outcome: Outcome


Instruction = LookUp | Attach | Start | Kill | Deliver | Retry | NodeFailed | Complete
