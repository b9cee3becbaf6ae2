"""The device that kind `torch` compiles for: this machine's CPU, or the GPU that the client's torch sees here.

AOTInductor compiles for the GPU that it runs on, and measures there. So a GPU's name and size are part of the key, and
a machine without one cannot compile. Knows no action.
"""

from __future__ import annotations

import re

from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Frozen
from codegen.project.target import TorchTarget
from codegen.python.gpu_probe import ask_of_gpu
from codegen.python.worker import Worker

DEVICES = ("cpu", "cuda", "hip")
PASSED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LIBRARY_PATH")
"""Variables that a job for a GPU gets besides torch's: which GPU, and where the driver's libraries are."""
_OF_A_DEVICE = re.compile(r"(triton|cuda|cutlass|cutedsl|rocm|xpu|nv_universal_gemm)\.")
_NOT_OF = {"cuda": ("rocm", "xpu"), "hip": ("cuda", "cutlass", "cutedsl", "xpu", "nv_universal_gemm")}


class GpuIdentity(Frozen, frozen=True):
    """The worker's answer about the GPU."""

    name: str
    capability: str
    processors: int
    """Multiprocessors: generated code depends on their number."""
    memory_bytes: int
    include: tuple[str, ...] = ()
    """Folders where torch's compiles for a GPU search for headers."""

    @property
    def words(self) -> str:
        return f"{self.name}, {self.capability}, {self.processors} multiprocessors, {self.memory_bytes} bytes"


def check_device(target: TorchTarget) -> None:
    """Check the target's device. Raises RequestError: bad-project."""
    if target.device not in DEVICES:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": there is no device "{target.device}"',
            file=target.where,
            next_step=f"choose one of: {', '.join(DEVICES)}; CUDA_VISIBLE_DEVICES chooses the GPU",
        )


def option_fault(name: str, device: str) -> str:
    """Return why an option cannot act on a device; empty if it can."""
    match = _OF_A_DEVICE.match(name)
    if match is None:
        return ""
    if device == "cpu":
        return f"{match[1]}.* options act on GPUs only"
    return f"{match[1]}.* options do not act on {device}" if match[1] in _NOT_OF[device] else ""


def gpu_of(context: Context, target: TorchTarget, worker: Worker, torch: str) -> GpuIdentity | None:
    """Return the GPU that torch sees; None for the CPU.

    Args:
        torch: torch's version with the platforms that it was built for, as the worker says it.

    Raises:
        ProbesNeeded: torch must be asked first.
        RequestError: bad-project, compiler-not-found.
    """
    if target.device == "cpu":
        return None
    version = torch.partition(" ")[0]
    if f" {target.device} None" in torch:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": torch {version} is not built for device "{target.device}"',
            file=target.where,
            next_step="install a torch that is, or write another device",
        )
    return ask_of_gpu(
        context,
        worker,
        GpuIdentity,
        target=target.name,
        device=target.device,
        next_step="build it on a machine with such a GPU: AOTInductor compiles for the GPU that it runs on",
    )
