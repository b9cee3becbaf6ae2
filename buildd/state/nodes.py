"""The state machine's data: nodes, jobs and requests, each with its invariants beside it.

Data only: `graph_of` makes the graph of a new request, and `machine` makes every change of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from buildd.state.events import KillCause, NodeSpec, Submitted
from protocol.messages import JobId, Priority, RequestId


class NodeState(Enum):
    WAITING = "waiting"
    LOOKING = "looking"
    ATTACHED = "attached"
    DELIVERING = "delivering"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


ENDED = frozenset({NodeState.DONE, NodeState.FAILED, NodeState.SKIPPED})


class JobState(Enum):
    READY = "ready"
    RUNNING = "running"
    KEEPING = "keeping"
    """Its processes have ended; its result is being stored."""
    ENDING = "ending"
    """It was killed; its ending is still to come."""


@dataclass(slots=True)
class Node:
    request: RequestId
    index: int
    spec: NodeSpec
    state: NodeState = NodeState.WAITING
    pending: int = 0
    """How many of `spec.depends` are not done."""
    dependents: list[int] = field(default_factory=list)
    remaining_s: float = 0.0
    """Longest expected path from here to the end of the request, this node included."""
    job: JobId | None = None
    looks: int = 0


@dataclass(slots=True)
class ScheduledJob:
    id: JobId
    in_flight_key: str
    cpus: int
    memory_bytes: int
    state: JobState = JobState.READY
    followers: list[tuple[RequestId, int]] = field(default_factory=list)
    """Never empty unless KEEPING or ENDING."""
    lead: tuple[RequestId, int] | None = None
    final: bool = False
    """Its result is delivered even if its inputs changed under it: later nodes must not join."""
    alone: bool = False
    evictions: int = 0
    overtaken: int = 0
    steps: bool = False
    """It may be spread."""
    spread: bool = False
    """A request of its own carries it out: it holds no CPU and no memory."""
    travels: bool = False
    """It may run away. It does so once: a job that was lost runs here."""
    away: bool = False
    """It runs on another machine: it holds no CPU and no memory of this one."""
    within: RequestId | None = None
    """That request, while there is one."""
    charged: RequestId | None = None
    """The request whose `running` counts it: the lead's, or the one that the lead's owner runs for."""
    kill_cause: KillCause | None = None


@dataclass(slots=True)
class RequestGraph:
    id: RequestId
    nodes: list[Node]
    priority: Priority
    most_jobs: int
    keep_going: bool
    open: int
    """Nodes that have not ended."""
    running: int = 0
    """Jobs that hold resources on behalf of this request; 0 where it has an owner, whose request is charged."""
    owner: JobId | None = None
    failed: bool = False
    cancelled: bool = False
    looking: int = 0
    """Nodes that are LOOKING."""
    replaces: tuple[RequestId, ...] = ()
    """Requests to be cancelled as soon as nothing is LOOKING."""
    ready: list[tuple[float, JobId]] = field(default_factory=list)
    """Heap of (-remaining_s, job); entries of jobs that are no longer READY are dropped when met."""


class PlanCycle(ValueError):
    """Actions of a plan wait for each other. The request was not taken in, and nothing has changed."""


def graph_of(event: Submitted) -> RequestGraph:
    """The graph of a new request, each node with its expected path to the end. Raises PlanCycle."""
    done = event.done
    nodes = [
        Node(
            event.request,
            index,
            spec,
            NodeState.DONE if index in done else NodeState.WAITING,
            pending=sum(d not in done for d in spec.depends) if done else len(spec.depends),
        )
        for index, spec in enumerate(event.nodes)
    ]
    for node in nodes:
        for dependency in node.spec.depends:
            nodes[dependency].dependents.append(node.index)
    for node in _last_first(nodes):
        node.remaining_s = node.spec.wall_s + max((nodes[d].remaining_s for d in node.dependents), default=0.0)
    return RequestGraph(
        event.request, nodes, event.priority, event.most_jobs, event.keep_going, open=len(nodes) - len(done)
    )


def _last_first(nodes: list[Node]) -> list[Node]:
    """Nodes so that each comes after all that depend on it. Raises PlanCycle."""
    left = [len(n.dependents) for n in nodes]
    order = [n for n in nodes if not n.dependents]
    for node in order:
        for dependency in node.spec.depends:
            left[dependency] -= 1
            if left[dependency] == 0:
                order.append(nodes[dependency])
    if len(order) != len(nodes):
        raise PlanCycle("the plan has a cycle")
    return order
