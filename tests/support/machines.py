"""Machines with kernels of their own on this one: a server of files, and clients that mount its folder by NFS.

The kernels are User-Mode Linux (Debian: user-mode-linux, nfs-kernel-server, nfs-common), so clients cache names and
attributes as real ones do, a server can lose power, and nothing of it touches this machine's kernel. Their roots are
private copies of this machine's, so programs and sources have the same paths. Only root can make their network.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.machine_init import MODULES, PORT, SHARED, STATUS
from tests.support.paths import ROOT

__all__ = ["SHARED", "Machine", "Machines", "why_none"]
_KERNEL = "linux.uml"
_NET = "10.79.0"
_BOOT_S = 60.0
_DISK_BYTES = 4 << 30
_MEMORY = "1536M"
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_ALL_END = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL", "--")
"""A kernel's helpers would outlive it."""


def why_none() -> str:
    """Why no machines can be had here; empty where they can."""
    if os.getuid() != 0:
        return "only root can make the network of machines"
    for tool, package in ((_KERNEL, "user-mode-linux"), ("exportfs", "nfs-kernel-server"), ("mount.nfs", "nfs-common")):
        if shutil.which(tool, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") is None:
            return f"no {tool} (Debian: apt install {package})"
    return "" if MODULES.is_dir() else f"no {MODULES}"


class Machine:
    """One machine. `Machines` starts and ends it."""

    def __init__(self, folder: Path, network: Sequence[str], number: int, role: str, options: str) -> None:
        self.address, self.log = f"{_NET}.{number}", folder / f"machine{number}.log"
        self._network, self._tap, self._folder = network, f"tap{number}", folder
        self._disk, self._role, self._options = folder / f"disk{number}", role, options
        _call(*network, "ip", "tuntap", "add", self._tap, "mode", "tap")
        _call(*network, "ip", "link", "set", self._tap, "master", "switch", "up")
        if role == "server":
            with self._disk.open("wb") as disk:
                disk.truncate(_DISK_BYTES)
            _call("mkfs.ext4", "-q", str(self._disk))
        self.power_on()

    def power_on(self) -> None:
        """Start it. `wait_ready` waits until it answers."""
        disk = [f"ubd0={self._disk}"] if self._role == "server" else []
        words = [
            *(*self._network, *_ENDS_WITH_US, *_ALL_END, _KERNEL, f"mem={_MEMORY}", "root=none", "rootfstype=hostfs"),
            *("rootflags=/", "ro", "quiet", "con0=null,fd:1", "con=null", *disk),
            *(f"vec0:transport=tap,ifname={self._tap},depth=128,gro=1", f"init={sys.executable}", "--"),
            *(str(Path(__file__).with_name("machine_init.py")), self._role, self.address, f"{_NET}.2", self._options),
            secrets.token_hex(64),
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env={"PATH": os.environ["PATH"], "TMPDIR": "/dev/shm", "HOME": str(self._folder)},
            )  # fmt: skip

    def power_off(self) -> None:
        """End it as a loss of power does: nothing is written any more, nobody is told."""
        _end(self._process)

    def wait_ready(self) -> None:
        """Raises RuntimeError, with what the machine said, where it does not come up."""
        deadline_s = time.monotonic() + _BOOT_S
        while self.call("true")[0] != 0:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self._role}: no answer: {self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def start(
        self, *words: str | Path, cwd: Path | str = "/", environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A command, running there; it ends with the process that is returned, which says and returns what it does."""
        asked = {"words": [str(word) for word in words], "cwd": str(cwd), "environment": dict(environment or {})}
        relay = [sys.executable, "-S", "-P", "-m", __name__, self.address, json.dumps(asked)]
        return subprocess.Popen(
            [*self._network, *_ENDS_WITH_US, *relay], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def call(
        self,
        *words: str | Path,
        cwd: Path | str = "/",
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> tuple[int, str]:
        """Status and output of a command. Raises subprocess.TimeoutExpired."""
        process = self.start(*words, cwd=cwd, environment=environment)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.returncode, said


class Machines:
    """A server and its clients. A context manager: its end leaves nothing behind.

    Args:
        folder: for disks and logs.
        clients: how many.
        options: of the mount; see nfs(5).
    """

    def __init__(self, folder: Path, clients: int = 2, options: str = "vers=4.2") -> None:
        self._stack = contextlib.ExitStack()
        holder = subprocess.Popen([*_ENDS_WITH_US, "unshare", "--net", "sleep", "infinity"])
        self._stack.callback(_end, holder)
        self._network = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
        try:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            for words in ("add switch type bridge", "set switch up", "set lo up"):
                _call(*self._network, "ip", "link", *words.split())
            _call(*self._network, "ip", "addr", "add", f"{_NET}.1/24", "dev", "switch")
            self.server = self._add(folder, 2, "server", options)
            self.server.wait_ready()
            self.clients = [self._add(folder, 3 + number, "client", options) for number in range(clients)]
            for client in self.clients:
                client.wait_ready()
        except BaseException:
            self.close()
            raise

    def _add(self, folder: Path, number: int, role: str, options: str) -> Machine:
        machine = Machine(folder, self._network, number, role, options)
        self._stack.callback(machine.power_off)
        return machine

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _relay(address: str, asked: str) -> int:
    """Have a command run on a machine, say what it says, and return its status; 255 without an answer."""
    try:
        connection = socket.create_connection((address, PORT), timeout=5.0)
    except OSError:
        return 255
    with connection:
        connection.settimeout(None)
        connection.sendall(asked.encode() + b"\n")
        said = b""
        while text := connection.recv(1 << 16):
            said += text
            whole, mark, status = said.partition(STATUS)
            if mark and status.endswith(b"\n"):
                _say(whole)
                return int(status) % 256
            # What may be the beginning of the mark is kept.
            kept = len(said) if not mark else 0
            shown = max(0, kept - len(STATUS))
            _say(said[:shown])
            said = said[shown:]
    return 255


def _say(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(_relay(*sys.argv[1:]))
