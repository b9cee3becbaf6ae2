"""The meaning of nvcc's -arch=native: which architectures nvcc compiles for on this machine, as options that say so.

Knows /proc and /dev, and no cache. nvcc asks the driver for the GPUs that CUDA_VISIBLE_DEVICES shows, so its answer is
valid for this machine, with these devices, until the next boot.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from codegen.compilers.closure import Environment
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.compilers.nvcc import parse_dryrun
from codegen.plan import Knowledge, Probe

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable with the GPUs that CUDA shows to a program; empty: none."""
_NATIVE = re.compile(r"(-arch|--gpu-architecture)=native")
_INFORMATION = "/proc/driver/nvidia/gpus/*/information"
_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""Nodes of GPUs: of a PCI card, of the Windows Subsystem for Linux, of a Jetson."""


def meaning(knowledge: Knowledge, nvcc: str, environment: Environment, shown: str | None) -> tuple[str, ...] | None:
    """Return the options that name the GPUs which nvcc finds; None if it finds no GPU and takes its default.

    Args:
        nvcc: absolute path.
        environment: the environment of the compile.
        shown: the caller's CUDA_VISIBLE_DEVICES, if it is set.

    Raises:
        ProbesNeeded: run this probe, add its answer to `knowledge`, and call again.
        PassThrough: another process of this machine may see other GPUs, or nvcc gives no answer.
    """
    if len(_models()) > 1:
        raise PassThrough(Reason.MACHINE, "-arch=native, and the GPUs of this machine differ")
    variables = {**dict(environment), **({} if shown is None else {VISIBLE: shown})}
    probe = Probe(
        argv=(nvcc, "--dryrun", "-arch=native", "-c", "buildd-probe.cu", "-o", "buildd-probe.o"),
        environment=tuple(sorted(variables.items())),
        files=(nvcc, os.path.join(os.path.dirname(nvcc), "__nvcc_device_query")),
        # Nothing reads this text: other GPUs, or another machine that uses the same store, run the probe again.
        payload=identity().encode(),
    )
    (answer,) = knowledge.ask(probe)
    text = answer.stderr + answer.stdout
    if answer.status == 0 and "Cannot find valid GPU" in text:
        return None
    assembled = (command for command in parse_dryrun(text).commands if os.path.basename(command[0]) == "ptxas")
    named = [word.removeprefix("-arch=") for command in assembled for word in command if word.startswith("-arch=sm_")]
    if answer.status != 0 or not named:
        raise PassThrough(Reason.MACHINE, "-arch=native, and nvcc does not say which GPUs there are")
    return tuple(f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in named)


def replaced(words: Iterable[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command's words with these options in the place of -arch=native."""
    found: list[str] = []
    for word in words:
        if _NATIVE.fullmatch(word):
            found += options
        elif word == "native" and found and found[-1] in ("-arch", "--gpu-architecture"):
            found[-1:] = options
        else:
            found.append(word)
    return tuple(found)


def has_devices() -> bool:
    """Tell whether this machine has a GPU of NVIDIA's."""
    return any(glob.glob(pattern) for pattern in _DEVICES)


def identity() -> str:
    """Return a text that differs whenever the machine, its driver or its GPUs may differ."""
    nodes = sorted(path for pattern in _DEVICES for path in glob.glob(pattern))
    places = ("/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version", *sorted(glob.glob(_INFORMATION)))
    return "\n".join((*nodes, *map(_read, places)))


def _models() -> set[str]:
    """Return the names of the kinds of GPUs that this machine's driver has."""
    texts = map(_read, glob.glob(_INFORMATION))
    return {line.partition(":")[2].strip() for text in texts for line in text.splitlines() if line.startswith("Model:")}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
