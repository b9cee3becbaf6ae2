"""A user for tests, campaigns and benchmarks: home, store, runtime folder and daemon in one folder.

Knows the command line, the control socket and /proc, nothing of what is built. Whatever happens, `end` leaves no
process behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.client import Client, find
from protocol.endpoint import DaemonLock, open_pidfd, runtime_folder
from protocol.errors import ProtocolError
from protocol.session import Route
from tests.support.own_programs import keep_programs, lend_programs
from tests.support.paths import ROOT

_END_S = 40.0
_STARTING_S = 5.0
_POLL_S = 0.005
CLI_SERVER = "buildd-cli"
"""What the process that commands are handed to is called, and each command in it."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    command: str

    @property
    def lives(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it, unless its pid is somebody else's by now."""
        if self.lives:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass


class User:
    """One user of buildd, apart from all others on this machine.

    Args:
        folder: must exist; its path has to be short, sockets are below it.
        environment: variables of theirs.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.run_folder, self.store = folder / "run", folder / "store"
        for sub in (self.run_folder, folder / "home"):
            sub.mkdir(mode=0o700, exist_ok=True)
        lend_programs(self.store)
        self.environ = {
            "HOME": str(folder / "home"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "BUILDD_RUNTIME_DIR": str(self.run_folder),
            "BUILDD_DIR": str(self.store),
            # Ends by itself even where nobody is left to say so.
            "BUILDD_IDLE_TIMEOUT_S": "300",
            # The code beside this file, whatever is installed; what it needs may stand on this process's path.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            **(environment or {}),
        }

    def start(self, *arguments: str, output: int = subprocess.PIPE, cwd: Path | None = None) -> subprocess.Popen[str]:
        """`buildd ARGUMENT...`, running."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "buildd", *arguments],
            cwd=cwd or self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def buildd(self, *arguments: str, cwd: Path | None = None, timeout_s: float = 120.0) -> tuple[int, str]:
        """Exit status and output of `buildd ARGUMENT...`. Raises subprocess.TimeoutExpired."""
        process = self.start(*arguments, cwd=cwd)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.returncode, output

    def daemon(self) -> Process | None:
        """The daemon that the endpoint file names, if it lives."""
        try:
            (file,) = self.run_folder.rglob("endpoint.json")
            endpoint = json.loads(file.read_text())
        except (OSError, ValueError):
            return None
        found = Process(endpoint["pid"], endpoint["start_ticks"], "daemon")
        return found if found.lives else None

    def processes(self) -> list[Process]:
        """Every living process that is ours: that has our folder in its arguments, environment, program or working
        folder, and the helpers of those."""
        ours: dict[int, Process] = {}
        parents: dict[int, tuple[int, Process]] = {}
        needle = os.fsencode(self.folder)
        for name in os.listdir("/proc"):
            pid = int(name) if name.isdecimal() else 0
            ticks = start_ticks(pid) if pid else None
            if ticks is None or pid == os.getpid():
                continue
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                text = command + Path(f"/proc/{pid}/environ").read_bytes()
                links = b"".join(os.fsencode(os.readlink(f"/proc/{pid}/{link}")) + b"\0" for link in ("exe", "cwd"))
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            said = command.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
            # A fork of the daemon has its command line.
            process = Process(pid, ticks, CLI_SERVER if name_of(pid) == CLI_SERVER else said)
            parents[pid] = (parent, process)
            if needle in text or needle in links:
                ours[pid] = process
        for pid, (parent, process) in parents.items():
            if parent in ours:
                ours.setdefault(pid, process)
        return list(ours.values())

    def leftovers(self, *, within_s: float) -> list[Process]:
        """Processes that are still there after a while; empty as soon as there is none."""
        deadline = time.monotonic() + within_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return found

    def _down(self) -> None:
        """What `buildd down --now` does; a process for that takes longer than most tests of a user."""
        folder = runtime_folder(self.environ)
        endpoint = find(folder)
        death = open_pidfd(endpoint.pid, endpoint.start_ticks) if endpoint else None
        if endpoint is not None and death is not None:
            try:
                with Client(Route.local(endpoint), timeout_s=_END_S) as client:
                    client.drain(now=True)
                select.select([death], [], [], _END_S)
            finally:
                os.close(death)
        elif DaemonLock.is_held(folder):  # it is just starting
            self.buildd("down", "--now", timeout_s=_END_S)

    def end(self) -> list[Process]:
        """Stop the daemon; kills what it leaves behind, and returns that."""
        just_now = (time.clock_gettime(time.CLOCK_BOOTTIME) - _STARTING_S) * os.sysconf("SC_CLK_TCK")
        found: list[Process] = []
        for _ in range(2):
            try:
                self._down()
            except (ProtocolError, subprocess.TimeoutExpired):
                pass
            found = self.leftovers(within_s=5)
            # A daemon that a client had just begun to start had no lock yet. Any other one is left behind.
            if all(process.start_ticks < just_now for process in found):
                break
        keep_programs(self.store)
        for process in found:
            process.kill()
        return found


def name_of(pid: int) -> str:
    """What a process calls itself; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
