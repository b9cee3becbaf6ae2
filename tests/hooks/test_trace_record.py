"""What stands for the globals that Dynamo's bytecode needs."""

from __future__ import annotations

import builtins
from typing import Any

from buildd.hooks import trace_record


def test_the_module_builtins_is_not_the_dictionary_of_builtins() -> None:
    """Dynamo installs both in the frame's module, under different names."""
    capture = trace_record.TraceCapture()
    capture.installed = {"__builtins_dict___0": vars(builtins), "__import_builtins": builtins, "__compiled_fn_1": None}
    code = compile("__builtins_dict___0, __import_builtins, __compiled_fn_1", "program", "eval")
    inside: dict[str, Any] = {"__builtins__": builtins}
    found = {
        name: trace_record._value_of(module, path, inside)
        for name, module, path in trace_record._globals_of(capture, code, "", inside)
        if not name.startswith("__compiled_fn")
    }
    assert found["__import_builtins"] is builtins
    assert found["__builtins_dict___0"] is vars(builtins)
