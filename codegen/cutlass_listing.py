"""Lists the GEMM tiles that CUTLASS's own kernel generator would make, as JSON. Run as a script, by a probe:

    python -I cutlass_listing.py FOLDER        FOLDER holds the package cutlass_library

Standard library and cutlass_library only; knows nothing of buildd. Prints {"VERSION": [[...], ...]}: of sm_80
[type, accumulator, tile, warps, stages], of sm_90a [type, accumulator, tile, cluster, schedule], each tile once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CUDA = "13.0.0"
LEVELS_90 = 232
"""Three cluster shapes, all multiples and common instruction shapes: its plain default has one of each."""


class Collector:
    """Takes the place of CUTLASS's manifest: is told each operation, and writes no file."""

    kernel_filter = "*"

    def __init__(self) -> None:
        self.operations: list[Any] = []

    def append(self, operation: Any) -> None:
        self.operations.append(operation)

    def get_instantiation_level(self, **levels: int) -> int:
        return LEVELS_90


def listed(generator: Any, names: tuple[str, ...]) -> list[Any]:
    """The plain GEMMs that some of the generator's functions make."""
    collector = Collector()
    for name in names:
        getattr(generator, name)(collector, CUDA)
    plain = (generator.GemmKind.Universal, generator.GemmKind.Universal3x)
    return [op for op in collector.operations if getattr(op, "gemm_kind", None) in plain]


def main(folder: str) -> int:
    sys.path.insert(0, folder)
    from cutlass_library import generator  # type: ignore[import-untyped]

    names = {generator.DataType.f16: "fp16", generator.DataType.bf16: "bf16", generator.DataType.tf32: "tf32"}
    names |= {generator.DataType.f32: "fp32", generator.DataType.s8: "int8", generator.DataType.s32: "int32"}
    names |= {generator.DataType.e4m3: "fp8_e4m3", generator.DataType.e5m2: "fp8_e5m2"}
    found: dict[str, dict[str, list[Any]]] = {"sm_80": {}, "sm_90a": {}}
    old = ("GenerateSM80_TensorOp_16816", "GenerateSM80_TensorOp_1688", "GenerateSM80_TensorOp_16832_TN")
    for op in listed(generator, (*old, "GenerateSM80_Simt_f32")):
        tile = op.tile_description
        types = (names.get(op.A.element), names.get(tile.math_instruction.element_accumulator))
        if None not in types and op.A.element == op.B.element:
            row = [*types, tile.threadblock_shape, tile.warp_count, tile.stages]
            found["sm_80"].setdefault(json.dumps(row), row)
    new = ("16b_WGMMA", "tf32_WGMMA", "int8_WGMMA", "fp8_WGMMA")
    for op in listed(generator, tuple(f"GenerateSM90_TensorOp_{name}_gemm" for name in new)):
        tile = op.tile_description
        types = (names.get(op.A.element), names.get(tile.math_instruction.element_accumulator))
        schedule = op.kernel_schedule.name
        kind = "pingpong" if "Pingpong" in schedule else "cooperative" if "Cooperative" in schedule else ""
        if None not in types and kind and "FP8" not in schedule and op.A.element == op.B.element:
            row = [*types, tile.threadblock_shape, tile.cluster_shape, kind]
            found["sm_90a"].setdefault(json.dumps(row), row)
    # Sorted: some of the generator's lists are sets.
    json.dump({arch: [rows[key] for key in sorted(rows)] for arch, rows in found.items()}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
