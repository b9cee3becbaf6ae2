"""A measuring process on a GPU of a node: a tool that is given words and files while it runs. Knows no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from buildd.cluster import wire
from buildd.cluster.remote_tool import RemoteTool

GPU_PENDING_S = 60.0
"""A process that has no GPU after this long is given up: others of the cluster have them."""


class RemoteBench(RemoteTool):
    """A bench. Made by the engine.

    Args:
        feed: sends words to the bridge.
    """

    def __init__(self, *args: Any, feed: Callable[[wire.Feed], None]) -> None:
        super().__init__(*args, patience_s=GPU_PENDING_S)
        self.gpu = ""
        """What nvidia-smi says of its GPU; empty before it has one."""
        self._feed = feed
        self._fed: dict[int, asyncio.Future[None]] = {}
        self._number = 0

    async def give(
        self, data: bytes = b"", *, blobs: Mapping[str, bytes] | None = None, takes: bool = False, leaves: bool = False
    ) -> None:
        """Give words to the process, and wait until its node has done so or the process has ended.

        Args: as of `wire.Feed`.
        """
        self._number += 1
        number = self._number
        taken = self._fed[number] = asyncio.get_running_loop().create_future()
        self._feed(
            wire.Feed(job=self.number, number=number, blobs=dict(blobs or {}), data=data, takes=takes, leaves=leaves)
        )
        ended = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait((taken, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            del self._fed[number]

    def take(self, message: wire.FromBridge) -> None:
        match message:
            case wire.OnGpu():
                self.gpu = message.line
            case wire.Fed() if message.number in self._fed and not self._fed[message.number].done():
                self._fed[message.number].set_result(None)
            case _:
                pass
        super().take(message)
