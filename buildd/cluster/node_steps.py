"""The processes that a tool starts on a node, seen now and then: the steps of a compile that goes there whole.

Ray sends this module to the nodes, as `node_task`: it imports nothing outside the standard library. Knows no job. A
process that lives for less time than passes between two looks may be missed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

MOST_STEPS = 200
SHELLS = ("sh", "bash", "dash")
"""A driver starts its steps by them; they do no work of their own."""

Step = tuple[str, float, float, int]
"""Name; when it began (s after its tool) and how long it ran, as far as was seen; its most memory (bytes)."""


class _Seen:
    def __init__(self, began_s: float) -> None:
        self.name = ""
        self.began_s = began_s
        self.last_s = began_s
        self.peak_bytes = 0


class Steps:
    """The processes below one tool. Made when it starts."""

    def __init__(self) -> None:
        self._began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._seen: dict[tuple[int, int], _Seen] = {}
        """By process id and start: ids are used again."""

    def look(self, memory: Mapping[int, int]) -> None:
        """Take note of the processes that live now.

        Args:
            memory: process id -> resident bytes, of all descendants of the tool.
        """
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid, size_bytes in memory.items():
            name, ticks = _name_and_start(pid)
            if not name or (len(self._seen) >= MOST_STEPS and (pid, ticks) not in self._seen):
                continue
            seen = self._seen.setdefault((pid, ticks), _Seen(ticks / os.sysconf("SC_CLK_TCK")))
            seen.name, seen.last_s = name, now_s  # the name is the driver's until the process has become the step
            seen.peak_bytes = max(seen.peak_bytes, size_bytes)

    def found(self) -> tuple[Step, ...]:
        """The steps, in the order of their starts."""
        steps = (
            (seen.name, max(0.0, seen.began_s - self._began_s), max(0.0, seen.last_s - seen.began_s), seen.peak_bytes)
            for seen in self._seen.values()
            if seen.name not in SHELLS
        )
        return tuple(sorted(steps, key=lambda step: step[1]))


def _name_and_start(pid: int) -> tuple[str, int]:
    """A process's name and its start (ticks since the machine's); no name where it has gone, or has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return "", 0
    words = rest.split()
    name = head.partition("(")[2]
    return ("" if words[0] in "ZX" else name), int(words[19])
