"""The architectures of this machine's GPUs, for arch = "native" of a target.

Knows /sys, and nvcc's answer (`native_gpus`). The names that are found are part of keys; "native" is part of none.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

import msgspec

from codegen.compilers import native_gpus
from codegen.compilers.command_parser import PassThrough
from codegen.compilers.toolchain import Toolchains
from codegen.errors import RequestError
from codegen.project.target import Conv2dTarget, CudaTarget, ExtensionTarget, HipTarget, Target
from protocol.messages import Request

NATIVE = "native"
_SPECIFIC_SINCE = 90
"""Compute capability from which nvcc has a variant with the instructions of one generation alone: sm_90a."""
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes/*/properties"
"""Linux's description of AMD's GPUs (and of processors, whose gfx_target_version is 0)."""


def resolved(
    request: Request, targets: Iterable[Target], toolchains: Toolchains
) -> tuple[Request, tuple[Target, ...], bool]:
    """Return request and targets with names in place of "native", and whether there was one.

    Raises:
        ProbesNeeded: run this probe, add its answer to the knowledge, and call again.
        RequestError: no GPU is found for a target.
    """
    found = tuple(targets)
    if NATIVE not in request.arch and not any(NATIVE in target.arch for target in found):
        return request, found, False
    known: dict[bool, tuple[str, ...]] = {}

    def named(amd: bool) -> tuple[str, ...]:
        if amd not in known:
            known[amd] = amd_gpus() if amd else _nvidia(toolchains)
        return known[amd]

    if NATIVE in request.arch:
        vendors = dict.fromkeys(_is_amd(target) for target in found)
        archs = tuple(name for amd in vendors for name in named(amd))
        if not archs:
            raise _nothing("--arch native", "")
        request = msgspec.structs.replace(request, arch=_replaced(request.arch, archs))
    for index, target in enumerate(found):
        if NATIVE in target.arch and not request.arch:
            archs = named(_is_amd(target))
            if not archs:
                raise _nothing(f'target "{target.name}": arch = "native"', target.at("arch"))
            replaced = msgspec.structs.replace(target, arch=_replaced(target.arch, archs))
            found = (*found[:index], replaced, *found[index + 1 :])
    return request, found, True


def _is_amd(target: Target) -> bool:
    if isinstance(target, HipTarget | CudaTarget | Conv2dTarget | ExtensionTarget):
        return isinstance(target, HipTarget)
    return bool(amd_gpus()) and not native_gpus.has_devices()


def _replaced(archs: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for arch in archs for name in (names if arch == NATIVE else (arch,))))


def _nvidia(toolchains: Toolchains) -> tuple[str, ...]:
    compiler = toolchains.cuda()
    nvcc = os.path.join(dict(compiler.tool.roots)["cuda"], "bin", "nvcc")
    shown = toolchains.request.environment.get(native_gpus.VISIBLE)
    try:
        options = native_gpus.meaning(toolchains.knowledge, nvcc, compiler.environment, shown)
    except PassThrough as refused:
        raise RequestError(
            "bad-arch", str(refused), next_step='name them, as in arch = ["sm_80", "sm_90a"]'
        ) from refused
    numbers = sorted({int(number) for option in options or () for number in re.findall(r"code=sm_(\d+)", option)})
    return tuple(f"sm_{number}{'a' if number >= _SPECIFIC_SINCE else ''}" for number in numbers)


def amd_gpus() -> tuple[str, ...]:
    """Return the names of AMD's GPUs of this machine, as Linux knows them."""
    found = set()
    for path in glob.glob(_TOPOLOGY):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                version = re.search(r"^gfx_target_version (\d+)$", file.read(), re.MULTILINE)
        except OSError:
            continue
        if version is not None and (number := int(version[1])):
            found.add(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    return tuple(sorted(found))


def _nothing(what: str, where: str) -> RequestError:
    return RequestError(
        "bad-arch",
        f"{what}, and no GPU of this machine was found",
        file=where,
        next_step='name the architectures to build for, as in arch = ["sm_80", "sm_90a"]',
    )
