"""The daemon's side of the bridge: starts that process, sends it messages, hands its messages on, ends it.

Knows no job. What a message means, the engine decides; here only the process and the connection count.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from buildd.cluster import wire
from buildd.errors import RunnerError

STARTUP_S = 60.0
"""How long it may take to connect to the cluster."""
SILENT_S = 8.0
"""The bridge tells of the nodes once a second. One that is silent for this long hangs."""
MOST_FRAME_BYTES = 1 << 30
_WAIT_S = 10.0
TUNING = {
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""With Ray's defaults a cut link is noticed after minutes. docs/ray.md says it for the nodes."""


class BridgeProcess:
    """One bridge. Made by `start`.

    Args:
        on_message: called on the loop with each message.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        said: IO[bytes],
        on_message: Callable[[wire.FromBridge], None],
    ) -> None:
        self.process = process
        self._reader, self._writer, self._said, self._on_message = reader, writer, said, on_message

    def send(self, message: wire.ToBridge) -> None:
        """Send a message; if the bridge is gone, `serve` says it."""
        if not self._writer.is_closing():
            self._writer.write(wire.frame(message))

    async def serve(self) -> str:
        """Hand its messages on until it ends or hangs; returns why that was, in words."""
        patience_s = STARTUP_S
        try:
            while True:
                async with asyncio.timeout(patience_s):
                    size = int.from_bytes(await self._reader.readexactly(wire.LENGTH_BYTES), "little")
                    if size > MOST_FRAME_BYTES:
                        return "the bridge sends what is no message"
                    body = await self._reader.readexactly(size)
                message = wire.message_of(body)
                patience_s = SILENT_S
                self._on_message(message)
                if isinstance(message, wire.Gone):
                    return message.reason
        except TimeoutError:
            return "the bridge does not answer"
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return f"the bridge sends what is no message: {error}"
        except (asyncio.IncompleteReadError, ConnectionError):
            return await asyncio.to_thread(self._last_words)

    def _last_words(self) -> str:
        """Why it has ended: the last line that it printed."""
        try:
            self.process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            return "the bridge closed its connection"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"the bridge ended with status {self.process.returncode}"

    async def close(self) -> None:
        """End the process, and with it all that it has running on the cluster."""
        self._writer.close()
        if self.process.poll() is None:
            self.process.kill()
        await asyncio.to_thread(self.process.wait)
        self._said.close()


async def start(
    python: str, address: str, environ: Mapping[str, str], on_message: Callable[[wire.FromBridge], None]
) -> BridgeProcess:
    """Start a bridge. Raises RunnerError."""
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    try:
        process = subprocess.Popen(
            [python, str(Path(__file__).with_name("ray_bridge.py")), str(theirs.fileno()), address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(theirs.fileno(),),
            env={"PATH": os.defpath, **environ, **{name: environ.get(name, value) for name, value in TUNING.items()}},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        said.close()
        raise RunnerError(
            f"{python} cannot be started: {error.strerror}",
            file=python,
            next_step="name the cluster's Python: python = ... below [ray] in config.toml",
        ) from error
    finally:
        theirs.close()
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:  # also where the daemon ends meanwhile: nobody else knows of the process
        ours.close()
        said.close()
        process.kill()
        process.wait()
        raise
    return BridgeProcess(process, reader, writer, said, on_message)
