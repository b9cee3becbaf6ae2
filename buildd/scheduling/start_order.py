"""The order in which the first compiles of a build start: that in which the build tool called them.

A build tool calls its most urgent compile first, and a wide one calls all at the same moment. Chance would decide which
of them is planned and looked up first, and so takes a CPU; with few long compiles the build's time depends on it. So
while nothing runs yet, a miss waits for the calls that came with it. Knows names and events, decides nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buildd.state.events import Missed
from protocol.messages import RequestId

LONGEST_S = 0.05
"""How long the first miss waits at most."""


class StartOrder:
    """The compiles that came while nothing ran, until each of them is known to be a hit or a miss.

    Args:
        feed: gives the state machine a miss, on the running loop.
    """

    def __init__(self, feed: Callable[[Missed], None]) -> None:
        self._feed = feed
        self._callers: dict[RequestId, int] = {}
        """The compiles on their way, and the process that called each."""
        self._held: list[Missed] = []
        self._timer: asyncio.TimerHandle | None = None

    def came(self, name: RequestId, caller: int, *, is_idle: bool) -> None:
        """A compile came.

        Args:
            is_idle: whether nothing runs.
        """
        if is_idle or self._callers:
            self._callers[name] = caller

    def holds(self, event: Missed) -> bool:
        """Whether a miss is kept, and given to the state machine later."""
        if event.request not in self._callers:
            return False
        self._held.append(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self._end)
        self._end_if_all_came()
        return True

    def ended(self, name: RequestId) -> None:
        """A request ended, or was never begun. It may be one that did not come as a compile."""
        if self._callers.pop(name, None) is not None:
            self._held = [event for event in self._held if event.request != name]
            self._end_if_all_came()

    def _end_if_all_came(self) -> None:
        if self._held and len(self._held) >= len(self._callers):
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        callers, self._callers = self._callers, {}
        held, self._held = self._held, []
        if len(held) > 1:
            parents: dict[int, int] = {}
            held.sort(key=lambda event: _ancestors(callers[event.request], parents))
        for event in held:
            self._feed(event)


def _ancestors(process: int, parents: dict[int, int]) -> list[int]:
    """The numbers of a process and its ancestors, the oldest first. Of two processes the one whose list is smaller was
    called first: a build tool starts one shell after the other, but chance decides which shell starts its compiler
    first.

    Args:
        parents: what is known already; it grows.
    """
    import psutil  # see `host.memory`

    found: list[int] = []
    while process and process not in found:
        found.append(process)
        if process not in parents:
            try:
                parents[process] = psutil.Process(process).ppid()
            except psutil.Error:  # it has ended
                parents[process] = 0
        process = parents[process]
    return found[::-1]
