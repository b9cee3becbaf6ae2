"""What scripts/gpu/generators builds and checks: targets, the sizes each runs on, and the largest error that is right.

Knows no torch and no GPU. An error is relative to the largest element of a result: half a unit in the last place is
4.9e-4 of fp16 and 3.9e-3 of bf16.
"""

from __future__ import annotations

from typing import Any

ROUNDING = {"fp16": 6e-4, "bf16": 5e-3, "fp32": 5e-6, "int32": 0.0}
ROWS = [[3, 7], [1, 1], [5, 1000], [33, 2056], [2, 4100], [2, 13000], [1, 12288], [2, 12256], [2, 100003], [4096, 768]]
THREE = [[3, 5, 7], [2, 40, 64], [4, 1, 3], [130, 33, 257]]
ODD = [[128, 128, 64], [136, 264, 72], [1, 8, 16], [1000, 520, 1032]]
"""Sizes of GEMMs whose sizes are known at run time: multiples of 8, and not of a tile."""
MISALIGNED = [[1, 8, 16]]
"""With A in columns: refused."""
BYTES = [[m, -(-n // 16) * 16, -(-k // 16) * 16] for m, n, k in ODD]
"""Those of types of one byte."""
BATCHES = [[1, 128, 128, 64], [5, 136, 264, 72], [70, 8, 16, 200]]
GROUPS = [
    [128, 128, 64],
    [64, 128, 64, 0, 128, 64, 1, 128, 64, 300, 128, 64],
    [3, 8, 8, 1000, 520, 1032, 5, 0, 16, 129, 264, 72],
    [40, 64, 128] * 40,
]
"""m, n, k of one problem behind those of another; some are empty."""
DEEP = [[16, 128, 8192], [72, 136, 4112], [128, 256, 64], [8, 16, 1024]]
"""GEMMs of few tiles; one has less k than parts."""
IMAGES = [[1, 8, 8], [3, 17, 23], [0, 9, 9], [2, 7, 130]]
"""Images of convolutions: n, height, width."""
HUGE = 2**31 + 4096


def cases(arch: str) -> dict[str, dict[str, Any]]:
    """Name -> {"table", "sizes", "most", "refused", "beside"}.

    Refused are those of its sizes that it cannot have; beside: it is built with several streams and a standalone test.

    Args:
        arch: "sm_90a" for all that an sm_90 can have, else one that CUTLASS's 2.x kernels know.
    """
    plain = "sm_90" if arch == "sm_90a" else arch
    found = {**_rowwise(), **_elementwise(), **_gemms_80(), **_convolutions(), **_models("")}
    for case in found.values():
        case["table"]["arch"] = [plain]
    if arch == "sm_90a":
        newer = {**_gemms_90(), **_models("90")}
        for case in newer.values():
            case["table"]["arch"] = [arch]
        found |= newer
    return found


def _case(kind: str, sizes: list[list[int]], output: str, most: float = 0.0, **table: Any) -> dict[str, Any]:
    if kind in ("gemm", "conv2d") and output == "fp32":
        most = 3e-5  # sums of tensor cores are not rounded to the nearest
    case = {"table": {"kind": kind, **table}, "sizes": sizes, "most": most or ROUNDING[output], "refused": []}
    return {**case, "beside": False}


def _rowwise() -> dict[str, dict[str, Any]]:
    found = {}
    for op in ("softmax", "layer_norm", "rms_norm", "sum", "mean", "max"):
        for dtype in ("fp16", "bf16", "fp32"):
            found[f"{op}-{dtype}"] = _case("rowwise", ROWS, dtype, op=op, dtype=dtype, shape=[0, 0])
    found["layer_norm-bare"] = _case(
        "rowwise", THREE, "fp32", op="layer_norm", dtype="bf16", output_dtype="fp32", shape=[0, 0, 0], weight=False,
        bias=False, eps=1e-3,
    )  # fmt: skip
    found["rms_norm-two-axes"] = _case(
        "rowwise", THREE, "fp16", op="rms_norm", dtype="fp32", output_dtype="fp16", shape=[0, 0, 0], axes=[1, 2]
    )
    found["softmax-fixed"] = _case("rowwise", [[16, 12, 128]], "fp16", op="softmax", shape=[0, 12, 128])
    for axes in ([0], [1], [0, 2], [0, 1, 2], [1, 2], [0, 1]):
        for op in ("sum", "mean", "max"):
            name = f"{op}-axes-{''.join(map(str, axes))}"
            keys = {"dtype": "bf16", "output_dtype": "fp32", "shape": [0, 0, 0], "axes": axes}
            found[name] = _case("rowwise", THREE, "fp32", op=op, **keys)
    found["softmax-huge"] = _case(
        "rowwise", [[HUGE // 4096, 4096]], "bf16", op="softmax", dtype="bf16", shape=[0, 4096]
    )
    return found


def _elementwise() -> dict[str, dict[str, Any]]:
    half = {"x": "fp16", "bias": "fp32", "gate": "bf16"}
    return {
        "gated": _case(
            "elementwise", [*THREE, [1024, 8, 1024]], "fp16", inputs=half, shape=[0, 0, 0],
            expression="gelu(x + bias) * where(gate > 0, gate, 0.5) ** 2", shapes={"bias": [0, 1], "gate": [0]},
        ),
        "everything": _case(
            "elementwise", [[2, 3, 5, 4], [2, 3, 4, 7], [3, 1, 2, 8], [17, 5, 33, 129]], "fp32", 2e-6,
            inputs={"c": "fp32", "a": "fp32", "b": "fp32", "d": "fp32"}, shape=[0, 0, 0, 0],
            expression="max(a, -b) - relu(c) / 3 + sigmoid(a) - silu(b) + min(a, b) * tanh(c) + abs(a) + d"
            " + erf(a) - gelu_tanh(b) + rsqrt(1 + c * c) * sqrt(abs(b)) + sin(a) * cos(b) + pow(abs(c), 1.5)"
            " + log(1 + exp(a)) + floor(b) - ceil(c) + where(not (a < b) and c != 0 or d >= 2, 1, -1)",
            shapes={"b": [1, 0, 1, 0], "d": [1], "c": [0, 0, 1, 1]},
        ),
        "add": _case("elementwise", ROWS, "bf16", inputs={"x": "bf16", "z": "bf16"}, shape=[0, 0], expression="x + z"),
        "add-to-fp32": _case(
            "elementwise", ROWS, "fp32", inputs={"x": "bf16", "z": "fp16"}, output_dtype="fp32", shape=[0, 0],
            expression="x + z",
        ),
        "huge": _case("elementwise", [[HUGE]], "bf16", inputs={"x": "bf16"}, shape=[0], expression="relu(x) + 1"),
    }  # fmt: skip


def _gemms_80() -> dict[str, dict[str, Any]]:
    found = {}
    for dtype, output in (("fp16", "fp16"), ("bf16", "bf16"), ("tf32", "fp32"), ("fp32", "fp32"), ("int8", "int32")):
        found[f"gemm-{dtype}"] = _case("gemm", _sizes(dtype), output, dtype=dtype)
    for layout in ("rrr", "ccr"):
        found[f"gemm-{layout}"] = _case("gemm", ODD, "fp16", layout=layout)
    found["gemm-ccr"]["refused"] = MISALIGNED
    for epilogue in ("relu", "bias", "bias_gelu", "bias_silu", "bias_sigmoid", "bias_tanh"):
        found[f"gemm-{epilogue}"] = _case("gemm", ODD, "fp16", epilogue=epilogue)
    for epilogue in ("bias_add", "silu_multiply", "bias_relu_add"):
        found[f"gemm-{epilogue}"] = _case("gemm", ODD, "bf16", epilogue=epilogue, dtype="bf16")
    found["gemm-batched"] = _case("gemm", BATCHES, "fp16", epilogue="bias_gelu", batched=True)
    found["gemm-batched-ccr"] = _case("gemm", BATCHES, "fp32", dtype="tf32", layout="ccr", batched=True)
    found["gemm-batched-multiply"] = _case("gemm", BATCHES, "fp16", epilogue="bias_sigmoid_multiply", batched=True)
    found["gemm-grouped"] = _case("gemm", [*GROUPS, [8, 8, 8, 8, 8, 12]], "fp16", epilogue="bias_gelu", grouped=True)
    found["gemm-grouped"]["refused"] = [[8, 8, 8, 8, 8, 12]]
    found["gemm-grouped-rrr"] = _case("gemm", GROUPS, "bf16", dtype="bf16", layout="rrr", grouped=True)
    # Each part is rounded to the type of the result.
    found["gemm-split"] = _case("gemm", DEEP, "fp16", 2e-3, epilogue="bias_relu", split_k=3)
    found["gemm-split-fp32"] = _case("gemm", DEEP, "fp32", output_dtype="fp32", split_k=8)
    found["gemm-split-int8"] = _case("gemm", DEEP, "int32", dtype="int8", split_k=4)
    found["gemm-unaligned"] = _case("gemm", [[33, 31, 34], [1, 31, 2]], "fp16", n=31, alignment=2)
    found["gemm-fp16-accumulator"] = _case("gemm", ODD, "fp16", 2e-2, accumulator="fp16")
    return found


def _convolutions() -> dict[str, dict[str, Any]]:
    """Also of channels and filters that are no multiple of 16 bytes."""
    every: dict[str, tuple[str, dict[str, Any]]] = {
        "same": ("fp16", {"shape": [64], "filters": 96, "kernel": [3, 3], "padding": [1, 1], "epilogue": "bias_relu"}),
        "first": ("bf16", {"shape": [8], "filters": 72, "kernel": [7, 5], "padding": [3, 2], "stride": [2, 1],
                           "epilogue": "bias_silu", "dtype": "bf16"}),
        "points": ("fp16", {"shape": [520], "filters": 264, "kernel": [1, 1], "epilogue": "gelu"}),
        "holes": ("fp32", {"shape": [12], "filters": 20, "kernel": [3, 2], "dilation": [2, 3], "dtype": "tf32"}),
        "wider": ("fp32", {"shape": [40], "filters": 136, "kernel": [2, 3], "stride": [3, 2], "dtype": "bf16",
                           "output_dtype": "fp32", "epilogue": "bias"}),
        "unaligned": ("fp16", {"shape": [6], "filters": 31, "kernel": [3, 3], "padding": [0, 2], "stride": [2, 3],
                               "dilation": [1, 2], "epilogue": "bias_sigmoid"}),
    }  # fmt: skip
    return {
        f"conv2d-{name}": _case("conv2d", IMAGES, output, **{**keys, "shape": [0, 0, 0, *keys["shape"]]})
        for name, (output, keys) in every.items()
    }


def _op(kind: str, *inputs: str, **keys: Any) -> dict[str, Any]:
    return {"kind": kind, "inputs": list(inputs), **keys}


def _tensors(dtype: str, **shapes: list[Any]) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": dtype} for name, shape in shapes.items()}


def _models(generation: str) -> dict[str, dict[str, Any]]:
    """Some twice: one operation after another, and beside each other. What is between operations is rounded too."""
    plain: dict[str, tuple[str, list[list[int]], float, dict[str, Any]]] = {
        "mlp": ("n", [[1], [512], [37]], 4e-3, {
            "inputs": _tensors("fp16", x=["n", 256]),
            "constants": _tensors("fp16", w1=[512, 256], b1=[512], gain=[512], shift=[512], w2=[256, 512], b2=[256],
                                  w3=[16, 256], b3=[16]),
            "ops": {
                "hidden": _op("gemm", "x", "w1", "b1", epilogue="bias_gelu"),
                "normed": _op("rowwise", "hidden", "gain", "shift", op="layer_norm"),
                "back": _op("gemm", "normed", "w2", "b2", "x", epilogue="bias_add"),
                "logits": _op("gemm", "back", "w3", "b3", epilogue="bias"),
                "y": _op("rowwise", "logits", op="softmax", output_dtype="fp32"),
            },
            "outputs": ["y"],
        }),
        "attention": ("n", [[1], [16], [5]], 1.5e-2, {
            "inputs": _tensors("bf16", x=["n", 128, 256]),
            "constants": _tensors("bf16", wq=[64, 256], wk=[64, 256], wv=[64, 256], wo=[256, 64], gain=[256]),
            "ops": {
                "out": _op("elementwise", "x", "mixed", expression="x + mixed"),
                "normed": _op("rowwise", "x", "gain", op="rms_norm"),
                **{name: _op("gemm", "normed", f"w{name}") for name in ("q", "k", "v")},
                "scores": _op("gemm", "q", "k", output_dtype="fp32"),
                "scaled": _op("elementwise", "scores", expression="scores * 0.125"),
                "weights": _op("rowwise", "scaled", op="softmax", output_dtype="bf16"),
                "seen": _op("gemm", "weights", "v", layout="rrr"),
                "mixed": _op("gemm", "seen", "wo"),
            },
            "outputs": ["out", "weights"],
        }),
        "views": ("n", [[1], [16], [5]], 1.5e-2, {
            "inputs": _tensors("bf16", x=["n", 8, 64], z=[32, 64]),
            "constants": _tensors("bf16", w=[192, 64]),
            "ops": {
                "each": _op("split", "w", sizes=[64, 64, 64]),
                "rows": _op("reshape", "x", shape=["n", 2, -1, 64]),
                "q": _op("gemm", "rows", "each_0"),
                "left": _op("gemm", "z", "each_1"),
                "right": _op("gemm", "z", "each_2", epilogue="tanh"),
                "both": _op("concat", "left", "right"),
                "weights": _op("rowwise", "both", op="softmax"),
                "mixed": _op("gemm", "q", "weights"),
                "y": _op("reshape", "mixed", shape=["n", 512]),
                "below": _op("slice", "both", start=32),
                "half": _op("elementwise", "below", expression="below * 0.5"),
                "last": _op("permute", "more", axes=[1, 0, 2]),
                "more": _op("reshape", "half", shape=[1, 32, 64]),
            },
            "outputs": ["y", "last"],
        }),
    }  # fmt: skip
    if not generation:
        plain["convolutions"] = ("n", [[1], [8], [3]], 4e-3, {
            "inputs": _tensors("fp16", x=["n", 17, 12, 8], scale=["n", 1, 1, 1]),
            "constants": _tensors("fp16", w1=[32, 3, 3, 8], b1=[32], w2=[64, 3, 2, 32], w3=[24, 64]),
            "ops": {
                "c1": _op("conv2d", "x", "w1", "b1", epilogue="bias_relu", padding=[1, 1]),
                "bright": _op("elementwise", "c1", "scale", expression="c1 * scale"),
                "c2": _op("conv2d", "bright", "w2", stride=[2, 1]),
                "largest": _op("rowwise", "c2", op="max", axes=[1, 2]),
                "y": _op("gemm", "largest", "w3", split_k=2),
                "means": _op("rowwise", "bright", op="mean", axes=[1, 2], output_dtype="fp32"),
            },
            "outputs": ["y", "means"],
        })  # fmt: skip
    found = {}
    for name, (size, sizes, most, table) in plain.items():
        case = _case("model", sizes, "fp32", most, **table)
        case["table"]["sizes"] = {size: [1, max(one[0] for one in sizes)]}
        found[f"model{generation}-{name}"] = case
        found[f"model{generation}-{name}-beside"] = {**case, "table": dict(case["table"]), "beside": True}
    return found


def _gemms_90() -> dict[str, dict[str, Any]]:
    found = {}
    for dtype, output in (("fp16", "fp16"), ("bf16", "fp32"), ("tf32", "fp32"), ("int8", "int32")):
        found[f"gemm90-{dtype}"] = _case("gemm", _sizes(dtype), output, dtype=dtype, output_dtype=output)
    for layout in ("rrr", "ccr"):
        found[f"gemm90-{layout}"] = _case("gemm", ODD, "bf16", layout=layout, dtype="bf16")
    found["gemm90-ccr"]["refused"] = MISALIGNED
    for epilogue in ("bias_gelu", "tanh", "multiply", "bias_relu_add"):
        found[f"gemm90-{epilogue}"] = _case("gemm", ODD, "fp16", epilogue=epilogue)
    found["gemm90-batched"] = _case("gemm", BATCHES, "fp16", epilogue="bias_gelu", batched=True)
    found["gemm90-batched-multiply"] = _case("gemm", BATCHES, "fp16", epilogue="bias_silu_multiply", batched=True)
    found["gemm90-split"] = _case("gemm", DEEP, "fp16", split_k=3)
    found["gemm90-e4m3"] = _case("gemm", BYTES, "fp16", dtype="fp8_e4m3", epilogue="bias_relu")
    found["gemm90-e5m2"] = _case("gemm", BYTES, "bf16", dtype="fp8_e5m2", output_dtype="bf16")
    return found


def _sizes(dtype: str) -> list[list[int]]:
    return BYTES if dtype == "int8" else ODD
