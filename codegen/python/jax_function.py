"""Generator of kind "jax": the client's own JAX compiles a function ahead of time, for a CPU, for the GPU of this
machine or for one that a topology describes.

One action runs the user's code to lower the function; it is never answered from the store, because code may read
anything. The other one compiles what was lowered: its key holds those bytes with the topology in them, the timings
(`autotune`), JAX's files, the flags of XLA, and for a CPU the processor. Knows no daemon: both run a worker script with
the client's interpreter.
"""

from __future__ import annotations

import os
import platform
import re
from typing import NoReturn

import msgspec

from codegen.compilers import processor
from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.plan import (
    Action,
    Argument,
    Discovery,
    Frozen,
    NamedArtifact,
    Output,
    Place,
    Ref,
    Resources,
    Tool,
    ToolFile,
)
from codegen.project.target import ArraySpec, JaxTarget, OptionValue
from codegen.python.gpu_probe import ask_of_gpu
from codegen.python.torch_device import PASSED
from codegen.python.worker import FOLDER, Worker, worker_of
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily

WORKER = FOLDER / "jax_worker.py"
TRACER = FOLDER / "jax_trace_worker.py"
DEVICES_OF = FOLDER / "jax_devices.py"
"""What both of them load."""
ENDING = ".jax"
PROFILE_ENDING = ".autotune"
DEVICES = ("cpu", "cuda")
_TRACE = Resources(memory_bytes=600 << 20, wall_s=3.0)
_COMPILE = Resources(memory_bytes=1 << 30, wall_s=6.0)
_BESIDE = ("jaxlib", "jax_cuda*", "jax_rocm*")
"""Distributions: one that is installed later makes the worker describe JAX again."""
_FIXED = {
    # numpy, which JAX imports, would start threads at once, and a process with threads must not be forked.
    "OPENBLAS_NUM_THREADS": "1",
    # A job must not take most of a GPU's memory, nor wait half an hour for the other processes of a cluster.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "ENABLE_DISTRIBUTED_INIT": "0",
}
_OURS = re.compile(r"xla_dump_\w+|xla_gpu_(per_fusion_autotune_cache_\w+|require_complete_aot_autotune_results)")
"""Options with paths, on which no result may depend."""


class LoweringSpec(Frozen, frozen=True):
    """The standard input of the worker that lowers; fields as in `JaxTarget`."""

    source: str
    function: str
    inputs: tuple[ArraySpec, ...]
    keyword_inputs: dict[str, ArraySpec]
    static: dict[str, OptionValue]
    device: str
    mesh: tuple[tuple[str, int], ...]
    """Pairs, because the order of the axes counts."""
    shardings: str


class CompilingSpec(Frozen, frozen=True):
    """The standard input of the worker that compiles; fields as in `JaxTarget`."""

    device: str
    options: dict[str, bool | int | float | str]
    processor: str
    """Instruction sets that the code may use; empty for a GPU."""


class JaxIdentity(Frozen, frozen=True):
    """The worker's answer about the installed JAX."""

    jax: str
    jaxlib: str
    python: str
    files: dict[str, str]
    plugins: dict[str, str]
    """Files of JAX's plugins for GPUs."""


class JaxGpu(Frozen, frozen=True):
    """The worker's answer about the GPU."""

    name: str
    platform_version: str


def plan_jax(context: Context, target: JaxTarget) -> Part:
    """Return the part of a target: an action that lowers the function, and one that compiles it.

    Raises:
        ProbesNeeded: the interpreter's JAX must be asked first.
        RequestError: bad-arch, bad-project, missing-source, compiler-not-found.
    """
    _check(context, target)
    is_native = target.device != "cpu" and not target.topology
    environment = dict(tool_environment(context.environment, ToolFamily.JAX)) | _FIXED
    # With JAX_PLATFORMS=cpu the plugin for GPUs compiles all the same, and asks no driver.
    environment["JAX_PLATFORMS"] = f"{target.device},cpu" if is_native else "cpu"
    if is_native:
        environment |= {name: context.environment[name] for name in PASSED if context.environment.get(name)}
    worker = worker_of(context, WORKER.name, "jax", "JAX", environment.items(), beside=_BESIDE)
    identity = worker.identity(context, JaxIdentity)
    if target.device != "cpu" and not identity.plugins:
        _refuse(
            target,
            f"the JAX of {worker.interpreter} has no plugin for GPUs",
            f"install jax-cuda13-plugin and jax-cuda13-pjrt {identity.jaxlib} there",
            code="compiler-not-found",
        )
    tool = _tool(target, worker, identity, _gpu(context, target, worker) if is_native else None)
    trace, tracer = _trace(context, target, worker, tool, is_warm=not is_native)
    action = _compile(context, target, worker, tool, trace.outputs[0].path, is_native=is_native)
    return Part(
        actions=(trace, action),
        tools=(tool, tracer),
        artifacts=tuple(
            NamedArtifact(target=target.name, name=os.path.basename(each.path), path=each.path)
            for each in action.outputs
        ),
    )


def _check(context: Context, target: JaxTarget) -> None:
    if target.arch:
        _refuse(target, "kind jax takes its GPU from `topology`", "remove `arch`", code="bad-arch")
    if target.device not in DEVICES:
        _refuse(target, f'there is no device "{target.device}"', f"choose one of: {', '.join(DEVICES)}")
    if not target.source.endswith(".py"):
        _refuse(target, f'source must be a .py file, not "{target.source}"', "name the Python file with the function")
    if not target.function.isidentifier():
        _refuse(target, f'"{target.function}" is not the name of a function', 'write function = "step"')
    if not target.inputs and not target.keyword_inputs:
        _refuse(target, "the function has no arguments", 'write inputs = [{ shape = [8, 16], dtype = "bfloat16" }]')
    for key in ("topology", "autotune"):
        if getattr(target, key) and target.device == "cpu":
            _refuse(target, f"{key} is for a GPU", 'write device = "cuda", or remove it')
    if target.autotune and not target.topology:
        _refuse(target, "autotune is for a GPU elsewhere: on its own GPU XLA measures", "name the `topology`, too")
    for key in ("source", "topology", "autotune"):
        path = getattr(target, key)
        if path and not os.path.isfile(os.path.join(context.folder, path)):
            step = f"correct `{key}`; paths are relative to the project"
            _refuse(target, f"{path} does not exist", step, code="missing-source")
    for name, one in (*((f"input {n}", one) for n, one in enumerate(target.inputs, 1)), *target.keyword_inputs.items()):
        if one.function and (one.shape or one.dtype != "float32"):
            _refuse(target, f"{name} has a function and a shape or dtype", "write one of both")
        if any(size < 0 for size in one.shape):
            _refuse(target, f"{name} has a size below 0", "XLA compiles for fixed sizes: write each of them")
        for axis in filter(None, one.sharding):
            if axis not in target.mesh:
                axes = ", ".join(target.mesh) or "none"
                _refuse(target, f'{name} is split over "{axis}", and the mesh has {axes}', "name it in `mesh`")
    if target.shardings and not target.mesh:
        _refuse(target, "shardings needs a mesh", "write mesh = { data = 4 }")
    for axis, size in target.mesh.items():
        if size < 1:
            _refuse(target, f'axis "{axis}" of the mesh has {size} devices', "write a size of 1 or more")
    for name in target.static:
        if name in target.keyword_inputs:
            _refuse(target, f'"{name}" is in static and in keyword_inputs', "remove it from one of them")
    for name in target.options:
        if _OURS.fullmatch(name):
            _refuse(target, f'option "{name}" cannot be set here: buildd sets it, or it names a path', "remove it")


def _refuse(target: JaxTarget, message: str, next_step: str, code: str = "bad-project") -> NoReturn:
    raise RequestError(code, f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def _gpu(context: Context, target: JaxTarget, worker: Worker) -> JaxGpu:
    """Return the GPU that JAX sees. Raises ProbesNeeded, RequestError."""
    return ask_of_gpu(
        context,
        worker,
        JaxGpu,
        target=target.name,
        device="cuda",
        next_step="run `buildd topology FILE` on a machine that has it, and name the file with `topology`",
    )


def _tool(target: JaxTarget, worker: Worker, identity: JaxIdentity, gpu: JaxGpu | None) -> Tool:
    facts: list[tuple[str, str]] = [
        ("jax", identity.jax),
        ("jaxlib", identity.jaxlib),
        ("python", identity.python),
    ]
    if target.device == "cpu":
        # XLA asks the processor for its vector instructions.
        facts.append(("processor", f"{platform.machine()}\n{processor.features()}"))
    if gpu is not None:
        facts.append(("gpu", f"{gpu.name}, {gpu.platform_version}"))
    files = identity.files if target.device == "cpu" else {**identity.files, **identity.plugins}
    return Tool(
        name="jax" if target.device == "cpu" else f"jax for {'this GPU' if gpu else 'GPUs'}",
        files=(
            ToolFile(role="worker", path=str(WORKER)),
            ToolFile(role="worker's devices", path=str(DEVICES_OF)),
            *(ToolFile(role=role, path=path) for role, path in files.items()),
        ),
        facts=tuple(facts),
        roots=worker.roots,
    )


def _trace(context: Context, target: JaxTarget, worker: Worker, tool: Tool, *, is_warm: bool) -> tuple[Action, Tool]:
    """Return the action that lowers the function, and its tool."""
    source, name = os.path.normpath(target.source), f"{target.output_name or target.name}.lowered"
    fields = {field: getattr(target, field) for field in LoweringSpec.__struct_fields__}
    mesh = tuple(target.mesh.items())
    # The user's code may read files in its home folder.
    home = context.environment.get("HOME", "")
    environment = {**dict(worker.environment), **({"HOME": home} if home else {})}
    topology = (os.path.normpath(target.topology),) if target.topology else ()
    action = Action(
        name=f"{target.name}/{name}",
        kind="export",
        tool=f"{tool.name} trace",
        argv=(
            worker.program,
            Ref(place=Place.ROOT, name="worker", suffix="/" + TRACER.name),
            Ref(place=Place.DEPFILE),
            Ref(place=Place.OUTPUT, name="lowered"),
            *topology,
        ),
        environment=tuple(sorted(environment.items())),
        payload=msgspec.json.encode(LoweringSpec(**{**fields, "source": source, "mesh": mesh}), order="sorted"),
        inputs=(source, *topology),
        outputs=(Output(name="lowered", path=f"{context.build}/{target.name}/{name}"),),
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((os.path.dirname(source) or ".", ".", *worker.python_path))),
        uncacheable="the function's code may read anything",
        traces=True,
        warm=is_warm,
        resources=_TRACE,
        timeout_s=target.timeout_s,
    )
    files = (ToolFile(role="trace worker", path=str(TRACER)), *tool.files)
    return action, msgspec.structs.replace(tool, name=action.tool, files=files)


def _compile(
    context: Context, target: JaxTarget, worker: Worker, tool: Tool, lowered: str, *, is_native: bool
) -> Action:
    stem = f"{context.build}/{target.name}/{target.output_name or target.name}"
    outputs = [Output(name="package", path=f"{stem}{ENDING}")]
    inputs: tuple[str, ...] = (lowered,)
    argv: tuple[Argument, ...] = (
        worker.program,
        worker.argument,
        Ref(place=Place.INPUT, name=lowered),
        Ref(place=Place.OUTPUT, name="package"),
    )
    if is_native:
        argv = (*argv, "--collect", Ref(place=Place.OUTPUT, name="timings"))
        outputs.append(Output(name="timings", path=f"{stem}{PROFILE_ENDING}"))
    elif target.autotune:
        inputs = (*inputs, os.path.normpath(target.autotune))
        argv = (*argv, os.path.normpath(target.autotune))
    return Action(
        name=f"{target.name}/{os.path.basename(outputs[0].path)}",
        kind="jax",
        tool=tool.name,
        argv=argv,
        environment=worker.environment,
        # Sorted by name, because a table in another order is the same request.
        payload=msgspec.json.encode(
            CompilingSpec(
                device=target.device,
                options=target.options,
                processor=processor.features() if target.device == "cpu" else "",
            ),
            order="sorted",
        ),
        inputs=inputs,
        outputs=tuple(outputs),
        # A process that has asked the driver anything cannot use a GPU in a fork of itself.
        warm=not is_native,
        resources=_COMPILE,
        timeout_s=target.timeout_s,
    )
