"""The load of GPUs, from nvidia-smi's words and from amdgpu's files."""

from __future__ import annotations

from pathlib import Path

from buildd.host.gpu_load import GpuLoad, gpu_loads


def program(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_nvidia(tmp_path: Path) -> None:
    said = program(
        tmp_path, "echo '0, NVIDIA H200, 37, 1024, 143771'; echo '1, NVIDIA H200, [N/A], 0, 143771'; echo junk"
    )
    first, second = gpu_loads(said, str(tmp_path))
    assert first == GpuLoad(0, "NVIDIA H200", 0.37, 1024 << 20, 143771 << 20)
    assert (second.index, second.busy) == (1, 0.0)


def test_amd(tmp_path: Path) -> None:
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    for name, text in (("gpu_busy_percent", "50"), ("mem_info_vram_used", "7"), ("mem_info_vram_total", "9")):
        (device / name).write_text(f"{text}\n")
    assert gpu_loads("", str(tmp_path)) == [GpuLoad(0, "AMD GPU", 0.5, 7, 9)]


def test_nothing_to_ask(tmp_path: Path) -> None:
    assert gpu_loads("", str(tmp_path)) == []
    assert gpu_loads(str(tmp_path / "missing"), str(tmp_path)) == []
    assert gpu_loads(program(tmp_path, "exit 9"), str(tmp_path)) == []
