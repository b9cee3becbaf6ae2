"""How much of a request is left: which actions will run, and how long that takes. PURE: no clock.

What was found in the store is no work. An action behind one that runs is expected to run too, until its look-up says
otherwise. Jobs are placed as the machine starts them: the one with the longest path behind it first, as many at once as
there is room for (list scheduling: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from buildd.state.nodes import ENDED, Node, NodeState

MOST_PLACED = 2000
"""With more jobs left each is not placed by itself: the total and the longest path say it as well."""
_OVERDUE = 0.1
"""A job that takes longer than expected is expected to take this part of its time more."""
_PRIOR_JOBS = 3.0
"""So many jobs that took as long as expected stand against those that were seen to take another time."""
_LEAST_PACE, _MOST_PACE = 0.3, 4.0


@dataclass(slots=True)
class Pace:
    """How long jobs of one request take, beside what was expected of them: others may use the machine too."""

    expected_s: float = 0.0
    taken_s: float = 0.0
    jobs: int = 0

    def learn(self, expected_s: float, taken_s: float) -> None:
        """Take in a job that has ended."""
        if expected_s > 0 and taken_s > 0:
            self.expected_s += expected_s
            self.taken_s += taken_s
            self.jobs += 1

    @property
    def factor(self) -> float:
        """Time that a job takes for each second that is expected of it."""
        if not self.jobs:
            return 1.0
        prior_s = self.expected_s / self.jobs * _PRIOR_JOBS
        return min(_MOST_PACE, max(_LEAST_PACE, (self.taken_s + prior_s) / (self.expected_s + prior_s)))


def open_runs(nodes: Sequence[Node], expected: set[int]) -> set[int]:
    """The nodes that run, or will, as far as is known: indices.

    Args:
        expected: the answer of the last time; a node in it is kept until it has ended.
    """
    found = {i for i in expected if nodes[i].state not in ENDED}
    left = [node.index for node in nodes if node.state is NodeState.ATTACHED]
    while left:
        index = left.pop()
        if index not in found or nodes[index].state is NodeState.ATTACHED:
            found.add(index)
            left += [i for i in nodes[index].dependents if i not in found and nodes[i].state not in ENDED]
    return found


def remaining_s(nodes: Sequence[Node], runs: set[int], spent_s: Mapping[int, float], width: int, pace: float) -> float:
    """Time until the last of these nodes has run.

    Args:
        runs: as `open_runs` says.
        spent_s: index -> how long its job has run already, for jobs that run.
        width: jobs at once.
        pace: `Pace.factor`.
    """
    left = {i: _left_s(nodes[i].spec.wall_s * pace, spent_s.get(i)) for i in runs}
    width = max(1, width, len(spent_s))
    if len(left) > MOST_PLACED:
        longest = max((nodes[i].remaining_s * pace for i in runs if i not in spent_s), default=0.0)
        return max(sum(left.values()) / width, longest, max((left[i] for i in spent_s if i in left), default=0.0))
    return _placed_s(nodes, left, spent_s, width)


def _placed_s(nodes: Sequence[Node], left: Mapping[int, float], begun: Mapping[int, float], width: int) -> float:
    pending = {i: sum(d in left for d in nodes[i].spec.depends) for i in left}
    ends = [(left[i], i) for i in left if i in begun]
    ready = [(-nodes[i].remaining_s, i) for i in left if i not in begun and not pending[i]]
    heapq.heapify(ends)
    heapq.heapify(ready)
    now_s = 0.0
    while ends or ready:
        while ready and len(ends) < width:
            _, index = heapq.heappop(ready)
            heapq.heappush(ends, (now_s + left[index], index))
        now_s, index = heapq.heappop(ends)
        for dependent in nodes[index].dependents:
            if dependent in pending:
                pending[dependent] -= 1
                if not pending[dependent] and dependent not in begun:
                    heapq.heappush(ready, (-nodes[dependent].remaining_s, dependent))
    return now_s


def _left_s(expected_s: float, spent_s: float | None) -> float:
    if spent_s is None:
        return expected_s
    return expected_s - spent_s if spent_s < expected_s else spent_s * _OVERDUE
