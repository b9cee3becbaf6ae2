"""Memory of process trees, sampled while they run, and the ending of trees whose spawner is gone.

Knows /proc only: neither jobs nor budgets. A thread of its own takes the samples: a short job is seen once or never
(its ru_maxrss is enough), a long one two to four times a second.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from buildd.host.proc import all_pids, children_of, descendants_of, stat_of

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LARGE_BYTES = 32 << 20
_GROWN_S = 0.5


def next_sample_s(age_s: float) -> float:
    """How long until a tree of this age is looked at again."""
    if age_s < 0.05:
        return 0.05
    return 0.25 if age_s < 10 else 0.5


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def proportional_bytes(pid: int) -> int | None:
    """Resident memory with shared pages divided by their users; None where the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def tree_bytes(pids: list[int], peak_bytes: int = 0) -> int:
    """Memory of several processes together.

    The sum of resident sizes counts shared pages more than once, but is cheap; the proportional size walks the page
    tables (10 ms for 2 GiB) and stops the process meanwhile. So that is read only where it can matter: for two large
    processes and a sum above the `peak_bytes` known so far.
    """
    sizes = {pid: resident_bytes(pid) for pid in pids}
    total = sum(sizes.values())
    large = [pid for pid, size in sizes.items() if size >= _LARGE_BYTES]
    if total <= peak_bytes or len(large) < 2:
        return total
    for pid in large:
        exact = proportional_bytes(pid)
        if exact is not None:
            total -= sizes[pid] - exact
    return total


class _Tree:
    __slots__ = ("due_s", "now_bytes", "peak_bytes", "seen", "started_s")

    def __init__(self, now_s: float) -> None:
        self.started_s = now_s
        self.due_s = now_s + next_sample_s(0)
        self.now_bytes = 0
        self.peak_bytes = 0
        self.seen: tuple[float, list[int]] = (0.0, [])
        """When (CLOCK_BOOTTIME, s) which processes were there."""


class Sampler:
    """Samples the trees of running tools. The thread exists from the first tree on and sleeps while there is none.

    Its public methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._trees: dict[int, _Tree] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.keeper = 0
        """The process that adopts orphans of the trees; 0 where none does."""

    def add(self, pid: int) -> None:
        """Watch the tree below a process that leads a session of its own."""
        with self._changed:
            self._trees[pid] = _Tree(time.monotonic())
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._loop, name="memory-sampler", daemon=True)
                self._thread.start()
            elif len(self._trees) == 1:
                self._changed.notify()

    def remove(self, pid: int) -> int:
        """Stop watching; the largest size that was seen (bytes), 0 where none was."""
        with self._changed:
            tree = self._trees.pop(pid, None)
        return 0 if tree is None else tree.peak_bytes

    def now_bytes(self, pid: int) -> int:
        """The tree's size at the last look, at most half a second ago; the first look is after 50 ms."""
        tree = self._trees.get(pid)
        return 0 if tree is None else tree.now_bytes

    def seen(self, pid: int) -> tuple[float, list[int]]:
        """(CLOCK_BOOTTIME of the last look, the processes that it saw)."""
        tree = self._trees.get(pid)
        return (0.0, []) if tree is None else tree.seen

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    now_s = time.monotonic()
                    next_s = min((tree.due_s for tree in self._trees.values()), default=None)
                    if next_s is not None and next_s <= now_s:
                        break
                    self._changed.wait(None if next_s is None else next_s - now_s)
                if self._closed:
                    return
                # Trees that are due soon are included: one look at the keeper's children serves all.
                due = {pid: tree for pid, tree in self._trees.items() if tree.due_s <= now_s + 0.02}
            # Only tools that run for a while leave processes to the keeper; most tools end within a moment.
            grown = any(now_s - tree.started_s > _GROWN_S for tree in due.values())
            orphans = self._orphans() if grown else {}
            for pid, tree in due.items():
                self._look(pid, tree, orphans.get(pid, []))

    def _look(self, pid: int, tree: _Tree, orphans: list[int]) -> None:
        seen_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        pids = [pid, *descendants_of(pid), *orphans]
        tree.now_bytes = tree_bytes(pids, tree.peak_bytes)
        tree.peak_bytes = max(tree.peak_bytes, tree.now_bytes)
        tree.seen = (seen_s, pids)
        now_s = time.monotonic()
        tree.due_s = now_s + next_sample_s(now_s - tree.started_s)

    def _orphans(self) -> dict[int, list[int]]:
        """Session -> processes of it that came to the keeper, with what is below them."""
        found: dict[int, list[int]] = {}
        if self.keeper:
            for pid in children_of(self.keeper):
                if pid not in self._trees and (stat := stat_of(pid)) is not None:
                    found.setdefault(stat[1], []).extend([pid, *descendants_of(pid)])
        return found


def end_all(sessions: set[int], seen: list[tuple[float, list[int]]], patience_s: float = 2.0) -> None:
    """Kill all processes of some sessions, and those seen in them that have moved to sessions of their own.

    Used when their subreaper was killed. Blocks until none is left, for `patience_s` at most.

    Args:
        sessions: ids of sessions.
        seen: samples of a `Sampler`; a process counts as the one that was seen if it is older than the sample.
    """
    looked = {pid: seen_s for seen_s, pids in seen for pid in pids}
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        left = False
        for pid in all_pids():
            stat = stat_of(pid)
            if stat is None or pid == os.getpid():
                continue
            if stat[1] in sessions or (pid in looked and stat[2] / _TICKS_PER_S <= looked[pid]):
                sessions.add(stat[1])
                try:
                    os.kill(pid, signal.SIGKILL)
                    left = True
                except (ProcessLookupError, PermissionError):
                    pass
        if not left:
            return
        time.sleep(0.005)
