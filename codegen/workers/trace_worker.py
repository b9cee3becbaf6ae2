"""Traces a model from the user's Python code with torch.jit.trace. Run by the client's own interpreter.

Knows nothing of buildd: it imports the standard library, torch, the user's module and the script beside it that reads
models, reads a JSON spec on stdin and writes the TorchScript file that is named on its command line.

    python trace_worker.py DEPFILE TRACE < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which the model must not import.
    del sys.path[0]

import importlib.util
import json
import os
import types
import warnings
from typing import Any

sys.dont_write_bytecode = True


def _module_of(name: str) -> types.ModuleType:
    """Return a script beside this one as a module."""
    # No user's module has such a name.
    found = importlib.util.spec_from_file_location(
        f"buildd {name}", os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    )
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


_models = _module_of("export_worker.py")


def trace(spec: dict[str, Any], path: str, depfile: str) -> None:
    """Trace the model of `spec`.

    Args:
        spec: source, function, factory, arguments, inputs, keyword_inputs, dims, device, strict, check, check_inputs,
            check_tolerance.
        path: of the TorchScript file.
        depfile: path of the list of imported modules, one per line.
    """
    source = spec["source"]
    before = frozenset(sys.modules)
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        import torch
    except ImportError as error:
        raise _models.Refused(f"torch cannot be imported by {sys.executable}: {error}", source) from error
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _models._model(torch, spec, _models._load(source))
    # A function of the user's is in the place of a module's forward: torch.jit.trace takes it as it is.
    value = vars(model).get("forward", model)
    given, named = _models._given(torch, spec)
    sets = [_models._tensors(torch, spec, each) for each in spec["check_inputs"]]
    try:
        with torch.no_grad():
            traced = torch.jit.trace(
                value,
                example_inputs=tuple(given) if given else None,
                check_trace=spec["check"],
                check_inputs=[tuple(each) for each in sets] or None,
                check_tolerance=spec["check_tolerance"],
                strict=spec["strict"],
                example_kwarg_inputs=named or None,
            )
        traced.save(path)
    except Exception as error:  # errors that torch finds in the user's code, or that the code raises
        raise _models.Refused(
            f"cannot be traced: {_models._said(error)}", _models._where_raised(error, source)
        ) from error
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(name + "\n" for name in _models._modules(before))


def main(arguments: list[str]) -> int:
    try:
        depfile, path = arguments
        trace(json.load(sys.stdin), path, depfile)
    except _models.Refused as error:
        print(f"{error.where}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
