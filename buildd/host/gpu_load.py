"""How busy this machine's GPUs are, for people: nvidia-smi's answer, or the files of the amdgpu driver.

Knows no job. The answer of nvidia-smi takes up to a second: ask in a thread.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 5.0
_DRM = "/sys/class/drm"
_ASKED = "index,name,utilization.gpu,memory.used,memory.total"


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU at one moment; `busy` is the share of the last second in which a kernel ran."""

    index: int
    name: str
    busy: float
    used_bytes: int
    total_bytes: int


def gpu_loads(nvidia_smi: str, drm: str = _DRM) -> list[GpuLoad]:
    """The GPUs; none where nothing can be learned.

    Args:
        nvidia_smi: path of the program; empty if there is none.
        drm: where the kernel shows graphics devices.
    """
    return [*(_nvidia(nvidia_smi) if nvidia_smi else ()), *_amd(Path(drm))]


def _nvidia(program: str) -> list[GpuLoad]:
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_ASKED}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and words[0].isdecimal():
            busy, used, total = (_number(word) for word in words[2:])
            found.append(GpuLoad(int(words[0]), words[1], busy / 100, int(used) << 20, int(total) << 20))
    return found


def _amd(drm: Path) -> list[GpuLoad]:
    found: list[GpuLoad] = []
    for place in sorted(drm.glob("card*/device/gpu_busy_percent")):
        device = place.parent
        figures = [_number(_text(device / name)) for name in (place.name, "mem_info_vram_used", "mem_info_vram_total")]
        name = _text(device / "product_name") or "AMD GPU"
        found.append(GpuLoad(len(found), name, figures[0] / 100, int(figures[1]), int(figures[2])))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return 0.0
