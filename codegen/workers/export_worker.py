"""Exports a model from the user's Python code with torch.export. Run by the client's own interpreter.

Knows nothing of buildd: it imports the standard library, torch and the user's module, reads a JSON spec on stdin and
writes the archive that is named on its command line. Whatever the code prints goes where this script's output goes.

    python export_worker.py DEPFILE ARCHIVE < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which the model must not import.
    del sys.path[0]

import functools
import importlib.util
import inspect
import io
import json
import os
import re
import traceback
import types
import warnings
from collections.abc import Iterable
from typing import Any

sys.dont_write_bytecode = True
_problems: list[str] = []
"""Problems of this process before its first job, as messages for the users of all jobs."""


class Refused(Exception):
    """One message for the user: `where` is "FILE:LINE" or "FILE"."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def export(spec: dict[str, Any], archive: str, depfile: str) -> None:
    """Export the model of `spec`.

    Args:
        spec: source, function, factory, arguments, inputs, keyword_inputs, dims, device, strict, check, check_inputs,
            check_tolerance.
        archive: path that torch.export.save writes.
        depfile: path of the list of imported modules, one per line.
    """
    source = spec["source"]
    before = frozenset(sys.modules)
    try:
        torch = warm_up()
    except ImportError as error:
        raise Refused(f"torch cannot be imported by {sys.executable}: {error}", source) from error
    for problem in _problems:
        print(f"{source}: note: {problem}", file=sys.stderr)
    # A job uses one CPU, and torch's threads wait for each other if there are fewer CPUs than threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _model(torch, spec, _load(source))
    given, named = _given(torch, spec)
    program = _export(torch, spec, model, given, named)
    if spec["check"]:
        for several in [_tensors(torch, spec, each) for each in spec["check_inputs"]] or [given]:
            _check(torch, spec, model, program, several, named)
    _hide_folders(torch, program)
    torch.export.save(program, archive)
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(path + "\n" for path in _modules(before))


@functools.cache
def warm_up() -> Any:
    """Import torch, so that processes forked from this one need not."""
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    import torch
    import torch.export

    if __name__ != "__main__":
        _first_export(torch)
    return torch


def _first_export(torch: Any) -> None:
    """Do a first export: torch's preparations for it, mostly imports, take longer than the export. No result depends on
    it. If it fails, the jobs report that."""
    # The export computes, and a thread started by it would prevent forking.
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval()
    given = (torch.ones(3, 2),)
    try:
        with torch.no_grad():
            program = torch.export.export(model, given, dynamic_shapes=({0: torch.export.Dim("rows")},))
            program.module()(*given)
            torch.export.save(program, io.BytesIO())
    except Exception as error:  # errors of this installation of torch
        _problems.append(f"torch could not export a model of one layer, so this export takes longer: {_said(error)}")


def _load(source: str) -> types.ModuleType:
    path = os.path.abspath(source)
    sys.path[:0] = list(dict.fromkeys((os.path.dirname(path), os.getcwd())))
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules or not name.isidentifier():
        name = "_model_" + re.sub(r"\W", "_", name)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except SyntaxError as error:
        raise Refused(f"{error.msg}", f"{_shown(error.filename or source)}:{error.lineno or 1}") from error
    except (Exception, SystemExit) as error:  # The user's code may raise anything while it is imported.
        raise Refused(f"cannot be imported: {_said(error)}", _where_raised(error, source)) from error
    return module


def _model(torch: Any, spec: dict[str, Any], module: types.ModuleType) -> Any:
    """Return the torch.nn.Module that is exported."""
    source, name = spec["source"], spec["function"]
    value = getattr(module, name, None)
    if value is None:
        here = [key for key, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__]
        hint = f"; it has {', '.join(sorted(here))}" if here else ""
        raise Refused(f"there is no {name}{hint}", source)
    is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
    if spec["factory"] or is_class:
        try:
            value = value(**spec["arguments"])
        except (Exception, SystemExit) as error:  # the user's code
            raise Refused(f"{name}() failed: {_said(error)}", _where_raised(error, source)) from error
    elif spec["arguments"]:
        raise Refused(f"{name} takes no arguments: it is neither a class of modules nor a factory", source)
    if isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise Refused(f"{name} is TorchScript, which torch.export does not take: name the module itself", source)
    if isinstance(value, torch.nn.Module):
        return value.eval().to(device_of(spec))
    if not callable(value):
        raise Refused(f"{name} is a {type(value).__name__}, neither a torch.nn.Module nor a function", source)

    module = torch.nn.Module()
    vars(module)["forward"] = value  # with its own parameters, by which sizes are named
    return module.eval()


def device_of(spec: dict[str, Any]) -> str:
    """Return torch's name of the device: it calls AMD's GPUs "cuda", too."""
    return "cuda" if spec["device"] == "hip" else str(spec["device"])


def _given(torch: Any, spec: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the example inputs, by position and by name."""
    given = _tensors(torch, spec, spec["inputs"])
    return given, dict(zip(spec["keyword_inputs"], _tensors(torch, spec, spec["keyword_inputs"].values()), strict=True))


def _tensors(torch: Any, spec: dict[str, Any], several: Iterable[dict[str, Any]]) -> list[Any]:
    sizes = _sizes(spec)
    return [_tensor(torch, one, sizes).to(device_of(spec)) for one in several]


def _tensor(torch: Any, one: dict[str, Any], sizes: dict[str, int]) -> Any:
    shape = [sizes[size] if isinstance(size, str) else size for size in one.get("shape", ())]
    kind = getattr(torch, one.get("dtype", "float32"))
    if kind.is_complex:
        return torch.randn(shape, dtype=kind)
    if kind.is_floating_point:
        return torch.randn(shape).to(kind)
    return torch.randint(0, one.get("high", 2), shape).to(kind)


def _sizes(spec: dict[str, Any]) -> dict[str, int]:
    """Return example values of the sizes that may change: different ones, because torch.export treats equal sizes as
    one shared size, and if possible neither 0 nor 1, because it treats those as sizes that never change."""
    found: dict[str, int] = {}
    for one in (*spec["inputs"], *spec["keyword_inputs"].values()):
        for size in one.get("shape", ()):
            if isinstance(size, str) and size not in found:
                low, high = spec["dims"].get(size, (2, 1 << 20))
                at = min(max(low, 3), high)
                while at in found.values() and at < high:
                    at += 1
                found[size] = at
    return found


def _export(torch: Any, spec: dict[str, Any], model: Any, given: list[Any], named: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {}
    for name in _sizes(spec):
        low, high = spec["dims"].get(name, (None, None))
        sizes[name] = torch.export.Dim(name, min=low, max=high)

    def moving(one: dict[str, Any]) -> dict[int, Any]:
        return {index: sizes[size] for index, size in enumerate(one.get("shape", ())) if isinstance(size, str)}

    parameters = list(inspect.signature(model.forward).parameters)
    shapes = {name: moving(one) for name, one in zip(parameters, spec["inputs"], strict=False)}
    shapes |= {name: moving(one) for name, one in spec["keyword_inputs"].items()}
    try:
        return torch.export.export(
            model, tuple(given), named or None, dynamic_shapes=shapes if sizes else None, strict=spec["strict"]
        )
    except Exception as error:  # Errors that torch.export finds in the user's code.
        raise Refused(f"cannot be exported: {_said(error)}", _where_raised(error, spec["source"])) from error


def _check(torch: Any, spec: dict[str, Any], model: Any, program: Any, given: list[Any], named: dict[str, Any]) -> None:
    """Check the exported program as torch.jit.trace does with check_trace."""
    tolerance = spec["check_tolerance"]
    with torch.no_grad():
        wanted, found = model(*given, **named), program.module()(*given, **named)
    try:
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        raise Refused(
            f"the exported program computes other results than the model (does it use random numbers?): {_said(error)}",
            spec["source"],
        ) from error


def _hide_folders(torch: Any, program: Any) -> None:
    """Make the lines that each node came from relative to the project and to the folder of packages: the archive is a
    key, and another checkout has the same model."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    folders = sorted({os.getcwd(), os.path.realpath(os.getcwd()), packages, os.path.realpath(packages)}, key=len)
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            trace = node.meta.get("stack_trace")
            if isinstance(trace, str):
                for folder in reversed(folders):  # a folder of packages may be inside the project
                    trace = trace.replace(f'File "{folder}{os.sep}', 'File "')
                node.meta["stack_trace"] = trace


def _modules(before: frozenset[str]) -> list[str]:
    """Return the user's modules, which are outside the folders of installed packages; sorted."""
    import sysconfig

    installed = tuple(path + os.sep for path in sysconfig.get_paths().values())
    loaded = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in before]
    found = {os.path.abspath(path) for path in loaded if path} - {os.path.abspath(__file__)}
    return sorted(path for path in found if not path.startswith(installed) and os.path.isfile(path))


# ---------------------------------------------------------------- messages


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or "no message"
    return f"{type(error).__name__}: {text[:1000]}"


def _shown(path: str) -> str:
    """Return a path relative to the project."""
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside


def _where_raised(error: BaseException, source: str) -> str:
    """Return the last line of the project's own code in a traceback."""
    here = os.getcwd() + os.sep
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    return f"{_shown(own[-1].filename)}:{own[-1].lineno}" if own else source


def main(arguments: list[str]) -> int:
    try:
        depfile, archive = arguments
        export(json.load(sys.stdin), archive, depfile)
    except Refused as error:
        print(f"{error.where}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
