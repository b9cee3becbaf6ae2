"""A measuring process on a node of a cluster, as a bench talks with one here; the files that a question names go along.

Knows the engine's benches and one GPU of a node; nothing of candidates.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from buildd.cluster.parcel import Parcel, new_folder
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.remote_bench import RemoteBench
from buildd.processes.launch import Launch
from buildd.profiling.devices import Gpu
from buildd.profiling.gpus import gpu_of
from buildd.profiling.measuring_process import MeasuringProcess, PlaceLost, ending_words
from protocol.messages import LeaseId
from protocol.session import HeldLease

CONNECT_S = 30.0
_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH")
"""Variables of this machine's GPUs and folders."""


class FarProcess(MeasuringProcess):
    """A measuring process on a node."""

    def __init__(self, bench: RemoteBench, lines: asyncio.Queue[str], sent: set[str]) -> None:
        super().__init__()
        self._bench, self._lines, self._sent = bench, lines, sent
        self._telling: set[asyncio.Task[None]] = set()

    async def ask(self, question: Sequence[str]) -> None:
        blobs: dict[str, bytes] = {}
        words = []
        for word in question:
            if os.path.isabs(word):
                with suppress(OSError):  # then the process says that it is not there
                    digest, content = await asyncio.to_thread(_content, word)
                    if digest not in self._sent:
                        blobs[digest] = content
                    word = f"{self._bench.parcel.folder}/{digest}"
            words.append(os.fsencode(word) + b"\0")
        self._sent.update(blobs)
        await self._bench.give(b"".join(words), blobs=blobs)

    def tell(self, words: bytes) -> None:
        told = asyncio.ensure_future(self._bench.give(words))
        self._telling.add(told)
        told.add_done_callback(self._telling.discard)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the GPU's lock on its machine."""
        await self._bench.give(takes=True)
        try:
            yield
        finally:
            leaving = asyncio.ensure_future(self._bench.give(leaves=True))
            self._telling.add(leaving)
            leaving.add_done_callback(self._telling.discard)

    async def last_words(self) -> str:
        ended = await self._bench.wait()
        return ending_words(-ended.signal or ended.status, ended.stderr)

    async def end(self) -> None:
        self._bench.kill()
        await self._bench.wait()

    async def _line(self) -> bytes | None:
        line = asyncio.ensure_future(self._lines.get())
        ended = asyncio.ensure_future(self._bench.wait())
        try:
            await asyncio.wait((line, ended), return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result().encode(errors="surrogateescape") + b"\n"
        finally:
            line.cancel()
            ended.cancel()
        if self._bench.why and not self._bench.recalled:
            raise PlaceLost(self._bench.why)
        return None


class FarPlace:
    """One GPU of a node, for one lane: starts processes there, and gives turns to the one that lives.

    Args:
        gpu: as its node described it; which of the node's GPUs of that model it is, Ray says.
        command: the measuring program.
        environ: of the processes; only what measuring needs of it goes there.
    """

    def __init__(self, engine: RayEngine, gpu: Gpu, command: Sequence[str], environ: dict[str, str]) -> None:
        self._engine, self._gpu, self._command = engine, gpu, tuple(command)
        self._environment = tuple(
            (name, value)
            for name, value in sorted({"CUDA_DEVICE_MAX_CONNECTIONS": "1", **environ}.items())
            if name in ("PATH", "LD_LIBRARY_PATH") or (name.startswith("CUDA_") and name not in _CUDA)
        )
        self._process: FarProcess | None = None
        self.shown = gpu.where
        """The GPU that was had last, for people."""

    async def start(self) -> FarProcess:
        """Start a process. Raises PlaceLost."""
        if not await self._engine.connected(CONNECT_S):
            raise PlaceLost(self._engine.problem or "the cluster does not answer")
        if all(node.id != self._gpu.node for node in self._engine.nodes):
            raise PlaceLost(f"{self._gpu.host} is gone", final=True)
        digest, program = await asyncio.to_thread(_content, self._command[0])
        folder, lines = new_folder(), asyncio.Queue[str]()

        def hear(stream: str, text: str) -> None:
            if stream == "stdout":
                lines.put_nowait(text)

        bench = self._engine.measure(
            Launch((f"{folder}/{digest}", *self._command[1:]), folder, self._environment, timeout_s=0.0),
            Parcel(folder=folder, cpus=0, gpus=1, node=self._gpu.node, blobs={digest: program}),
            hear,
        )
        try:
            await bench.settled.wait()
            if not bench.begun_s:
                raise PlaceLost(bench.why or "it was ended", final=bench.unfit)
            had = gpu_of(bench.gpu)
            if had is None or (had.name, had.driver) != (self._gpu.name, self._gpu.driver):
                raise PlaceLost(f"{self._gpu.host} has a GPU of another model: {bench.gpu}", final=True)
        except BaseException:
            bench.kill()
            raise
        self.shown = f"{self._gpu.host}/{had.index}"
        self._process = FarProcess(bench, lines, {digest})
        return self._process

    @asynccontextmanager
    async def on(self, gpu: Gpu, limit_s: float) -> AsyncIterator[HeldLease]:
        """The turn of the process that was started last: nothing else of buildd's measures on its GPU meanwhile."""
        assert self._process is not None
        async with self._process.turn():
            yield HeldLease(LeaseId(""))


def _content(path: str) -> tuple[str, bytes]:
    content = Path(path).read_bytes()
    return hashlib.sha256(content).hexdigest(), content
