"""The kinds of targets by the names that a project file gives them, and what their libraries call some of the keys.

Knows no file and no generator.
"""

from __future__ import annotations

from codegen.project.target import (
    Conv2dTarget,
    CudaTarget,
    ElementwiseTarget,
    ExtensionTarget,
    GemmTarget,
    HipTarget,
    JaxTarget,
    ModelTarget,
    RecordedTarget,
    RowwiseTarget,
    Target,
    TorchTarget,
    TritonTarget,
)

KINDS: dict[str, type[Target]] = {
    "cuda": CudaTarget,
    "hip": HipTarget,
    "gemm": GemmTarget,
    "conv2d": Conv2dTarget,
    "rowwise": RowwiseTarget,
    "elementwise": ElementwiseTarget,
    "model": ModelTarget,
    "triton": TritonTarget,
    "torch": TorchTarget,
    "jax": JaxTarget,
    "extension": ExtensionTarget,
}
INLINE_KINDS: dict[str, type[Target]] = {**KINDS, "recorded": RecordedTarget}
"""Kinds of a request's inline tables. "recorded" is only generated, never written by hand."""
ALIASES: dict[type[Target], dict[str, str]] = {
    TorchTarget: {
        "func": "function",
        "model": "function",
        "example_inputs": "inputs",
        "example_kwarg_inputs": "keyword_inputs",
        "check_trace": "check",
    }
}
"""Other names of keys: the ones that torch itself uses."""
REFUSED: dict[type[Target], dict[str, str]] = {
    TorchTarget: {
        "optimize": "torch ignores it",
        "name": "it names the compiled function in torch's logs, and changes no result",
        "shapes_spec": "its value is code; named sizes and `dims` say which sizes may change",
        "recompile_limit": "it limits recompiles in the process that uses the model",
        "isolate_recompiles": "it concerns the process that uses the model",
        "package_path": "buildd chooses where results are written",
    }
}
"""Names that are no keys, though a library has such a parameter -> why."""
