"""The GPUs of this machine: which there are, and who measures on one right now.

Knows nvidia-smi, where AMD's driver shows its GPUs, and kernel locks; starts no context on a GPU, so that it disturbs
nobody's measurement. A lease is a lock on a file named after the GPU's UUID in a folder that all users share: it ends
with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

from buildd.devices import Gpu, visible

__all__ = ["LEASES", "Gpu", "Turns", "find_amd_gpus", "find_gpus", "lease", "strangers", "visible"]
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_AMD_DRIVER = "/sys/module/amdgpu/version"
LEASES = "/dev/shm/buildd-gpus"
_QUERY = "index,uuid,name,driver_version,compute_cap"
_ASK_S = 20.0
_POLL_S = 0.02
_PAUSE_S = 1.25 * _POLL_S
"""Whoever waits for a lease has looked meanwhile."""
_OURS_S = 2.0
"""After so long without such a pause there is one."""


def find_gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str]:
    """All GPUs of this machine, and why there is none; the reason is empty where there is one.

    Args:
        environ: PATH is searched for nvidia-smi.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return (), "there is no nvidia-smi here, so no driver"
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi does not answer: {error}"
    if done.returncode:
        return (), f"nvidia-smi: {(done.stdout + done.stderr).strip()[:200]}"
    found = tuple(gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None)
    return found, "" if found else "nvidia-smi lists no GPU"


def find_amd_gpus(topology: str = _TOPOLOGY) -> tuple[tuple[Gpu, ...], str]:
    """The same of AMD's GPUs, in the order in which HIP counts them.

    Args:
        topology: folder with one for each processor, as the driver has it.
    """
    found: list[Gpu] = []
    try:
        nodes = sorted((name for name in os.listdir(topology) if name.isdecimal()), key=int)
    except OSError:
        return (), "there is no AMD GPU here, or no driver for one"
    for node in nodes:
        said = dict(line.split(" ", 1) for line in _read(f"{topology}/{node}/properties").splitlines() if " " in line)
        version, unique = (_number(said.get(name, "")) for name in ("gfx_target_version", "unique_id"))
        if not version:  # a CPU
            continue
        arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        found.append(
            Gpu(
                index=len(found),
                uuid=f"GPU-{unique:016x}" if unique else f"GPU-amd-{len(found)}",
                name=_read(f"{topology}/{node}/name").strip() or arch,
                driver=_read(_AMD_DRIVER).strip(),
                capability=arch,
            )
        )
    return tuple(found), "" if found else "the driver shows no AMD GPU"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(word: str) -> int:
    return int(word) if word.strip().isdecimal() else 0


def strangers(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[Gpu, int]:
    """How many processes compute on each GPU now; none where that cannot be told. Asks once for all."""
    asked = {gpu.uuid: gpu for gpu in gpus}
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None or not asked:
        return {}
    command = [program, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    rows = [[word.strip() for word in line.split(",")] for line in lines]
    return Counter(asked[row[0]] for row in rows if len(row) == 2 and row[0] in asked and row[1].isdecimal())


@contextlib.asynccontextmanager
async def lease(gpu: Gpu, folder: str = LEASES) -> AsyncIterator[None]:
    """One at a time measures on a GPU, whatever user or daemon it is of. Waits for its turn; without a folder that
    can be shared it does not."""
    descriptor = _open(gpu, folder)
    try:
        while descriptor >= 0:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
            except OSError:
                break  # a file system without locks
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class Turns:
    """Leases on one GPU for tasks of this process: each follows the last at once, and others are not shut out."""

    def __init__(self, gpu: Gpu, folder: str = LEASES) -> None:
        self._gpu, self._folder = gpu, folder
        self._lock = asyncio.Lock()
        self._began_s = self._ended_s = -_OURS_S
        """When the GPU became ours without a pause, and when the last turn ended."""

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """As `lease`."""
        async with self._lock:
            paused_s = time.monotonic() - self._ended_s
            if paused_s < _PAUSE_S and time.monotonic() - self._began_s > _OURS_S:
                await asyncio.sleep(_PAUSE_S - paused_s)
                paused_s = _PAUSE_S
            async with lease(self._gpu, self._folder):
                if paused_s >= _PAUSE_S:
                    self._began_s = time.monotonic()
                try:
                    yield
                finally:
                    self._ended_s = time.monotonic()


def _open(gpu: Gpu, folder: str) -> int:
    name = "".join(letter for letter in gpu.uuid if letter.isalnum() or letter == "-")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o1777)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(os.path.join(folder, name), flags)
        except FileNotFoundError:
            # Anybody may lock what they can read: no one has to write.
            return os.open(os.path.join(folder, name), flags | os.O_CREAT, 0o644)
    except OSError:
        return -1


def _gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5 or not parts[0].isdecimal() or not parts[1]:
        return None
    return Gpu(index=int(parts[0]), uuid=parts[1], name=parts[2], driver=parts[3], capability=parts[4])
