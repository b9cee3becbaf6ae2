"""A real Slurm of two nodes on this machine: its daemons and munge's, in a folder and on ports of their own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.ray_cluster import free_port
from tests.support.waiting import until

DEADLINE_S = 60.0
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
HAS_SLURM = all(shutil.which(name, path=_PATH) for name in PROGRAMS)


class SlurmCluster:
    """Two nodes, n1 and n2, of one processor each. Ends with `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # munge's socket has a short path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environ = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
        munge = self.folder / "munge"
        for name in ("munge", "state", "n1", "n2"):
            (self.folder / name).mkdir(mode=0o700)
        # munge asks that others may enter the folders above its own.
        self.folder.chmod(0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        (self.folder / "slurm.conf").write_text(self._settings(str(munge / "socket")))
        try:
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            self._start("munged", "--foreground", "--force", *(f"--{o}={munge / name}" for o, name in files.items()))
            self._wait(lambda: (munge / "socket").exists())
            self._start("slurmctld", "-D")
            for node in ("n1", "n2"):
                self._start("slurmd", "-D", "-N", node)
            self._wait(lambda: self._said("sinfo", "--noheader", "-o", "%D %t").split() == ["2", "idle"])
        except BaseException:
            self.close()
            raise

    def _settings(self, socket_path: str) -> str:
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1"
        return f"""ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={socket_path}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n
SlurmdPidFile={self.folder}/%n.pid
SlurmctldPidFile={self.folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=n1 Port={free_port()} {node}
NodeName=n2 Port={free_port()} {node}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=10 State=UP
"""

    def _start(self, *command: str) -> None:
        with open(self.folder / "said", "ab") as said:
            process = subprocess.Popen(
                command,
                executable=shutil.which(command[0], path=_PATH),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self.environ,
                start_new_session=True,
            )
        self._processes.append(process)

    def _said(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        return done.stdout

    def _wait(self, condition: Callable[[], bool]) -> None:
        def has_ended() -> bool:
            return any(process.poll() is not None for process in self._processes)

        with contextlib.suppress(TimeoutError):
            until(lambda: has_ended() or condition(), timeout_s=DEADLINE_S)
        if has_ended() or not condition():
            raise RuntimeError(f"Slurm did not start:\n{(self.folder / 'said').read_text(errors='replace')}")

    def close(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
