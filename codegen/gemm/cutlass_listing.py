"""Lists the GEMM tiles that CUTLASS's own kernel generator makes for a type, as JSON. A probe runs it as a script:

    python -I cutlass_listing.py FOLDER ARCH TYPE        FOLDER holds the package cutlass_library

Imports only the standard library and cutlass_library; knows nothing of buildd. Prints [[...], ...]: for sm_80
[accumulator, tile, warps, stages], for sm_90a [accumulator, tile, cluster, schedule], each tile once. Lists one type at
a time, because the whole list takes CUTLASS's generator most of a second.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CUDA = "13.0.0"
LEVELS_90 = 232
"""Three cluster shapes, all multiples, and common instruction shapes; the generator's default has one of each."""


class Collector:
    """Replaces CUTLASS's manifest: collects the operations and writes no file."""

    kernel_filter = "*"

    def __init__(self) -> None:
        self.operations: list[Any] = []

    def append(self, operation: Any) -> None:
        self.operations.append(operation)

    def get_instantiation_level(self, **levels: int) -> int:
        return LEVELS_90


def listed(generator: Any, function: str) -> list[Any]:
    """Return the plain GEMMs that one of the generator's functions makes."""
    collector = Collector()
    getattr(generator, function)(collector, CUDA)
    plain = (generator.GemmKind.Universal, generator.GemmKind.Universal3x)
    return [op for op in collector.operations if getattr(op, "gemm_kind", None) in plain]


GENERATORS = {
    "sm_80": {
        "fp16": "GenerateSM80_TensorOp_16816",
        "bf16": "GenerateSM80_TensorOp_16816",
        "tf32": "GenerateSM80_TensorOp_1688",
        "int8": "GenerateSM80_TensorOp_16832_TN",
        "fp32": "GenerateSM80_Simt_f32",
    },
    "sm_90a": {
        "fp16": "GenerateSM90_TensorOp_16b_WGMMA_gemm",
        "bf16": "GenerateSM90_TensorOp_16b_WGMMA_gemm",
        "tf32": "GenerateSM90_TensorOp_tf32_WGMMA_gemm",
        "fp32": "GenerateSM90_TensorOp_tf32_WGMMA_gemm",
        "int8": "GenerateSM90_TensorOp_int8_WGMMA_gemm",
        "fp8_e4m3": "GenerateSM90_TensorOp_fp8_WGMMA_gemm",
        "fp8_e5m2": "GenerateSM90_TensorOp_fp8_WGMMA_gemm",
    },
}
"""The generator's function for each type; no list has kernels of other types."""


def main(folder: str, arch: str, dtype: str) -> int:
    sys.path.insert(0, folder)
    from cutlass_library import generator  # type: ignore[import-untyped]

    names = {generator.DataType.f16: "fp16", generator.DataType.bf16: "bf16", generator.DataType.tf32: "tf32"}
    names |= {generator.DataType.f32: "fp32", generator.DataType.s8: "int8", generator.DataType.s32: "int32"}
    names |= {generator.DataType.e4m3: "fp8_e4m3", generator.DataType.e5m2: "fp8_e5m2"}
    function = GENERATORS[arch].get(dtype)
    found: dict[str, list[Any]] = {}
    for op in listed(generator, function) if function else []:
        tile = op.tile_description
        accumulator = names.get(tile.math_instruction.element_accumulator)
        if names.get(op.A.element) != dtype or op.A.element != op.B.element or accumulator is None:
            continue
        row = [accumulator, tile.threadblock_shape]
        if arch == "sm_80":
            row += [tile.warp_count, tile.stages]
        else:
            schedule = op.kernel_schedule.name
            kind = "pingpong" if "Pingpong" in schedule else "cooperative" if "Cooperative" in schedule else ""
            if not kind or "FP8" in schedule:
                continue
            row += [tile.cluster_shape, kind]
        found.setdefault(json.dumps(row), row)
    # Sorted, because some of the generator's lists are sets.
    json.dump([found[key] for key in sorted(found)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
