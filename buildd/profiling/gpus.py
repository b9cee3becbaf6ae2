"""The GPUs of this machine.

Knows nvidia-smi, and the folder where AMD's driver lists its GPUs. Makes no context on a GPU, so that it disturbs no
measurement.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from buildd.profiling.devices import Gpu, visible

__all__ = ["Gpu", "find_amd_gpus", "find_gpus", "shown_gpus", "visible"]
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_AMD_DRIVER = "/sys/module/amdgpu/version"
QUERY = "index,uuid,name,driver_version,compute_cap"
"""What nvidia-smi is asked about each GPU."""
_ASK_S = 20.0


def find_gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str]:
    """All NVIDIA GPUs of this machine, and the reason if there is none.

    Args:
        environ: PATH is searched for nvidia-smi.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return (), "there is no nvidia-smi here, so no driver"
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi does not answer: {error}"
    if done.returncode:
        return (), f"nvidia-smi: {(done.stdout + done.stderr).strip()[:200]}"
    found = tuple(gpu for line in done.stdout.splitlines() if (gpu := gpu_of(line)) is not None)
    return found, "" if found else "nvidia-smi lists no GPU"


def find_amd_gpus(topology: str = _TOPOLOGY) -> tuple[tuple[Gpu, ...], str]:
    """All AMD GPUs, in HIP's order, and the reason if there is none.

    Args:
        topology: the driver's folder, with a folder for each processor.
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


def gpu_of(line: str) -> Gpu | None:
    """The GPU of a line of nvidia-smi's answer to `QUERY`; None where it describes none."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5 or not parts[0].isdecimal() or not parts[1]:
        return None
    return Gpu(index=int(parts[0]), uuid=parts[1], name=parts[2], driver=parts[3], capability=parts[4])


def shown_gpus(
    gpus: tuple[Gpu, ...],
    why: str,
    devices: tuple[str, ...] | None,
    say: Callable[[str], None],
    *,
    hip: bool = False,
) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of one model that a request may use, and why there are none.

    Args:
        why: as from `find_gpus`.
        devices: as for `visible`.
        say: is called if some are of another model.
        hip: they are AMD's.
    """
    shown, variable = visible(gpus, devices), f"{'HIP' if hip else 'CUDA'}_VISIBLE_DEVICES"
    if gpus and not shown:
        why = f"{variable} hides every GPU"
    alike = tuple(gpu for gpu in shown if (gpu.name, gpu.driver) == (shown[0].name, shown[0].driver))
    if len(alike) < len(shown):
        say(f"measuring only on {alike[0].name}; set {variable} to choose another model")
    return alike, why
