"""A measuring process on a GPU of a node: the files that it is given, the words for it, its turns on the GPU.

Ray sends this module to the nodes, which have no buildd: it imports the standard library and other such modules. Knows
no kernel and no Ray; which GPU a job has alone, it is told.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from buildd.cluster.node_processes import adopt, descendants, end, memory_bytes
from buildd.host.gpu_lock import open_lock

BEAT_S = 1.0
"""Between two signs of life of a process that says nothing."""
_LOOK_S = 0.1
_READ_BYTES = 64 << 10
_ASK_S = 20.0
_QUERY = ("--query-gpu=index,uuid,name,driver_version,compute_cap", "--format=csv,noheader")


class NodeBench:
    """One measuring process. `take` and `stop` come on other threads than `run`."""

    def __init__(self) -> None:
        self._tool: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._lock = -1
        self._stopped = threading.Event()

    def run(self, spec: Mapping[str, Any], blobs: Mapping[str, bytes], device: str) -> Iterator[tuple[Any, ...]]:
        """Carry a bench out: yields ("refused", why), or ("gpu", line of nvidia-smi), ("begun",), then ("output",
        stream, bytes) and ("beat", memory) as they come, and at last ("ended", how).

        Args:
            spec: a `buildd.cluster.wire.Errand`, as a mapping.
            blobs: files of the bench's folder, by digest.
            device: the GPU, by its index on this machine or by its UUID.
        """
        environment = dict(spec["environment"])
        line = _line_of(device, environment)
        if not line:
            yield ("refused", f"nvidia-smi lists no GPU {device!r}" if device else "Ray has named no GPU")
            return
        yield ("gpu", line)
        uuid = line.split(",")[1].strip()
        environment |= {b"CUDA_VISIBLE_DEVICES": os.fsencode(uuid), b"CUDA_DEVICE_ORDER": b"PCI_BUS_ID"}
        self._folder = spec["folder"]
        before = adopt()
        began_s = time.monotonic()
        try:
            os.mkdir(self._folder, 0o700)
            self._keep(blobs)
            tool = subprocess.Popen(
                spec["argv"],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            yield ("refused", f"the measuring program cannot be started: {error.strerror or error}")
            return
        try:
            self._tool, self._lock = tool, open_lock(uuid)
            yield ("begun",)
            yield from self._watched(tool)
            while tool.poll() is None and not self._stopped.wait(_LOOK_S / 10):
                pass
        finally:
            end(tool, before)
            if self._lock >= 0:
                os.close(self._lock)
            shutil.rmtree(self._folder, ignore_errors=True)
        yield ("ended", {"status": tool.returncode, "figures": (time.monotonic() - began_s, 0.0, 0.0, 0)})

    def take(self, blobs: Mapping[str, bytes], data: bytes, *, takes: bool, leaves: bool) -> None:
        """Give words to the process.

        Args:
            blobs: files that it finds in its folder then, by digest.
            takes: lock the GPU first, which waits for other processes of this machine that measure there.
            leaves: unlock it at last.

        Raises: OSError, where a file has not arrived whole or cannot be written.
        """
        if takes and self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._keep(blobs)
        tool = self._tool
        if data and tool is not None and tool.stdin is not None:
            try:
                tool.stdin.write(data)
                tool.stdin.flush()
            except (OSError, ValueError):
                pass  # it has ended: the missing answer shows that
        if leaves and self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def stop(self) -> None:
        """End the process."""
        self._stopped.set()

    def _keep(self, blobs: Mapping[str, bytes]) -> None:
        for digest, content in blobs.items():
            if hashlib.sha256(content).hexdigest() != digest:
                raise OSError(0, "a file did not arrive whole")
            path = f"{self._folder}/{digest}"
            with open(f"{path}.new", "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o700)
            os.rename(f"{path}.new", path)

    def _watched(self, tool: subprocess.Popen[bytes]) -> Iterator[tuple[Any, ...]]:
        """What the process prints and signs of its life, until it has closed both streams or is to end."""
        beat_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(tool.stdout, selectors.EVENT_READ, "stdout")  # type: ignore[arg-type]
            selector.register(tool.stderr, selectors.EVENT_READ, "stderr")  # type: ignore[arg-type]
            while selector.get_map() and not self._stopped.is_set():
                for key, _ in selector.select(_LOOK_S):
                    if data := os.read(key.fd, _READ_BYTES):
                        yield ("output", key.data, data)
                    else:
                        selector.unregister(key.fileobj)
                if time.monotonic() - beat_s >= BEAT_S:
                    beat_s = time.monotonic()
                    yield ("beat", sum(map(memory_bytes, (tool.pid, *descendants(tool.pid)))))


def _line_of(device: str, environment: Mapping[bytes, bytes]) -> str:
    """What nvidia-smi says of a GPU; empty where it does not know it, or is not there."""
    wanted = device.partition(",")[0].strip()
    program = shutil.which("nvidia-smi", path=os.fsdecode(environment.get(b"PATH", os.fsencode(os.defpath))))
    if not wanted or program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, errors="replace", timeout=_ASK_S, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in done.stdout.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and (words[0] == wanted if wanted.isdecimal() else words[1].startswith(wanted)):
            return line
    return ""
