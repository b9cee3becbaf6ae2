"""The problems of targets that name one themselves, with a reference: [target.NAME.measure] of kinds cuda and triton.

Turns a target into calls that `codegen/workers/call_worker.py` carries out: all names and expressions are numbers by
then. Runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NoReturn

from codegen.errors import RequestError
from codegen.plan import Frozen
from codegen.project.measured_call import CallArgument, MeasuredCall
from codegen.project.target import CudaTarget, OutputKind, Target, TritonTarget
from codegen.python.triton_grid import TritonConfig, configurations
from codegen.tuning.size_expression import computed

_TYPES = {
    **{"i1": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"},
    **{"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"},
    **{"fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"},
}
"""Triton's names of types -> torch's."""
_TOLERANCES = {
    **{"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2},
    **{"float8_e4m3fn": 0.1, "float8_e5m2": 0.2},
}
"""Largest relative error by type; 0 for whole numbers."""
_SCALARS = ("int32", "int64", "float32", "float64")
_MOST_BYTES = 1 << 40


class CallValue(Frozen, frozen=True):
    """An argument, in numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None
    """None for a number."""
    output: bool = False
    in_place: bool = False
    high: int = 100
    value: int | float = 0


class Reference(Frozen, frozen=True):
    """What computes the right results."""

    path: str
    """Relative to the project."""
    function: str


class OwnCall(Frozen, frozen=True):
    """One configuration of a kernel, and how it is called."""

    target: str
    arch: str
    """Architecture of the code in `path`; empty if the code has several, as a library."""
    label: str
    """The problem in words: "n=4096 BLOCK=512"."""
    path: str
    """Path of the code below the target's build folder; empty for a target's library."""
    symbol: str
    source: str
    """Triton only: the kernel's file, where its arguments have their order; relative to the project."""
    arguments: tuple[CallValue, ...]
    grid: tuple[int, ...]
    reference: Reference
    tolerance: float
    operations: float
    """0 if it is not known."""


def is_own(target: Target) -> bool:
    """Whether a target names its problem itself."""
    return getattr(target, "measure", None) is not None


def own_calls(target: Target, archs: tuple[str, ...] = ()) -> tuple[OwnCall, ...]:
    """The calls of a target for which `is_own` holds, one for each configuration and architecture of a Triton kernel.

    Args:
        archs: of the request, if it names some.

    Raises:
        RequestError: "bad-project".
    """
    call = getattr(target, "measure", None)
    assert isinstance(call, MeasuredCall)
    reference = _reference(target, call)
    if call.tolerance is not None and not call.tolerance >= 0:
        _refuse(target, "tolerance must not be below 0", "remove it, or give a small number")
    for name, size in call.sizes.items():
        if not name.isidentifier() or size < 1:
            _refuse(target, f"sizes: {name} = {size} is not a size", "write names and numbers above 0")
    if isinstance(target, TritonTarget):
        return tuple(
            _triton_call(target, call, reference, config, arch)
            for config in configurations(target)
            for arch in dict.fromkeys(archs or target.arch)
        )
    assert isinstance(target, CudaTarget)
    if target.output is not OutputKind.SHARED:
        _refuse(target, "only a shared library can be called", 'set output = "shared"')
    if not call.symbol.isidentifier():
        _refuse(target, "symbol must name a function of the library", 'write symbol = "launch", an extern "C" function')
    if call.grid:
        _refuse(target, "grid is for kind triton: a library's function launches its kernels itself", "remove it")
    values = tuple(_value(target, call, name, "") for name in call.arguments)
    return (_made(target, call, reference, values, symbol=call.symbol, names=call.sizes),)


def _triton_call(
    target: TritonTarget, call: MeasuredCall, reference: Reference, config: TritonConfig, arch: str
) -> OwnCall:
    if arch.startswith("gfx"):
        _refuse(target, f"{arch} cannot be measured: only NVIDIA's GPUs can", "make a target for each vendor")
    if config.num_ctas > 1:
        _refuse(target, "kernels with num_ctas above 1 cannot be measured", "remove num_ctas, or `measure`")
    if call.symbol:
        _refuse(target, "symbol is for libraries", "remove it: `kernel` names the kernel")
    missing = [name for name in target.signature if name not in call.arguments]
    more = [name for name in call.arguments if name not in target.signature]
    if missing or more:
        what = f"lack {', '.join(missing)}" if missing else f"name {', '.join(more)}, which is not in the signature"
        _refuse(target, f"arguments {what}", "give each argument of the signature a tensor or a number")
    values = []
    for name, kind in target.signature.items():
        kind, _, hint = kind.partition(":")
        value = _value(target, call, name, kind)
        if hint == "16" and value.shape is None and int(value.value) % 16:
            _refuse(target, f"{name} = {value.value} is not a multiple of 16, as the signature says", "correct a size")
        if hint == "1" and value.value != 1:
            _refuse(target, f"{name} = {value.value} is not 1, as the signature says", "correct it")
        if hint != "1":  # it is a constant of the compiled kernel
            values.append(value)
    whole = {name: int(each) for name, each in config.constants.items() if isinstance(each, int)}
    names = {**whole, **call.sizes}
    grid = tuple(_number(target, "grid", each, names) for each in call.grid)
    if not 1 <= len(grid) <= 3 or any(not 1 <= each < 1 << 31 for each in grid):
        _refuse(target, f"grid {list(grid)} is not a grid", 'write one to three numbers above 0: ["cdiv(n, BLOCK)"]')
    return _made(
        target,
        call,
        reference,
        tuple(values),
        symbol=target.kernel,
        names=names,
        label=config.label,
        arch=arch,
        path=f"{target.name}/{target.output_name or target.kernel}{config.suffix}.{arch}.cubin",
        source=os.path.normpath(target.source),
        grid=grid,
    )


def _made(
    target: Target,
    call: MeasuredCall,
    reference: Reference,
    values: tuple[CallValue, ...],
    *,
    symbol: str,
    names: Mapping[str, int],
    label: str = "",
    arch: str = "",
    path: str = "",
    source: str = "",
    grid: tuple[int, ...] = (),
) -> OwnCall:
    outputs = [value for value in values if value.output or value.in_place]
    if not outputs:
        _refuse(target, "no argument is an output", "mark the tensors that the kernel writes: output = true")
    sizes = ",".join(f"{name}={size}" for name, size in call.sizes.items())
    return OwnCall(
        target=target.name,
        arch=arch,
        label=" ".join(filter(None, (sizes, label))) or "x".join(map(str, outputs[0].shape or ())) or "one number",
        path=path,
        symbol=symbol,
        source=source,
        arguments=values,
        grid=grid,
        reference=reference,
        tolerance=max(_TOLERANCES.get(value.dtype, 0.0) for value in outputs)
        if call.tolerance is None
        else call.tolerance,
        operations=float(_number(target, "operations", call.operations, names)) if call.operations else 0.0,
    )


def _reference(target: Target, call: MeasuredCall) -> Reference:
    path, _, function = call.reference.rpartition(":")
    if not path.endswith((".py", ".so")) or not function.isidentifier():
        _refuse(
            target,
            f'reference must name a function of a Python file or of a library, not "{call.reference}"',
            'write "reference.py:scale" or "libreference.so:scale"',
        )
    if os.path.isabs(path) or os.path.normpath(path).startswith(".."):
        _refuse(target, f'reference: "{path}" leaves the project', "name a file of the project")
    return Reference(path=os.path.normpath(path), function=function)


def _value(target: Target, call: MeasuredCall, name: str, kind: str) -> CallValue:
    """An argument. `kind` is its type in a Triton kernel's signature; empty for a library's."""
    given = call.arguments[name]
    spec = given if isinstance(given, CallArgument) else CallArgument(value=given)
    is_pointer = kind.startswith("*")
    own = _TYPES.get(re.sub(r"^\*k?", "", kind), "")
    if kind and not own:
        _refuse(target, f'{name}: arguments of type "{kind}" cannot be measured', "remove `measure`")
    if kind and is_pointer is (spec.shape is None):
        _refuse(target, f"{name} is {'a tensor' if is_pointer else 'a number'} in the signature", "correct `arguments`")
    if spec.shape is None:
        if spec.output or spec.in_place:
            _refuse(target, f"{name} is a number, which no kernel writes", "give it a shape")
        value = spec.value if isinstance(spec.value, int | float) else _number(target, name, spec.value, call.sizes)
        dtype = own or spec.dtype or ("float32" if isinstance(value, float) else "int32")
        if dtype in ("bool", "int8", "int16", "uint8") and kind:
            dtype = "int32"  # passed in a register of this width
        if dtype not in _SCALARS:
            _refuse(target, f'{name}: a number cannot have the type "{dtype}"', f"types: {', '.join(_SCALARS)}")
        if dtype.startswith("int") and (not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63):
            _refuse(target, f"{name} = {value} is not a whole number", "correct it")
        if dtype == "int32" and not -(1 << 31) <= value < 1 << 31:
            _refuse(target, f"{name} = {value} does not fit in 32 bits", 'give it dtype = "int64"')
        return CallValue(name=name, dtype=dtype, value=value)
    dtype = spec.dtype or own or "float32"
    if dtype not in _TYPES.values() or (own and dtype != own):
        types = own or ", ".join(dict.fromkeys(_TYPES.values()))
        _refuse(target, f'{name} cannot have the dtype "{dtype}"', f"types: {types}")
    if spec.high < 1 or (spec.output and spec.in_place):
        _refuse(target, f"{name}: high must be above 0, and a tensor output or in_place", "correct it")
    shape = tuple(_number(target, name, size, call.sizes) for size in spec.shape)
    count = 1
    for size in shape:
        count *= size
    if any(size < 1 for size in shape) or 8 * count > _MOST_BYTES:
        _refuse(target, f"{name}: {list(shape)} is not a shape", "sizes are above 0, and a tensor below 1 TiB")
    return CallValue(name=name, dtype=dtype, shape=shape, output=spec.output, in_place=spec.in_place, high=spec.high)


def _number(target: Target, what: str, given: int | str, names: Mapping[str, int]) -> int:
    if isinstance(given, int):
        return given
    try:
        return computed(given, names)
    except ValueError as error:
        _refuse(target, f'{what}: "{given}" {error}', "name it in `sizes`, or write a number")


def _refuse(target: Target, message: str, next_step: str) -> NoReturn:
    raise RequestError(
        "bad-project", f'measure of target "{target.name}": {message}', file=target.where, next_step=next_step
    )
