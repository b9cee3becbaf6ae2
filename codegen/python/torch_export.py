"""Plans the action that runs the user's code to export a model into the archive that kind `torch` compiles.

The action is never answered from the store, because code may read anything. The model is exported each time, and later
actions are keyed by the archive's bytes. Knows no compiler.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import NoReturn

import msgspec

from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Action, Discovery, Frozen, Output, Place, Ref, Resources, Tool, ToolFile
from codegen.project.target import OptionValue, TensorSpec, TorchTarget
from codegen.python.worker import FOLDER, Worker

WORKER = FOLDER / "export_worker.py"
DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "uint8"}
    | {"int8", "int16", "int32", "int64"}
)
_BASE_BYTES = 700 << 20
_WALL_S = 6.0
_SOURCE_ONLY = ("function", "factory", "arguments", "inputs", "keyword_inputs", "dims", "strict", "check_inputs")


class SourceModel(Frozen, frozen=True):
    """A model in code and its arguments; fields as in `TorchTarget`."""

    source: str
    function: str
    factory: bool
    arguments: dict[str, OptionValue]
    inputs: tuple[TensorSpec, ...]
    keyword_inputs: dict[str, TensorSpec]
    dims: dict[str, tuple[int, int]]
    device: str


class ExportSpec(SourceModel, frozen=True):
    """The worker's standard input; fields as in `TorchTarget`."""

    strict: bool
    check: bool
    check_inputs: tuple[tuple[TensorSpec, ...], ...]
    check_tolerance: float


def check_source(context: Context, target: TorchTarget) -> None:
    """Check that the target's keys fit together. Raises RequestError: bad-project, missing-source."""
    if not target.source:
        for key in _SOURCE_ONLY:
            if getattr(target, key) not in (None, False, "", (), {}):
                _refuse(
                    target, f"{key} is for a model in a Python file", "name the file with `source`, or remove the key"
                )
        return
    if not target.source.endswith(".py"):
        _refuse(target, f'source must be a .py file, not "{target.source}"', "name the Python file with the model")
    if not os.path.isfile(os.path.join(context.folder, target.source)):
        raise RequestError(
            "missing-source",
            f'target "{target.name}": {target.source} does not exist',
            file=target.where,
            next_step="correct `source`; paths are relative to the project",
        )
    if not target.function.isidentifier():
        _refuse(
            target,
            f'"{target.function}" is not the name of a function',
            "write the name of a function, module or class",
        )
    if not target.inputs and not target.keyword_inputs:
        _refuse(target, "the model has no example inputs", 'write inputs = [{ shape = ["rows", 16] }]')
    if not target.check_tolerance >= 0:
        _refuse(target, "check_tolerance must not be below 0", "remove it, or give a small number")
    sizes = set()
    if any(len(each) != len(target.inputs) for each in target.check_inputs):
        _refuse(target, "each of check_inputs needs as many tensors as `inputs`", "correct it")
    for spec in (*target.inputs, *target.keyword_inputs.values(), *chain.from_iterable(target.check_inputs)):
        if spec.dtype not in DTYPES:
            _refuse(target, f'there is no dtype "{spec.dtype}"', "dtypes: " + ", ".join(sorted(DTYPES)))
        if spec.high < 1:
            _refuse(target, f"high must be at least 1, not {spec.high}", "correct it: all values are below high")
        for size in spec.shape:
            if isinstance(size, int) and size < 0:
                _refuse(
                    target, f"a size must not be below 0: {size}", 'for a size that may change write a name: "rows"'
                )
            if isinstance(size, str) and not size.isidentifier():
                _refuse(target, f'"{size}" is not a valid name of a size', "use letters, digits and _")
            sizes.add(size)
    for name, (low, high) in target.dims.items():
        if name not in sizes:
            _refuse(target, f'dims names "{name}", which is not a size of an input', "remove it")
        if not 0 <= low < high:
            _refuse(target, f"dims: {name} = [{low}, {high}] is not a range", "write the smallest and the largest size")


def _refuse(target: TorchTarget, message: str, next_step: str) -> NoReturn:
    raise RequestError("bad-project", f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def export_action(context: Context, target: TorchTarget, worker: Worker, torch: Tool) -> tuple[Action, Tool]:
    """Return the action that makes the archive, and its tool.

    Args:
        worker: the worker that compiles; the export uses its interpreter and environment.
        torch: the identity of torch.
    """
    source = os.path.normpath(target.source)
    name = f"{target.output_name or target.name}.exported.pt2"
    fields = {field: getattr(target, field) for field in ExportSpec.__struct_fields__}
    spec = ExportSpec(**{**fields, "strict": bool(target.strict)})
    # The user's code may read files in its home folder.
    home = context.environment.get("HOME", "")
    environment = {**dict(worker.environment), **({"HOME": home} if home else {})}
    action = Action(
        name=f"{target.name}/{name}",
        kind="export",
        tool="torch export",
        argv=(
            worker.program,
            Ref(place=Place.ROOT, name="worker", suffix="/" + WORKER.name),
            Ref(place=Place.DEPFILE),
            Ref(place=Place.OUTPUT, name="archive"),
        ),
        environment=tuple(sorted(environment.items())),
        payload=msgspec.json.encode(msgspec.structs.replace(spec, source=source), order="sorted"),
        inputs=(source,),
        outputs=(Output(name="archive", path=f"{context.build}/{target.name}/{name}"),),
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((os.path.dirname(source) or ".", ".", *worker.python_path))),
        uncacheable="the model's code may read anything",
        traces=True,
        warm=target.device == "cpu",
        resources=Resources(memory_bytes=_BASE_BYTES, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
    files = (ToolFile(role="export worker", path=str(WORKER)), *torch.files)
    return action, msgspec.structs.replace(torch, name="torch export", files=files)
