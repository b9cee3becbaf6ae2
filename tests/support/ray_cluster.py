"""A Ray cluster of several nodes on this machine: a head without CPUs, to which drivers connect, and worker nodes.

Each node is a process group of its own, so that a test can kill, stop or end one by its id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from buildd.cluster.bridge import TUNING
from tests.support.node_network import FAR_IP, NEAR_IP, NodeNetwork
from tests.support.waiting import until

DEADLINE_S = 120.0
SMALL_DISK = """
set -e
mount -t tmpfs -o "size=$0m" none /mnt
mkdir /mnt/written /mnt/work
mount -t overlay -o lowerdir=/tmp,upperdir=/mnt/written,workdir=/mnt/work none /tmp
exec "$@"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _has_started(log: Path) -> bool:
    return b"Ray runtime started" in log.read_bytes()


class RayNode:
    """One node."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self.process, self.name = process, name

    def below(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def find(self, word: str) -> list[psutil.Process]:
        """Its processes whose program's name or title has a word."""
        found = []
        for each in self.below():
            with contextlib.suppress(psutil.Error):
                if word in os.path.basename(each.exe()) or word in " ".join(each.cmdline()[:1]):
                    found.append(each)
        return found

    def seen(self, path: Path) -> Path:
        """Where this machine finds what the node finds at an absolute path."""
        return Path(f"/proc/{self.process.pid}/root{path}")

    def end(self) -> None:
        """Kill all of it at once, as if its machine lost its power."""
        below = self.below()
        for each in (psutil.Process(self.process.pid), *below) if self.process.poll() is None else below:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        psutil.wait_procs(below, DEADLINE_S)


class RayCluster:
    """A cluster. Ends with `close`.

    Args:
        network: its head is on the near host of it. None: all is on this machine's own loopback.
    """

    def __init__(self, network: NodeNetwork | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets have long paths
        self.port = free_port()
        self.network = network
        self.address = f"{NEAR_IP if network else '127.0.0.1'}:{self.port}"
        self.python = str(network.python(self.folder)) if network else sys.executable
        """The Python of bridges."""
        self.nodes: dict[str, RayNode] = {}
        self._start(
            "head",
            ["--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.folder}"],
            prefix=self._host(far=False),
        )

    def add(
        self,
        name: str,
        cpus: int = 2,
        *,
        environ: dict[str, str] | None = None,
        hidden: Path | None = None,
        disk_mib: int = 0,
        far: bool = False,
        gpus: int = 0,
    ) -> RayNode:
        """Start a worker node, and wait until it serves. For it, the folder `hidden` is empty.

        Args:
            disk_mib: what it writes below /tmp is on a disk of this size; 0: it is this machine's /tmp.
            far: it is on the far host of the network.
            gpus: how many Ray gives away there; they need not exist.
        """
        # With a user namespace also root has one here: such a node allows what any user's node allows.
        prefix = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)] if hidden else []
        if disk_mib:
            prefix = ["unshare", "-rm", "sh", "-c", SMALL_DISK, str(disk_mib)]
        options = [f"--address={self.address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        return self._start(name, options, environ, [*self._host(far=far), *prefix], far=far)

    def _host(self, *, far: bool) -> list[str]:
        return [] if self.network is None else self.network.inside(self.network.far if far else self.network.near)

    def _start(
        self,
        name: str,
        options: list[str],
        environ: dict[str, str] | None = None,
        prefix: list[str] | None = None,
        *,
        far: bool = False,
    ) -> RayNode:
        if self.network is not None:
            options = [f"--node-ip-address={FAR_IP if far else NEAR_IP}", *options]
        log = self.folder / f"{name}.start"
        with open(log, "wb") as said:
            process = subprocess.Popen(
                [
                    *(prefix or ()),
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
                    *("--object-store-memory=80000000", f"--node-name={name}", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **TUNING, **(environ or {})},
                start_new_session=True,
            )
        node = self.nodes[name] = RayNode(process, name)
        with contextlib.suppress(TimeoutError):
            until(lambda: _has_started(log) or process.poll() is not None, timeout_s=DEADLINE_S)
        if not _has_started(log):
            text = log.read_text(errors="replace")
            self.close()
            raise RuntimeError(f"the node {name} did not start:\n{text}")
        return node

    def close(self) -> None:
        for node in self.nodes.values():
            node.end()
        shutil.rmtree(self.folder, ignore_errors=True)
