"""Machines of their own for benchmarks of the shared tier, and a distance between them and its server.

A machine is a HOME with a store and a daemon. The distance is a proxy in a process of its own, which holds each piece
of data back for half of the round trip in each direction.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILDD = str(ROOT / ".venv/bin/buildd")


async def delay(port: int, target: int, delay_s: float) -> None:
    """A proxy that holds each piece of data back, without holding up the pieces behind it."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            loop = asyncio.get_running_loop()
            while True:
                due_s, data = await pieces.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        delivering = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(1 << 16):
                pieces.put_nowait((asyncio.get_running_loop().time() + delay_s, data))
        finally:
            pieces.put_nowait((asyncio.get_running_loop().time() + delay_s, b""))
            await delivering

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


@contextmanager
def delayed(url: str, rtt_s: float) -> Iterator[str]:
    """The URL with a proxy before its server."""
    target = url.rpartition(":")[2].split("/")[0]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = [sys.executable, __file__, str(port), target, str(rtt_s / 2)]
    process = subprocess.Popen(argv)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield url.replace(f":{target}", f":{port}")
    finally:
        process.terminate()
        process.wait()


@dataclass
class Machine:
    """A HOME with a store and a daemon of its own."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    program: str = BUILDD

    def __post_init__(self) -> None:
        (self.folder / "run").mkdir(parents=True, mode=0o700)
        (self.folder / ".config/buildd").mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder / "run"), **self.variables}
        return {"PATH": f"{Path(self.program).parent}:{os.environ['PATH']}", "LC_ALL": "C", **aws(), **own}

    def buildd(self, *arguments: str) -> str:
        argv = [self.program, *arguments]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def aws() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


if __name__ == "__main__":
    asyncio.run(delay(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
