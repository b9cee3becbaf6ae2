"""The bridge: a program that runs under the cluster's own Python and is the only one that imports ray.

    PYTHON ray_bridge.py DESCRIPTOR ADDRESS

It takes errands from the daemon over a socket (`buildd.cluster.wire` has the messages; each is its length in four bytes
and MessagePack), gives each to Ray as a task, and sends back what the task says. Ray ends a driver whose head is gone,
and ties it to one version of Python: so this is no part of the daemon. Imports only the standard library, ray, and
msgpack, which ray needs itself.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

LOOK_S = 1.0
"""Between two looks at the cluster's nodes."""
PATIENCE_S = 5.0
"""A head that does not answer for this long is gone."""
MOST_BESIDE_BYTES = 64 << 10
"""Larger contents travel through Ray's object store."""
_LENGTH_BYTES = 4


class Bridge:
    """One connection to the daemon, and one to the cluster."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ray: Any, task: Any, bench: Any
    ) -> None:
        self._reader, self._writer, self._ray = reader, writer, ray
        self._msgpack = importlib.import_module("msgpack")
        self._task, self._bench = task, bench
        self._streams: dict[int, Any] = {}
        self._benches: dict[int, Any] = {}
        """The actors of jobs that have a GPU."""
        self._own = str(ray.get_runtime_context().get_node_id())

    def send(self, tag: str, **fields: Any) -> None:
        body = self._msgpack.packb({"type": tag, **fields}, use_bin_type=True)
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "little") + body)

    async def serve(self) -> None:
        """Carry errands out until the daemon is gone."""
        look = asyncio.create_task(self._look())
        serving: set[asyncio.Task[None]] = set()
        while True:
            try:
                size = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "little")
                body = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                look.cancel()
                return
            message = self._msgpack.unpackb(body, raw=False)
            bench = self._benches.get(message["job"])
            if message["type"] in ("errand", "feed"):
                work = self._carry_out(message) if message["type"] == "errand" else self._feed(bench, message)
                one = asyncio.create_task(work)
                serving.add(one)
                one.add_done_callback(serving.discard)
            elif bench is not None and not message["force"]:
                bench.stop.remote()
            elif bench is not None:
                await asyncio.to_thread(self._ray.kill, bench)
            elif (stream := self._streams.get(message["job"])) is not None:
                # A worker that hangs does not see a gentle end.
                await asyncio.to_thread(self._ray.cancel, stream, force=message["force"])

    async def _look(self) -> None:
        """Tell the daemon of the nodes, again and again: it also shows that the head and this process live."""
        while True:
            try:
                nodes = await asyncio.wait_for(asyncio.to_thread(self._ray.nodes), PATIENCE_S)
            except Exception as error:  # the edge: whatever ray raises, the cluster cannot be used
                self.send("gone", reason=f"the head does not answer ({type(error).__name__})")
                await self._writer.drain()
                os._exit(1)
            self.send(
                "nodes",
                nodes=[
                    {
                        "id": node["NodeID"],
                        "name": node["NodeName"] or node["NodeID"][:8],
                        "cpus": int(node["Resources"].get("CPU", 0)),
                        "memory_bytes": int(node["Resources"].get("memory", 0)),
                        "gpus": int(node["Resources"].get("GPU", 0)),
                    }
                    for node in nodes
                    if node["Alive"] and node["NodeID"] != self._own
                ],
            )
            await asyncio.sleep(LOOK_S)

    async def _carry_out(self, errand: dict[str, Any]) -> None:
        job, blobs = errand["job"], errand.pop("blobs")
        try:
            if sum(map(len, blobs.values())) > MOST_BESIDE_BYTES:
                blobs = await asyncio.to_thread(self._ray.put, blobs)
            if errand["gpus"]:
                await self._measure(errand, blobs)
                return
            # The daemon fills the machine that it runs on itself.
            others = f"!in({','.join((self._own, *errand['avoided']))})"
            stream = self._task.options(
                num_cpus=errand["cpus"],
                memory=errand["memory_bytes"],
                scheduling_strategy="SPREAD",
                label_selector={"ray.io/node-id": errand["node"] or others},
            ).remote(errand, blobs)
            self._streams[job] = stream
            async for reference in stream:
                self._pass_on(job, await reference)
        except Exception as error:  # the edge: every fault of the cluster means that the job is lost
            self.send("lost", job=job, reason=_in_words(error))
        finally:
            self._streams.pop(job, None)

    async def _measure(self, errand: dict[str, Any], blobs: Any) -> None:
        """A job that has a GPU of a node alone, until its process has ended."""
        job = errand["job"]
        bench = self._bench.options(
            num_cpus=0, num_gpus=errand["gpus"], label_selector={"ray.io/node-id": errand["node"]}
        ).remote()
        self._benches[job] = bench
        try:
            async for reference in bench.run.options(num_returns="streaming").remote(errand, blobs):
                self._pass_on(job, await reference)
        finally:
            del self._benches[job]
            await asyncio.to_thread(self._ray.kill, bench)  # else its GPU is another's only after a while

    async def _feed(self, bench: Any, words: dict[str, Any]) -> None:
        if bench is None:
            return  # it has ended meanwhile
        try:
            await bench.take.remote(words["blobs"], words["data"], words["takes"], words["leaves"])
        except Exception as error:  # the edge: the job's own stream says that it is lost
            print(_in_words(error), file=sys.stderr, flush=True)
            return
        self.send("fed", job=words["job"], number=words["number"])

    def _pass_on(self, job: int, said: tuple[Any, ...]) -> None:
        match said:
            case ("at", node):
                self.send("at", job=job, node=node)
            case ("gpu", line):
                self.send("gpu", job=job, line=line)
            case ("begun",):
                self.send("begun", job=job)
            case ("refused", why):
                self.send("unfit", job=job, reason=why)
            case ("lacks", digests):
                self.send("lacks", job=job, digests=digests)
            case ("output", stream, data):
                self.send("output", job=job, stream=stream, data=data)
            case ("beat", memory_bytes):
                self.send("beat", job=job, memory_bytes=memory_bytes)
            case ("late",):
                self.send("late", job=job)
            case ("ended", found):
                self.send("ended", job=job, **found)


def _in_words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}"[:300]


def _for_nodes(*names: str) -> list[Any]:
    """The modules that Ray takes to the nodes. They import each other by their full names; nothing else is imported
    from the folder that holds buildd, which may hold packages for another Python."""
    folder = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, folder)
    try:
        return [importlib.import_module(f"buildd.{name}") for name in names]
    finally:
        sys.path.remove(folder)


async def main(descriptor: int, address: str) -> None:
    channel = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=channel)
    ray = importlib.import_module("ray")
    modules = _for_nodes("cluster.node_task", "cluster.node_inputs", "cluster.node_steps", "cluster.node_bench")
    node_task, node_inputs, node_steps, node_bench = modules
    for module in (*modules, *_for_nodes("cluster.node_files", "cluster.node_processes", "host.gpu_lock")):
        ray.cloudpickle.register_pickle_by_value(module)
    entry = Path(__file__).with_name("node_root.py").read_text(encoding="utf-8")
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="buildd")

    def carry_out(errand: dict[str, Any], blobs: dict[str, bytes]) -> Any:
        context = importlib.import_module("ray").get_runtime_context()
        yield ("at", context.get_node_id())
        yield from node_task.run(
            errand,
            lambda spec, digest_of: node_inputs.lay_out(spec, blobs, digest_of, entry),
            node_steps.Steps,
        )

    class Bench:
        """One measuring process on one GPU."""

        def __init__(self) -> None:
            self._bench = node_bench.NodeBench()

        def run(self, errand: dict[str, Any], blobs: dict[str, bytes]) -> Any:
            context = importlib.import_module("ray").get_runtime_context()
            yield ("at", context.get_node_id())
            yield from self._bench.run(errand, blobs, os.environ.get("CUDA_VISIBLE_DEVICES", ""))

        def take(self, blobs: dict[str, bytes], data: bytes, takes: bool, leaves: bool) -> None:
            self._bench.take(blobs, data, takes=takes, leaves=leaves)

        def stop(self) -> None:
            self._bench.stop()

    # A lost job is retried by the daemon alone: it knows what the job has said already.
    task = ray.remote(max_retries=0, num_returns="streaming")(carry_out)
    # It is told to end, and takes words, while it runs.
    bench = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=4)(Bench)
    bridge = Bridge(reader, writer, ray, task, bench)
    bridge.send("ready", ray=str(ray.__version__))
    await bridge.serve()
    os._exit(0)  # an orderly end of ray takes seconds, and its jobs are to end now


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
    except Exception as failure:  # the edge: the daemon reads the reason
        print(_in_words(failure), file=sys.stderr, flush=True)
        os._exit(1)
