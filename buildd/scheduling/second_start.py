"""Begins a job that takes too long on its node a second time, on another one; the first good end counts.

Knows when that is worth it. Whether a result is believed is `away_job`'s decision; the job stays one job.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from buildd.cluster.parcel import new_folder
from buildd.cluster.ray_engine import RayEngine
from buildd.processes.launch import Launch
from buildd.scheduling.carriage import Carriage

LEAST_S = 3.0
"""A job that has run for less is not begun again: its end may be on its way."""
SLOWNESS = 2.0
"""A job may take so many times as long as expected."""
LOOK_S = 1.0


class SecondStart:
    """One job, on one node or on two. Used once.

    Args:
        first: the job's way to its first node; not begun yet.
        launch_in: makes the launch with another folder on the node.
        in_pool: runs a function that touches files in a worker thread.
        on_line: is told a line of the second start, once that counts, and the lines that the first had told.
        expected_s: how long the job takes, as far as is known.
    """

    def __init__(
        self,
        engine: RayEngine,
        first: Carriage,
        launch_in: Callable[[str], Launch],
        in_pool: Callable[..., Awaitable[Any]],
        on_line: Callable[[Counter[tuple[str, str]], str, str], None],
        expected_s: float,
    ) -> None:
        self.carriages = [first]
        """The last one counts, once `run` has ended."""
        self._engine, self._launch_in, self._in_pool, self._on_line = engine, launch_in, in_pool, on_line
        self._patience_s = max(LEAST_S, SLOWNESS * expected_s)

    async def run(self) -> Carriage:
        """Run the job; returns the way that counts. The other one is ended."""
        first = self.carriages[0]
        running = {asyncio.create_task(first.run()): first}
        counts = first
        try:
            while running:
                ended, _ = await asyncio.wait(running, timeout=self._left_s(first), return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    counts = running.pop(task)
                    task.result()
                    if counts.good:
                        return self._decided(counts)
                if not ended and self._is_due(first):
                    second = await self._again(first)
                    self.carriages.insert(0, second)  # the first one counts as yet
                    running[asyncio.create_task(second.run())] = second
            return self._decided(first)
        finally:
            for task, carriage in running.items():
                carriage.end()
                task.cancel()

    def _left_s(self, first: Carriage) -> float | None:
        """How long to wait before the next look; None where there is nothing to look at."""
        if len(self.carriages) > 1:
            return None
        begun_s = first.tool.begun_s if first.tool is not None else 0.0
        return max(LOOK_S, self._patience_s - (time.monotonic() - begun_s)) if begun_s else self._patience_s

    def _is_due(self, first: Carriage) -> bool:
        tool = first.tool
        if len(self.carriages) > 1 or tool is None or tool.done or not tool.begun_s or tool.recalled:
            return False
        return time.monotonic() - tool.begun_s >= self._patience_s and self._engine.has_room_beside(tool)

    async def _again(self, first: Carriage) -> Carriage:
        assert first.tool is not None
        folder = new_folder()
        launch: Launch = await self._in_pool(self._launch_in, folder)
        parcel = replace(first.parcel, folder=folder, node="", beside=first.tool.node)
        return first.again(launch, parcel, lambda stream, text: None)

    def _decided(self, counts: Carriage) -> Carriage:
        if counts is not self.carriages[-1]:
            self.carriages.reverse()
        if counts.good and len(self.carriages) > 1 and counts.parcel.beside:
            self.carriages[0].end()
            told = Counter(self.carriages[0].lines)
            for stream, text in counts.lines:
                self._on_line(told, stream, text)
        return counts
