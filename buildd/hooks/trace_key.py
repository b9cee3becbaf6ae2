"""What a trace of Dynamo's depends on beside its guards and sources: torch, Triton, Python, settings, the machine, the
inputs' sizes. The key under which the store has it.

Some of it Dynamo takes for granted while a process lives and has no guard for: torch's own sources, configurations, the
devices. Sizes are in its guards too; in the key they lead to the right one of several traces at once. Runs in the
user's own process.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from . import entries

VERSION = 2
"""The version of what is kept, and of how it is checked."""
_PARTS = (
    "_dynamo", "_inductor", "_functorch", "_higher_order_ops", "_decomp", "_refs", "_prims", "_prims_common",
    "_subclasses", "_dispatch", "_library", "fx", "_guards.py", "_ops.py", "_meta_registrations.py", "_logging",
)  # fmt: skip
"""The compiler, below torch's folder."""
_FLAGS = (
    "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled", "get_float32_matmul_precision", "_C._get_cublas_allow_tf32",
    "_C._get_cublas_allow_fp16_reduced_precision_reduction", "_C._get_cublas_allow_bf16_reduced_precision_reduction",
    "_C._get_cudnn_allow_tf32", "_C._get_cudnn_enabled", "_C._get_cudnn_benchmark", "_C._get_cudnn_deterministic",
    "_C._get_mkldnn_enabled", "_C._get_nnpack_enabled", "are_deterministic_algorithms_enabled", "get_default_dtype",
    "is_deterministic_algorithms_warn_only_enabled", "_C._get_privateuse1_backend_name", "is_inference_mode_enabled",
    "cuda.is_initialized", "_C._get_blas_preferred_backend", "_C._get_linalg_preferred_backend",
    "utils.deterministic.fill_uninitialized_memory", "_C._functorch.maximum_dispatch_depth",
)  # fmt: skip
"""What code that is traced, or Inductor, may ask of torch."""
_ENVIRONMENT = ("TORCH", "PYTORCH", "ATEN_", "TRITON_")
_PLACES = ("_DIR", "_PATH", "_HOME", "_MANAGER", "_URL", "_THREADS", "_REMOTE_CACHE")
"""Endings of variables that say where something is."""
_PRIVATE = ("debug_dir_root", "base_dir", "log_file_name", "debug_dir", "inductor_mega_cache")
_MOST_ITEMS, _DEEPEST = 64, 3


class UnknownError(ValueError):
    """A setting that has no name in another process."""


def key_of(code: str, backend: Any, asked: object, f_locals: dict[str, Any], notes: str) -> str:
    """The key of a frame's trace. Raises UnknownError, OSError.

    Args:
        code: digest of the frame's code and the name of its place.
        backend: torch.compile's object for Inductor.
        asked: what else torch.compile was asked for.
        notes: folder for digests of sources, shared with other processes.
    """
    parts = [VERSION, code, repr(asked), *environment(notes), settings(backend), flags(), list(inputs(f_locals))]
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def environment(notes: str) -> list[str]:
    """Versions, sources of the compilers, variables, devices."""
    import torch

    found = [
        sys.version, platform.machine(), sys.platform, torch.__version__, str(torch.version.git_version),
        str(torch.version.cuda), str(getattr(torch.version, "hip", None)),
        _sources_of(os.path.dirname(torch.__file__), _PARTS, notes),
    ]  # fmt: skip
    triton = find_spec("triton")
    if triton is not None and triton.origin:
        found.append(_sources_of(os.path.dirname(triton.origin), ("",), notes))
    for name, value in sorted(os.environ.items()):
        if name.startswith(_ENVIRONMENT) and not name.endswith(_PLACES):
            found.append(f"{name}={value}")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        found += [*names, str(torch.cuda.current_device())]
    return found


def _sources_of(root: str, parts: tuple[str, ...], notes: str) -> str:
    """Digest of the Python files below some folders of a package, and of the sizes of its libraries."""
    paths = sorted(_files(root, parts))

    def value() -> str:
        hasher = hashlib.blake2b(digest_size=16)
        for path in paths:
            hasher.update(os.path.relpath(path, root).encode() + b"\0")
            if path.endswith(".py"):
                with open(path, "rb") as file:
                    hasher.update(file.read())
            else:
                hasher.update(str(os.stat(path).st_size).encode())
        return hasher.hexdigest()

    return entries.remembered(f"sources {parts}", value, lambda: [entries.stamp_of(path) for path in paths], notes)


_TEXTS = (".py", ".so", ".jinja", ".cpp", ".h")
"""Inductor copies some of these into what it generates."""


def _files(root: str, parts: tuple[str, ...]) -> Iterator[str]:
    for part in parts:
        top = os.path.join(root, part) if part else root
        if os.path.isfile(top):
            yield top
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (os.path.join(folder, name) for name in names if name.endswith(_TEXTS))


def settings(backend: Any) -> list[str]:
    """The configurations of Dynamo, AOTAutograd and Inductor."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as fx

    given = dict(backend.config)
    found = [said(given), said(getattr(backend, "dynamic", None))]
    with inductor.patch(given):
        for config in (dynamo, functorch, inductor, fx):
            listed = config.save_config_portable().items()
            found.append(said({name: value for name, value in listed if name not in _PRIVATE}))
    return found


def said(value: Any) -> str:
    """A setting in words that are the same in each process. Raises UnknownError."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{said(name)}: {said(one)}" for name, one in value.items())) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[" + ", ".join(map(said, value)) + "]"
    if isinstance(value, set | frozenset) or type(value).__name__ == "OrderedSet":
        return "{" + ", ".join(sorted(map(said, value))) + "}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        raise UnknownError(text)
    return text


def flags() -> list[str]:
    """What torch's switches are set to now."""
    import torch

    found = []
    for name in _FLAGS:
        value: Any = torch
        for part in name.split("."):
            value = getattr(value, part, None)
        found.append(f"{name} {_called(value)}")
    state = torch._C._dynamo.guards.GlobalStateGuard()
    dump: Callable[[], object] | None = getattr(state, "__getstate__", None)
    found.append(str(dump()) if dump is not None else _states())
    return found


def _called(value: Any) -> object:
    try:
        return value() if callable(value) else value
    except Exception as error:  # a switch of a backend that this torch lacks
        return type(error).__name__


def _states() -> str:
    import torch

    devices = ("cpu", "cuda", "xpu", "hpu", "mps")
    casts = [(name, _called(lambda name=name: torch.get_autocast_dtype(name))) for name in devices]
    on = [(name, _called(lambda name=name: torch.is_autocast_enabled(name))) for name in devices]
    return repr((torch.is_grad_enabled(), torch.get_num_threads(), torch.is_autocast_cache_enabled(), casts, on))


def inputs(value: Any, depth: int = 0) -> Iterator[str]:
    """Kinds and sizes of the tensors among a frame's variables, and its plain values."""
    import torch

    if isinstance(value, torch.Tensor):
        layout = (value.layout, tuple(value.stride()) if value.layout is torch.strided else ())
        sizes = (tuple(value.shape), value.dtype, value.device, value.requires_grad, layout)
        yield f"{type(value).__name__} {sizes}"
    elif isinstance(value, dict) and type(value) is dict and depth < _DEEPEST:
        for name in list(value)[:_MOST_ITEMS]:
            yield f"{name if isinstance(name, str) else type(name).__name__}:"
            yield from inputs(value[name], depth + 1)
        yield f"{len(value)}."
    elif isinstance(value, list | tuple) and depth < _DEEPEST:
        for one in value[:_MOST_ITEMS]:
            yield from inputs(one, depth + 1)
        yield f"{len(value)}."
    elif value is None or isinstance(value, bool | int | float | str):
        yield f"{type(value).__name__} {value!r}"
    else:
        yield type(value).__qualname__
