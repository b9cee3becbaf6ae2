"""The resource use of a Triton kernel: from its binary, the assembler's report, and Triton's own description. PURE.

Triton's shared memory is dynamic: the binary does not know it, the description does. Runs no tool.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from buildd.artifacts.kernel_reports import completed, kernels_in
from protocol.described import described
from protocol.messages import Kernel


class _Payload(msgspec.Struct):
    label: str = ""


class _Metadata(msgspec.Struct):
    shared: int = -1


def triton_kernels(payload: bytes, metadata: bytes, read: Iterable[Kernel], report: str) -> tuple[Kernel, ...]:
    """The kernels of one action of kind "triton", named by kernel and configuration: "add[BLOCK=512]".

    Args:
        payload: of the action, which names the configuration.
        metadata: Triton's description of the kernel, JSON.
        read: the kernels of the binary.
        report: the assembler's, of `ptxas -v`.
    """
    try:
        label = msgspec.json.decode(payload, type=described(_Payload)).label
        shared = msgspec.json.decode(metadata, type=described(_Metadata)).shared
    except msgspec.MsgspecError:
        label, shared = "", -1
    found = []
    reported = kernels_in(report)
    # An action compiles for one architecture, which the binary may spell in another way than the assembler.
    archs = {kernel.name: kernel.arch for kernel in reported}
    same = (msgspec.structs.replace(kernel, arch=archs.get(kernel.name, kernel.arch)) for kernel in read)
    for kernel in completed(reported, same):
        name = f"{kernel.name}[{label}]" if label else kernel.name
        used = shared if shared >= 0 else kernel.shared_bytes
        found.append(msgspec.structs.replace(kernel, name=name, shared_bytes=used))
    return tuple(found)
