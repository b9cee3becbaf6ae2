"""A bridge to a cluster that does not exist: its nodes take jobs, tell of them, and end them after some seconds.

    slots_bridge.py RAY_BRIDGE DESCRIPTOR PLAN

PLAN is JSON: "nodes", how many; "cpus", of each; "job_s", how long a job takes; "beat_s", between two signs of life.
What comes back is what `tests/fakes/fake-cc` would have read. Stands where buildd starts the cluster's Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import sys
from collections import deque
from typing import Any

import msgspec

LOOK_S = 1.0


class Slots:
    """All nodes, and the jobs that wait for them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, plan: dict[str, Any]) -> None:
        self._reader, self._writer, self._plan = reader, writer, plan
        self._nodes = [f"node-{number}" for number in range(plan["nodes"])]
        self._free = deque(self._nodes * plan["cpus"])
        self._waiting: deque[dict[str, Any]] = deque()
        self._beats: dict[int, asyncio.TimerHandle] = {}

    def send(self, **message: Any) -> None:
        body = msgspec.msgpack.encode(message)
        self._writer.write(len(body).to_bytes(4, "little") + body)

    async def serve(self) -> None:
        self.send(type="ready", ray="simulated")
        self._look()
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "little")
            message = msgspec.msgpack.decode(await self._reader.readexactly(size))
            if message["type"] == "errand":
                self._waiting.append(message)
                self._place()

    def _look(self) -> None:
        cpus = self._plan["cpus"]
        nodes = [{"id": name, "name": name, "cpus": cpus, "memory_bytes": 1 << 50} for name in self._nodes]
        self.send(type="nodes", nodes=nodes)
        asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _place(self) -> None:
        while self._waiting and self._free:
            errand, node = self._waiting.popleft(), self._free.popleft()
            self.send(type="at", job=errand["job"], node=node)
            self.send(type="begun", job=errand["job"])
            self._beat(errand["job"])
            asyncio.get_running_loop().call_later(self._plan["job_s"], self._end, errand, node)

    def _beat(self, job: int) -> None:
        if job in self._beats:
            self.send(type="beat", job=job, memory_bytes=64 << 20)
        self._beats[job] = asyncio.get_running_loop().call_later(self._plan["beat_s"], self._beat, job)

    def _end(self, errand: dict[str, Any], node: str) -> None:
        self._beats.pop(errand["job"]).cancel()
        folder = os.fsdecode(errand["cwd"])
        read = {file["path"]: file["sha256"] for file in errand["inputs"]}
        spelled = {os.path.relpath(path, folder): digest for path, digest in read.items()}
        depfile = f"o: {' '.join(spelled)}\n".encode()
        content = hashlib.sha256(json.dumps(read).encode()).digest() * 512
        self.send(
            type="ended",
            job=errand["job"],
            status=0,
            figures=(self._plan["job_s"], self._plan["job_s"], 0.0, 64 << 20),
            outputs={**dict.fromkeys(errand["outputs"], content), **dict.fromkeys(errand["depfiles"], depfile)},
            read=spelled,
            rivals=list(read),
        )
        self._free.append(node)
        self._place()


async def main() -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[2])))
    with contextlib.suppress(asyncio.IncompleteReadError):  # the daemon has ended
        await Slots(reader, writer, json.loads(sys.argv[3])).serve()


if __name__ == "__main__":
    asyncio.run(main())
