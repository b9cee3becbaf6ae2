"""Which frames of torch.compile may have a trace in the store: those of plain Inductor, in a process whose state a key
and guards can tell.

Knows the arguments of Dynamo's `_compile` by their names. Runs in the user's own process.
"""

from __future__ import annotations

import inspect
import os
import warnings
from types import CodeType
from typing import Any

from .trace_sources import code_digest, qualname_of

NEEDED = frozenset(
    {"code", "globals", "locals", "compiler_fn", "one_graph", "export", "hooks", "cache_size", "compile_id"}
)
"""Arguments of `_compile` without which no trace is kept."""
_RESUMES = "torch_dynamo_resume_in"
_LOGS = ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCHDYNAMO_REPRO_AFTER", "TORCH_LOGS_OUT")
"""A user who sets one of these wants to see a trace."""
_WRAPPER = "_TorchCompileInductorWrapper"


class Frame:
    """A call of Dynamo for a frame.

    Args:
        asked: what torch.compile was asked for, beside the backend.
    """

    def __init__(
        self, code: CodeType, f_locals: Any, f_globals: Any, backend: Any, asked: object, compile_id: Any
    ) -> None:
        self.code = code
        self.f_locals: dict[str, Any] = f_locals
        self.f_globals: dict[str, Any] = f_globals
        self.backend = backend
        self.asked = asked
        self.compile_id = compile_id
        self.place = f"{f_globals.get('__name__')} {qualname_of(code)} {code_digest(code, with_lines=True)}"


def frame_of(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> Frame | None:
    """The frame of a call of `_compile`; None if its trace is not to be kept or looked for."""
    bound = signature.bind(*arguments, **named)
    bound.apply_defaults()
    given = bound.arguments
    backend = given["compiler_fn"]
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    code, hooks = given["code"], given["hooks"]
    if (
        type(backend).__name__ != _WRAPPER
        or given["export"]
        or given.get("package") is not None
        or code.co_name.startswith(_RESUMES)
        or any(value is not None for value in vars(hooks).values())
        or any(os.environ.get(name) for name in _LOGS)
        or not _is_plain_state()
        or not _are_plain_settings(backend)
        or _has_many(given["cache_size"])
    ):
        return None
    return Frame(code, given["locals"], given["globals"], backend, given["one_graph"], given["compile_id"])


def _is_plain_state() -> bool:
    """Whether nothing is at work around the frame that a trace would depend on."""
    import torch
    from torch._dynamo import convert_frame
    from torch._logging import _internal as logs
    from torch.utils import _device
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    distributed = torch.distributed
    return not (
        _len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or (distributed.is_available() and distributed.is_initialized())
        or convert_frame._bytecode_hooks
        or torch.nn.modules.module._has_any_global_hook()
        or _device.CURRENT_DEVICE is not None
        or logs.log_state.artifact_names
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _are_plain_settings(backend: Any) -> bool:
    """Whether caches are used, and no graph is bound to this process."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with inductor.patch(dict(backend.config)):
        return bool(
            functorch.enable_autograd_cache
            and not getattr(functorch, "bundled_autograd_cache", False)
            and inductor.fx_graph_cache
            and not inductor.force_disable_caches
            and not inductor.freezing
            and not inductor.triton.cudagraphs
            and not dynamo.caching_precompile
            and not dynamo.compiled_autograd
            and dynamo.guard_nn_modules
            and _are_modules_inlined(dynamo)
        )


def _are_modules_inlined(dynamo: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a torch that always does
        return bool(getattr(dynamo, "inline_inbuilt_nn_modules", True))


def _has_many(cache_size: Any) -> bool:
    """Whether Dynamo would say that a frame has been compiled too often."""
    import torch._dynamo.config as dynamo

    return bool(cache_size.num_cache_entries >= dynamo.recompile_limit)
