"""The state machine: which node waits for what, which job runs next, what an ending means. PURE: events in,
instructions out.

Knows no clock, no process, no file and no socket. A request is a graph of *nodes*; a node is looked up once all it
depends on is done; a miss attaches it to a *job*. Nodes with equal in-flight keys, of any requests, share one job. A
job that is *spread* is carried out by a request of its own, which it owns. Every change of a node's or job's state goes
through `_move` and `_set`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from buildd.state.events import (
    Attach,
    Cancelled,
    Complete,
    Deliver,
    Delivered,
    Ending,
    Hit,
    Instruction,
    JobEnded,
    Kill,
    KillCause,
    LookUp,
    Missed,
    NodeFailed,
    Released,
    Relieve,
    Retry,
    Start,
    StateEvent,
    Submitted,
    Tick,
    Undeliverable,
)
from buildd.state.job_table import JobTable
from buildd.state.nodes import ENDED, JobState, Node, NodeState, RequestGraph, ScheduledJob, graph_of
from buildd.state.ready_queue import Admission, ReadyQueue
from buildd.state.retries import runs_again
from protocol.messages import JobId, Outcome, RequestId

MOST_LOOKS = 3
"""A node whose inputs change under every run is delivered unstored after this many look-ups."""


class State:
    """The machine. `handle` takes one event and returns what is to be done, in order.

    Args:
        admission: see `buildd.state.ready_queue`.
        cpus: CPU tokens; while all are taken, admission is not asked. 0 leaves it all to admission.
        slots: how many jobs of a size (bytes of memory) other machines may have at once.
        story: how many past changes are kept for errors.
        noted: called with each event and change.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        cpus: int = 0,
        slots: Callable[[int], int] = lambda _: 0,
        story: int = 60,
        noted: Callable[[object], None] = lambda _: None,
    ) -> None:
        self.requests: dict[RequestId, RequestGraph] = {}
        self.table = JobTable()
        self.jobs = self.table.jobs
        self._landed: dict[str, int] = {}
        self._clock = 0
        self._looked_at: dict[tuple[RequestId, int], int] = {}
        self._ready_queue = ReadyQueue(self.requests, self.table, admission, cpus=cpus, slots=slots)
        self._story: deque[tuple[int, object]] = deque(maxlen=story)
        self._noted = noted

    # -- the outside

    def handle(self, event: StateEvent) -> list[Instruction]:
        """Take an event in; events about requests or jobs that are gone are ignored."""
        self._clock += 1
        self._note(f"submitted {event.request}" if isinstance(event, Submitted) else event)
        out: list[Instruction] = []
        match event:
            case Submitted():
                self._submitted(event, out)
            case Hit() | Delivered():
                self._succeeded(event.request, event.node, out)
            case Missed():
                self._missed(event, out)
            case Released():
                self._released(event.job)
            case JobEnded():
                self._ended(event, out)
            case Undeliverable():
                self._node_failed(event.request, event.node, JobId(0), out)
            case Cancelled():
                self._cancel(event.request, out)
            case Relieve():
                self._kill(self.jobs.get(event.job), KillCause.PRESSURE, out)
            case Tick():
                pass
        if isinstance(event, Submitted | Hit | Missed | Undeliverable):
            graph = self.requests.get(event.request)
            if graph is not None and graph.replaces and not graph.looking:
                self._end_replaced(graph, out)
        self._start_what_fits(out)
        return out

    @property
    def running(self) -> list[ScheduledJob]:
        """Jobs that hold resources, in the order in which they started."""
        return list(self.table.running.values())

    def may_widen(self, number: JobId) -> bool:
        """Whether a job that does its steps itself had better be spread from now on: a CPU is idle, and no job waits
        for it. `Submitted` with the job as its owner does that."""
        return self._ready_queue.may_widen(number)

    @property
    def waiting_for(self) -> str:
        """Why nothing more starts right now; empty when nothing waits."""
        return self._ready_queue.waiting_for

    # -- events

    def _submitted(self, event: Submitted, out: list[Instruction]) -> None:
        graph = graph_of(event)
        self.requests[event.request] = graph
        self._replace(graph, event.replaces, out)
        if event.owner is not None:
            self._take_in(graph, self.jobs[event.owner])
        if not graph.open:
            self._complete(graph, out)
        for node in sorted(graph.nodes, key=lambda n: -n.remaining_s):
            if node.pending == 0 and node.state is NodeState.WAITING:
                self._look(node, out, fresh=False)

    def _replace(self, graph: RequestGraph, names: tuple[RequestId, ...], out: list[Instruction]) -> None:
        for name in names:
            before = self.requests.get(name)
            if before is None or before is graph:
                continue
            graph.replaces += (name, *before.replaces)
            before.replaces = ()
            before.cancelled = True
            for node in before.nodes:
                if node.state in (NodeState.WAITING, NodeState.LOOKING):
                    self._skip(node, out)
            self._start_no_more(before, out)
            self._settle(before, out)

    def _take_in(self, graph: RequestGraph, owner: ScheduledJob) -> None:
        graph.owner = owner.id
        owner.within = graph.id
        if not owner.spread:
            self._ready_queue.discharge(owner)
            self.table.widen(owner)
        request, index = owner.followers[0]
        above = self.requests[request].nodes[index]
        for node in graph.nodes:
            node.remaining_s += above.remaining_s - above.spec.wall_s

    def _missed(self, event: Missed, out: list[Instruction]) -> None:
        node = self._node(event.request, event.node)
        if node is None or node.state is not NodeState.LOOKING:
            return
        looked_at = self._looked_at.pop((event.request, event.node), 0)
        if self._landed.get(event.in_flight_key, -1) >= looked_at:
            # An equal job landed between this look and its answer: what was a miss is a hit by now.
            self._look(node, out, fresh=False, again=True)
            return
        graph = self.requests[event.request]
        job = self.table.to_join(event.in_flight_key) or self.table.add(
            event.in_flight_key, event.cpus, event.memory_bytes, steps=event.steps, travels=event.travels
        )
        job.followers.append((event.request, event.node))
        node.job = job.id
        self._move(node, NodeState.ATTACHED)
        out.append(Attach(event.request, event.node, job.id))
        if job.state is JobState.READY:
            heapq.heappush(graph.ready, (-node.remaining_s, job.id))

    def _released(self, number: JobId) -> None:
        job = self.jobs.get(number)
        if job is not None and job.state is JobState.RUNNING:
            self._release(job)
            job.kill_cause = None
            self._set(job, JobState.KEEPING)

    def _ended(self, event: JobEnded, out: list[Instruction]) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        self._release(job)
        killed_for = job.kill_cause
        job.memory_bytes = max(job.memory_bytes, event.needs_bytes)
        job.kill_cause = None
        if not job.followers:
            self.table.forget(job)
            return
        if runs_again(job, event.ending, killed_for):
            self._requeue(job, event.ending, out)
            return
        followers = list(job.followers)
        self.table.forget(job)
        if event.ending is Ending.STALE:
            for request, index in followers:
                self._look(self.requests[request].nodes[index], out, fresh=True)
            return
        for request, index in followers:
            self._move(self.requests[request].nodes[index], NodeState.DELIVERING)
        if event.ending is Ending.SUCCESS:
            self._landed[job.in_flight_key] = self._clock
            out.extend(Deliver(request, index, job.id) for request, index in followers)
        else:
            for request, index in followers:
                self._node_failed(request, index, job.id, out)

    def _cancel(self, request: RequestId, out: list[Instruction]) -> None:
        graph = self.requests.get(request)
        if graph is None:
            return
        graph.cancelled = True
        for node in graph.nodes:
            if node.state not in ENDED:
                self._skip(node, out)
        self._complete(graph, out)

    # -- nodes

    def _look(self, node: Node, out: list[Instruction], *, fresh: bool, again: bool = False) -> None:
        if not again:
            node.looks += 1
        node.job = None
        self._move(node, NodeState.LOOKING)
        self._looked_at[(node.request, node.index)] = self._clock
        out.append(LookUp(node.request, node.index, fresh))

    def _succeeded(self, request: RequestId, index: int, out: list[Instruction]) -> None:
        node = self._node(request, index)
        if node is None or node.state not in (NodeState.LOOKING, NodeState.DELIVERING):
            return
        self._looked_at.pop((request, index), None)
        graph = self.requests[request]
        self._move(node, NodeState.DONE)
        graph.open -= 1
        for d in node.dependents:
            dependent = graph.nodes[d]
            dependent.pending -= 1
            if dependent.pending == 0 and dependent.state is NodeState.WAITING:
                if graph.failed and not graph.keep_going and graph.owner is None:
                    continue
                self._look(dependent, out, fresh=False)
        self._settle(graph, out)

    def _node_failed(self, request: RequestId, index: int, job: JobId, out: list[Instruction]) -> None:
        node = self._node(request, index)
        if node is None or node.state in ENDED:
            return
        graph = self.requests[request]
        self._looked_at.pop((request, index), None)
        self._move(node, NodeState.FAILED)
        graph.open -= 1
        graph.failed = True
        out.append(NodeFailed(request, index, job))
        waiting = list(node.dependents)
        while waiting:
            dependent = graph.nodes[waiting.pop()]
            if dependent.state not in ENDED:
                self._skip(dependent, out)
                waiting.extend(dependent.dependents)
        if graph.owner is not None:
            # A tool that does one step after another would not have reached these.
            for other in graph.nodes[index + 1 :]:
                if other.state not in ENDED:
                    self._skip(other, out)
        elif not graph.keep_going:
            self._start_no_more(graph, out)
        self._settle(graph, out)

    def _start_no_more(self, graph: RequestGraph, out: list[Instruction]) -> None:
        """Skip what has not started. Jobs that run may finish: their results are worth keeping."""
        for node in graph.nodes:
            if node.state is NodeState.WAITING or (
                node.state is NodeState.ATTACHED and self._job_of(node).state is JobState.READY
            ):
                self._skip(node, out)

    def _skip(self, node: Node, out: list[Instruction]) -> None:
        if node.state is NodeState.ATTACHED:
            self._leave(node, out)
        self._move(node, NodeState.SKIPPED)
        self.requests[node.request].open -= 1

    def _settle(self, graph: RequestGraph, out: list[Instruction]) -> None:
        if graph.open == 0 and graph.id in self.requests:
            self._complete(graph, out)

    def _complete(self, graph: RequestGraph, out: list[Instruction]) -> None:
        outcome = Outcome.CANCELLED if graph.cancelled else Outcome.FAILED if graph.failed else Outcome.BUILT
        del self.requests[graph.id]
        if graph.owner is not None and (owner := self.jobs.get(graph.owner)) is not None:
            owner.within = None
        if not self.requests:
            self._landed.clear()
            self._looked_at.clear()
        out.append(Complete(graph.id, outcome))
        self._end_replaced(graph, out)

    def _end_replaced(self, graph: RequestGraph, out: list[Instruction]) -> None:
        names, graph.replaces = graph.replaces, ()
        for name in names:
            self._cancel(name, out)

    # -- jobs

    def _leave(self, node: Node, out: list[Instruction]) -> None:
        job = self._job_of(node)
        job.followers.remove((node.request, node.index))
        node.job = None
        if job.followers:
            if job.state is JobState.READY:
                for request, index in job.followers:
                    graph = self.requests[request]
                    heapq.heappush(graph.ready, (-graph.nodes[index].remaining_s, job.id))
        elif job.state is JobState.READY:
            self.table.forget(job)
        else:
            self._kill(job, KillCause.CANCELLED, out)

    def _kill(self, job: ScheduledJob | None, cause: KillCause, out: list[Instruction]) -> None:
        if job is None or job.state is not JobState.RUNNING:
            return
        job.kill_cause = cause
        if cause is KillCause.CANCELLED:
            self._set(job, JobState.ENDING)
            self.table.close(job)
        out.append(Kill(job.id, cause))

    def _requeue(self, job: ScheduledJob, ending: Ending, out: list[Instruction]) -> None:
        self._set(job, JobState.READY)
        out.append(Retry(job.id, ending))
        for request, index in job.followers:
            graph = self.requests[request]
            heapq.heappush(graph.ready, (-graph.nodes[index].remaining_s, job.id))

    def _release(self, job: ScheduledJob) -> None:
        self._ready_queue.discharge(job)
        job.lead = None

    def _start_what_fits(self, out: list[Instruction]) -> None:
        while (best := self._ready_queue.next_to_start()) is not None:
            self._start(*best, out)

    def _start(self, job: ScheduledJob, lead: tuple[RequestId, int], out: list[Instruction]) -> None:
        graph = self.requests[lead[0]]
        job.lead = lead
        job.overtaken = 0
        if not job.spread:
            self._ready_queue.charge(job, graph)
        self._set(job, JobState.RUNNING)
        job.final = graph.nodes[lead[1]].looks >= MOST_LOOKS
        if job.final:
            self.table.close(job)
        out.append(Start(job.id, lead[0], lead[1], job.final, job.alone, job.spread, job.away))

    # -- the two doors that every change goes through

    def _move(self, node: Node, state: NodeState) -> None:
        self._note((node.request, node.index, node.state, state))
        self.requests[node.request].looking += (state is NodeState.LOOKING) - (node.state is NodeState.LOOKING)
        node.state = state

    def _set(self, job: ScheduledJob, state: JobState) -> None:
        self._note((job.id, job.state, state))
        self.table.move(job, state)

    def _note(self, change: object) -> None:
        self._story.append((self._clock, change))
        self._noted(change)

    @property
    def story(self) -> str:
        """The last events and changes, a line each, for errors."""
        return "\n".join(f"{clock} {change}" for clock, change in self._story)

    def _node(self, request: RequestId, index: int) -> Node | None:
        graph = self.requests.get(request)
        return None if graph is None else graph.nodes[index]

    def _job_of(self, node: Node) -> ScheduledJob:
        assert node.job is not None
        return self.jobs[node.job]
