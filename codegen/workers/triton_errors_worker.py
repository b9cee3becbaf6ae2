"""Where in the user's files an error of one compile of `triton_worker` stands, and what it says.

Knows nothing of buildd; imports only the standard library. Paths are shown as `triton_sources_worker` shows them.
"""

from __future__ import annotations

import ast
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any


def unwrapped(value: Any, kind: type) -> Any:
    """Return the JIT function, which is of `kind`, inside autotuners and heuristics; None if there is none."""
    for _ in range(8):
        if isinstance(value, kind):
            return value
        # Only Triton's own wrappers: reading an attribute of an arbitrary object may run code (ctypes loads a library).
        if not type(value).__module__.startswith("triton."):
            return None
        value = getattr(value, "fn", None)
    return None


def definition(function: Any, source: str, shown: Callable[[str], str]) -> str:
    """Return the line of a function's `def`, as "kernels/add.py:12": Triton counts error lines from there.

    Args:
        source: the file, if the function has no code.
        shown: from a path to what is shown of it.
    """
    lines = list(getattr(function, "raw_src", ()))
    above = next((index for index, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    code = getattr(getattr(function, "fn", None), "__code__", None)
    file = shown(code.co_filename) if code is not None else source
    return f"{file}:{getattr(function, 'starting_line_number', 1) + above}"


def innermost(error: Any, function: Any, source: str, shown: Callable[[str], str]) -> tuple[str, str]:
    """Return message and place of the innermost of Triton's errors: the outer ones repeat it for each caller."""
    inner = error
    seen = set()
    while id(inner) not in seen:
        seen.add(id(inner))
        cause = inner.__cause__
        if cause is not None and type(cause) is type(error) and getattr(cause, "node", None) is not None:
            inner = cause
    file, line = definition(_owner(inner.src, function), source, shown).rsplit(":", 1)
    offset = getattr(inner.node, "lineno", 1) if isinstance(inner.node, ast.AST) else 1
    reason = inner.error_message or ""
    if not reason and inner.__cause__ is not None:
        reason = said(inner.__cause__)
    return reason or said(inner), f"{file}:{int(line) + offset - 1}"


def _owner(text: str | None, function: Any) -> Any:
    """Return the JIT function whose source an error shows: perhaps a callee from another module."""
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if isinstance(module, types.ModuleType) else ():
            inner = unwrapped(value, type(function))
            if inner is not None and inner.src == text:
                return inner
    return function


def raised(error: BaseException, source: str) -> str:
    """Return the last line of the user's own code in a traceback, or the source if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not os.path.isabs(frame.filename) and not frame.filename.startswith("triton/")]
    own = [frame for frame in own if not frame.filename.startswith("<")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else source


def said(error: BaseException) -> str:
    """Return the first lines of an error's message, after the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or "no message"
    return f"{type(error).__name__}: {text}"
