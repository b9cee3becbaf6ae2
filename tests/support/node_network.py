"""Two hosts on this machine with a link between them that can be cut: network namespaces. Only root can make them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NEAR_IP, FAR_IP = "10.77.0.1", "10.77.0.2"


class NodeNetwork:
    """A near host, where daemons and the head are, and a far one. Ends with `close`."""

    def __init__(self) -> None:
        self.near, self.far = f"buildd-{os.getpid()}-near", f"buildd-{os.getpid()}-far"
        for name in (self.near, self.far):
            ip("netns", "add", name)
        ip("link", "add", "near", "netns", self.near, "type", "veth", "peer", "name", "far", "netns", self.far)
        for name, link, address in ((self.near, "near", NEAR_IP), (self.far, "far", FAR_IP)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            for each in (link, "lo"):
                ip("-n", name, "link", "set", each, "up")

    def inside(self, name: str) -> list[str]:
        """The beginning of a command that runs on one of the hosts."""
        return ["ip", "netns", "exec", name]

    def python(self, folder: Path) -> Path:
        """A Python that runs on the near host."""
        script = folder / "near-python"
        script.write_text(f'#!/bin/sh\nexec ip netns exec {self.near} "{sys.executable}" "$@"\n')
        script.chmod(0o700)
        return script

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        ip("-n", self.far, "link", "set", "far", "down")

    def heal(self) -> None:
        ip("-n", self.far, "link", "set", "far", "up")

    def close(self) -> None:
        for name in (self.near, self.far):
            ip("netns", "del", name)


def needs_root() -> None:
    """Skip the test where no network namespace can be made."""
    import pytest  # scripts on machines without it use the rest

    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root can make network namespaces, with iproute2")
    if subprocess.run(["ip", "netns", "add", "buildd-try"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no network namespaces")
    ip("netns", "del", "buildd-try")


def ip(*words: str) -> None:
    """Call iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True)
