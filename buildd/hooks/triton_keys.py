"""Adds to Triton's key of a kernel what Triton leaves out of it: constants that it finds by an attribute, as in
`tuning.BLOCK`, globals that a `constexpr_function` reads, and defaults of arguments.

Runs in the user's own process: standard library and triton only. Without this a kernel from the store could be one of
another constant, as one from Triton's own cache can be. Keys of kernels that use nothing of the kind stay Triton's own,
so that its cache stays warm.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

_MARK = "buildd_completes_keys"
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, type(None))
_OURS = ("triton", "torch")
_DEEPEST = 5


def complete(jit: Any) -> None:
    """Complete the keys.

    Args:
        jit: the module triton.runtime.jit.
    """
    finder: Any = getattr(jit, "DependenciesFinder", None)
    if not hasattr(finder, "record_reference") or hasattr(finder, _MARK):  # before Triton 3.2, or done already
        return
    record = finder.record_reference

    @functools.wraps(record)
    def record_reference(self: Any, val: Any, var_dict: Any = None, name: Any = None) -> None:
        record(self, val, var_dict, name)
        is_constant = type(val).__name__ == "constexpr"
        if is_constant and var_dict is not None and not self.visiting_arg_default_value:
            return  # it is in the key
        told = _told(val)
        if told:
            self.hasher.update(f"\0buildd {name} {told}".encode(errors="surrogateescape"))

    finder.record_reference = record_reference
    setattr(finder, _MARK, True)


def _told(value: Any, depth: int = 0) -> str:
    """A value in words that are the same in each process; empty for what only its file can tell."""
    if depth > _DEEPEST:
        return type(value).__name__
    if type(value).__name__ == "constexpr":
        inner = _told(value.value, depth + 1)
        return f"constexpr {inner}" if inner else ""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name} {_told(value.value, depth + 1)}"
    for kind in _PLAIN:
        if isinstance(value, kind):
            plain = value if type(value) is kind else kind(value)
            return f"{type(value).__name__} {plain!r}"
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # numpy's scalars
        return f"{value.dtype} {value.item()!r}"
    if isinstance(value, dict):
        items = (f"{_told(key, depth + 1)}: {_told(each, depth + 1)}" for key, each in value.items())
        return "dict " + ", ".join(sorted(items))
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} ({', '.join(_told(one, depth + 1) for one in value)})"
    if isinstance(value, (set, frozenset)):
        return "set " + ", ".join(sorted(_told(one, depth + 1) for one in value))
    if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton."):
        return f"dtype {value}"
    if depth == 0 or isinstance(value, type) or callable(value) or type(value).__module__.partition(".")[0] in _OURS:
        return ""  # the attributes that are read are seen one by one
    return f"{type(value).__qualname__} {_told(getattr(value, '__dict__', None), depth + 1)}"
