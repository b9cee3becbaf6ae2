"""A machine with GPUs that NVML's stand-in shows, and a real server that leases them. Needs no GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from buildd.host.gpu_watch import GpuWatch
from protocol.aio import AsyncClient
from protocol.messages import GpuStatus
from protocol.session import Route
from tests.support.paths import FAKES
from tests.support.serving import Serving, serving, short_folder

GPU = "GPU-01234567-0123-0123-0123-0123456789ab"
TIGHT = 0.3
"""Patience with the driver, in s."""


def fake_nvml(folder: Path) -> Path:
    """Compile NVML's stand-in, which reads the file that FAKE_NVML names."""
    made = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, FAKES / "fake-nvml.c"], check=True)
    return made


class Machine:
    """The machine.

    Args:
        place: file of NVML's stand-in.
    """

    def __init__(self, served: Serving, place: Path) -> None:
        self.served, self._place = served, place

    def has(self, *lines: str) -> None:
        """Change what NVML shows."""
        aside = self._place.with_suffix(".new")
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(self._place)

    @property
    def route(self) -> Route:
        return Route.local(self.served.server.endpoint())

    def client(self) -> AsyncClient:
        return AsyncClient(self.route, name="test/1")

    @property
    def gpus(self) -> tuple[GpuStatus, ...]:
        return self.served.server.status().gpus

    @property
    def locks(self) -> str:
        return f"{self.served.folder.path}/gpus"

    @property
    def lock(self) -> Path:
        return Path(self.locks) / GPU


@contextmanager
def machine_with(folder: Path, *lines: str) -> Iterator[Machine]:
    """A machine whose NVML shows this."""
    library = fake_nvml(folder)
    with short_folder() as base, patch.dict(os.environ, {"FAKE_NVML": str(base / "nvml")}):
        (base / "nvml").write_text("")
        with serving(base / "run", gpus=GpuWatch(str(library), patience_s=TIGHT)) as served:
            machine = Machine(served, base / "nvml")
            machine.has(*lines)
            yield machine
