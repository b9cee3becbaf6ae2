"""A model in Python code -> the archive that kind `torch` compiles: an action that runs the user's code.

Never answered from the store: code may read anything. It is exported again each time, and what follows is found by the
archive's bytes. Knows no compiler.
"""

from __future__ import annotations

import os
from typing import NoReturn

import msgspec

from codegen.context import Context
from codegen.plan import Action, Discovery, Frozen, Output, Place, Ref, RequestError, Resources, Tool, ToolFile
from codegen.python_worker import FOLDER, Worker
from codegen.target import OptionValue, TensorSpec, TorchTarget

WORKER = FOLDER / "worker_export.py"
DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "uint8"}
    | {"int8", "int16", "int32", "int64"}
)
_BASE_BYTES = 700 << 20
_WALL_S = 6.0
_SOURCE_ONLY = ("function", "factory", "arguments", "inputs", "keyword_inputs", "dims", "strict")


class Model(Frozen, frozen=True):
    """A model in code, and what it is called with; fields as in `TorchTarget`."""

    source: str
    function: str
    factory: bool
    arguments: dict[str, OptionValue]
    inputs: tuple[TensorSpec, ...]
    keyword_inputs: dict[str, TensorSpec]
    dims: dict[str, tuple[int, int]]


class Spec(Model, frozen=True):
    """What the worker reads on its standard input; fields as in `TorchTarget`."""

    strict: bool
    check: bool
    check_tolerance: float


def check_source(context: Context, target: TorchTarget) -> None:
    """Whether the target's keys go together. Raises RequestError: bad-project, missing-source."""
    if not target.source:
        for key in _SOURCE_ONLY:
            if getattr(target, key):
                _refuse(target, f"{key} is for a model in a Python file", "name it with `source`, or remove the key")
        return
    if not target.source.endswith(".py"):
        _refuse(target, f'source must be a .py file, not "{target.source}"', "name the file that has the model")
    if not os.path.isfile(os.path.join(context.folder, target.source)):
        raise RequestError(
            "missing-source",
            f'target "{target.name}": there is no {target.source}',
            file=target.where,
            next_step="paths are relative to the project",
        )
    if not target.function.isidentifier():
        _refuse(target, f'"{target.function}" names no function', "write the name of a function, module or class")
    if not target.inputs and not target.keyword_inputs:
        _refuse(target, "nothing says what the model is traced with", 'write inputs = [{ shape = ["rows", 16] }]')
    if not target.check_tolerance >= 0:
        _refuse(target, "check_tolerance must not be below 0", "remove it, or give a small number")
    sizes = set()
    for spec in (*target.inputs, *target.keyword_inputs.values()):
        if spec.dtype not in DTYPES:
            _refuse(target, f'there is no dtype "{spec.dtype}"', "dtypes: " + ", ".join(sorted(DTYPES)))
        if spec.high < 1:
            _refuse(target, f"high must be at least 1, not {spec.high}", "values are below it")
        for size in spec.shape:
            if isinstance(size, int) and size < 0:
                _refuse(target, f"a size must not be below 0: {size}", 'for one that may change write a name: "rows"')
            if isinstance(size, str) and not size.isidentifier():
                _refuse(target, f'"{size}" cannot be the name of a size', "use letters, digits and _")
            sizes.add(size)
    for name, (low, high) in target.dims.items():
        if name not in sizes:
            _refuse(target, f'dims names "{name}", which is no size of an input', "remove it")
        if not 0 <= low < high:
            _refuse(target, f"dims: {name} = [{low}, {high}] is no range", "write the smallest and the largest size")


def _refuse(target: TorchTarget, message: str, next_step: str) -> NoReturn:
    raise RequestError("bad-project", f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def export_action(context: Context, target: TorchTarget, worker: Worker, torch: Tool) -> tuple[Action, Tool]:
    """The action that makes the archive, and its tool.

    Args:
        worker: the one that compiles; this one has its interpreter and environment.
        torch: what it is identified by.
    """
    source = os.path.normpath(target.source)
    name = f"{target.output_name or target.name}.exported.pt2"
    spec = Spec(**{field: getattr(target, field) for field in Spec.__struct_fields__})
    # The user's code may look for its files at home.
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
        warm=True,
        resources=Resources(memory_bytes=_BASE_BYTES, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
    files = (ToolFile(role="export worker", path=str(WORKER)), *torch.files)
    return action, msgspec.structs.replace(torch, name="torch export", files=files)
