"""Pods on this machine: processes with a network, a host's name, processes and folders of their own, as namespaces.

They share one network. Only root can make them. Namespaces give no image, and no limits of CPUs and memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.node_network import ip
from tests.support.paths import ROOT

DEADLINE_S = 120.0
_SWITCH_IP = "10.78.0.254"
_RESOLVER = "nameserver 127.0.0.1\n"
"""Nobody listens there, so each question is answered at once: /etc/hosts knows all names."""
# $1: the host's name. $2: its /etc/hosts. $3: its /etc/resolv.conf. $4: the folder to work in. Then "SOURCE TARGET" of
# each volume, and "--". What the pod's Python needs below /tmp is seen again in the pod's own /tmp.
_SETUP = """set -e
hostname "$1"; mount --bind "$2" /etc/hosts; mount --bind "$3" /etc/resolv.conf; work=$4; shift 4
mount -t tmpfs none /dev/shm
mount -t tmpfs none /mnt
mkdir /mnt/.tmp
mount --bind /tmp /mnt/.tmp
while [ "$1" != -- ]; do
  mkdir -p "$2"
  if [ "$1" = none ]; then mount -t tmpfs none "$2"; else mount --bind "$1" "$2"; fi
  shift 2
done
shift
mount -t tmpfs none /tmp
for kept in $KEPT; do mkdir -p "$kept"; mount --bind "/mnt/.tmp${kept#/tmp}" "$kept"; done
umount /mnt/.tmp
unset KEPT
cd "$work"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Pod:
    """What one container of a pod runs.

    Args:
        command: its command and arguments.
        environ: its own variables; an image's PATH and HOME come on top.
        folders: what is mounted below /mnt and in its place, by its path; None: an empty folder in memory.
    """

    name: str
    command: list[str]
    environ: Mapping[str, str]
    folders: Mapping[str, Path | None] = field(default_factory=dict)
    work: str = "/"


class Pods:
    """Pods and their network. Ends with `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pods-", dir="/tmp"))
        self.hosts: dict[str, str] = {}
        """Addresses by name: what a cluster's DNS answers. Pods that start later know them."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._spaces: dict[str, str] = {}
        try:
            switch = self._space("switch")
            ip("-n", switch, "link", "add", "switch", "type", "bridge")
            ip("-n", switch, "addr", "add", f"{_SWITCH_IP}/24", "dev", "switch")
            ip("-n", switch, "link", "set", "switch", "up")
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        """The pod's address; it gets its network here, if it has none."""
        number = list(self._spaces).index(name) if name in self._spaces else len(self._spaces)
        address = f"10.78.0.{number}"
        if name not in self._spaces:
            switch, space = self._spaces["switch"], self._space(name)
            port = f"port{number}"
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for each in ("eth0", "lo"):
                ip("-n", space, "link", "set", each, "up")
            # Ray asks the kernel which address it would use to reach the world.
            ip("-n", space, "route", "add", "default", "via", _SWITCH_IP)
        return address

    def start(self, pod: Pod) -> subprocess.Popen[bytes]:
        """Start a pod. With this process all of the pod ends. Its words: `said`."""
        hosts = self.folder / f"{pod.name}.hosts"
        known = {"localhost": "127.0.0.1", pod.name: self.address(pod.name), **self.hosts}
        (resolver := self.folder / "resolv.conf").write_text(_RESOLVER)
        hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
        volumes = [word for place, source in pod.folders.items() for word in (str(source or "none"), place)]
        with open(self.folder / f"{pod.name}.said", "wb") as said:
            process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._spaces[pod.name]),
                    *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *(
                        "sh",
                        "-c",
                        _SETUP,
                        "sh",
                        pod.name,
                        str(hosts),
                        str(resolver),
                        pod.work,
                        *volumes,
                        "--",
                        *pod.command,
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**_image(), **pod.environ},
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, pod: Pod, timeout_s: float = DEADLINE_S) -> int:
        """Run a pod until its command ends."""
        process = self.start(pod)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{pod.name} did not end:\n{self.said(pod.name)}") from None

    def python(self, name: str, code: str) -> str:
        """What a program says that runs in the network of a pod."""
        command = ["ip", "netns", "exec", self._spaces[name], sys.executable, "-c", code]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.said").read_text(errors="replace")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(DEADLINE_S)
        for space in self._spaces.values():
            ip("netns", "del", space)
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)

    def _space(self, name: str) -> str:
        space = f"buildd-{os.getpid()}-{name}"
        ip("netns", "add", space)
        self._spaces[name] = space
        return space


def _image() -> dict[str, str]:
    """What an image says: programs are beside this Python, and buildd is this checkout."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {os.path.realpath(each) for each in (*paths, sys.prefix, sys.base_prefix)}
    return {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": "/tmp",
        "PYTHONPATH": os.pathsep.join(paths),
        "KEPT": " ".join(sorted(each for each in kept if each.startswith("/tmp/"))),
    }
