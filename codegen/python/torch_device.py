"""The device that kind `torch` compiles for: this machine's CPU, or the GPU that the client's torch sees here.

AOTInductor compiles for the GPU that it runs on, and measures there. So a GPU's name and size are part of the key, and
a machine without one cannot compile. Knows no action.
"""

from __future__ import annotations

import re

import msgspec

from codegen.compilers import native_gpus
from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Frozen, Probe
from codegen.project.target import TorchTarget
from codegen.python.worker import Worker
from protocol.described import described

DEVICES = ("cpu", "cuda", "hip")
PASSED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LIBRARY_PATH")
"""Variables that a job for a GPU gets besides torch's: which GPU, and where the driver's libraries are."""
_IDENTIFY_S = 120.0
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
    probe = Probe(
        argv=(worker.interpreter, str(worker.script), "--identify-gpu"),
        environment=worker.environment,
        files=worker.installed(context),
        # Nothing reads this text: other GPUs, or another machine that uses the same store, run the probe again.
        payload=native_gpus.identity().encode(),
        timeout_s=_IDENTIFY_S,
    )
    (answer,) = context.knowledge.ask(probe)
    try:
        return msgspec.json.decode(answer.stdout.encode(errors="surrogateescape"), type=described(GpuIdentity))
    except msgspec.MsgspecError as error:
        said = [line for line in answer.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("error: ") if said else f"it ended with status {answer.status}"
        raise RequestError(
            "compiler-not-found",
            f'target "{target.name}": no GPU for device "{target.device}": {reason}',
            file=worker.interpreter,
            next_step="build it on a machine with such a GPU: AOTInductor compiles for the GPU that it runs on",
        ) from error
