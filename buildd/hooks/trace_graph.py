"""Which of Dynamo's graphs mean the same in another process: those of torch's own operators on their inputs alone."""

from __future__ import annotations

from typing import Any

_OWN = ("aten", "prims", "prim", "_C", "_C_nn", "profiler")
"""Namespaces of operators whose code is torch's."""
_FROM = ("torch", "_operator", "operator", "math", "builtins", "einops")
_HIGHER = ("tag_activation_checkpoint", "autograd_function_apply", "wrap_with_set_grad_enabled", "wrap_with_autocast")


def check_graph(graph: Any) -> str:
    """Why a graph, as Dynamo hands it to its backend, cannot be kept; empty if it can."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            inner = getattr(graph, node.target, None)
            if not hasattr(inner, "graph"):
                return f"a graph with {node.target} inside"
            if why := check_graph(inner):
                return why
        elif node.op == "call_module":
            return f"a graph with module {node.target} inside"
        elif node.op == "call_function" and (why := _refusal(node.target)):
            return why
    return ""


def _refusal(target: Any) -> str:
    import torch

    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if target._name in _HIGHER else f"higher-order operator {target._name}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = getattr(target, "namespace", "") or str(getattr(target, "_qualified_op_name", "")).partition(":")[0]
        return "" if name in _OWN else f"operator {name}"
    module = getattr(target, "__module__", None) or ""
    if not module and type(target).__module__ == "builtins":
        return ""  # methods of torch's own types
    return "" if module.partition(".")[0] in _FROM else f"function {module}"
