"""Generator of kind "torch": the client's own torch compiles a model saved by torch.export ahead of time.

The key holds the archive's bytes, torch's files, the host compiler, the processor and the number of threads: generated
code depends on all of them. Knows no daemon: the action runs a worker script with the client's interpreter.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable

import msgspec

from codegen.compilers import closure, processor
from codegen.compilers.closure import HostCompiler
from codegen.context import Context, Part
from codegen.errors import RequestError, nearest
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
from codegen.project.target import OptionValue, TorchTarget
from codegen.python.library_trees import tree_files
from codegen.python.torch_artifacts import check_result, plan_artifacts
from codegen.python.torch_device import PASSED, GpuIdentity, check_device, gpu_of, option_fault
from codegen.python.torch_export import check_source, export_action
from codegen.python.torch_trace import plan_trace
from codegen.python.worker import FOLDER, Worker, worker_of
from codegen.search import variable_folders
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily

WORKER = FOLDER / "torch_worker.py"
WORKER_FILES = FOLDER / "torch_files_worker.py"
ENDING = ".pt2"

_BASE_BYTES = 1200 << 20
"""torch and Inductor need 0.42 GB, each of its compiles up to 0.7 GB."""
_WALL_S = 25.0
_OURS = re.compile(
    r"trace\..*|.*_path|.*_dir|.*custom_\w*pass\w*|custom_partitioner_fn|inductor_choices_class|external_matmul"
    r"|cpp\.cxx|cpp\.threads|compile_threads|worker_.*|.*remote_cache|_.*|test_configs\..*|lookup_table\..*"
    r"|aot_inductor\.(package\w*|output_path|custom_op\w*|metadata|presets|cross_target_platform|aoti_shim_library)"
    r"|aot_inductor\.(model_name_for_generated_files|dump_aoti_minifier|repro_level|debug_dump_consts_bin)"
)
"""Options with paths or functions, on which no result may depend."""
_INSTEAD = {
    "cpp.cxx": "set CXX",
    "cpp.threads": "set `threads` in the target",
    "compile_threads": "remove it: a job of buildd uses one CPU",
}


class PackageSpec(Frozen, frozen=True):
    """The worker's standard input."""

    name: str
    """Name of the generated files in the package."""
    mode: str
    options: dict[str, OptionValue]
    threads: int
    compiler: str
    """File name of the host compiler."""
    device: str


class TorchIdentity(Frozen, frozen=True):
    """The worker's answer about the installed torch."""

    torch: str
    """Version, with the commit and the platforms that it was built for."""
    python: str
    folder: str
    """torch's folder."""
    site: str
    """Folder of installed packages."""
    include: tuple[str, ...]
    """Folders where torch's compiles search for headers."""
    modes: tuple[str, ...]
    backends: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    """Option -> the accepted types of its value ("bool", "int", "float", "str", "list")."""
    files: dict[str, str]


def plan_torch(context: Context, target: TorchTarget) -> Part:
    """Return the part of a target: an action that makes the package from the archive; for a model in code, first the
    export.

    Raises:
        ProbesNeeded: the interpreter's torch, or the host compiler, must be asked first.
        RequestError: bad-project, missing-source, compiler-not-found.
    """
    _check(context, target)
    program = _compiler(context)
    passed = tool_environment(context.environment, ToolFamily.TORCH, folders=(os.path.dirname(program),))
    # numpy, which torch imports, would start threads at once, and a process with threads must not be forked.
    environment = {**dict(passed), "OPENBLAS_NUM_THREADS": "1"}
    if target.device != "cpu":
        environment |= {name: context.environment[name] for name in PASSED if context.environment.get(name)}
    worker = worker_of(context, WORKER.name, "torch", "torch", environment.items())
    identity = worker.identity(context, TorchIdentity)
    _check_options(target, identity)
    compiler = closure.host_compiler(context.knowledge, (program,), worker.environment, context.toolchains.path)
    if compiler.clang:
        raise RequestError(
            "compiler-not-found",
            f"kind torch compiles with g++; {program} is clang",
            file=program,
            next_step="set CXX to a g++ (Debian: apt install g++)",
        )
    gpu = gpu_of(context, target, worker, identity.torch)
    tool = _tool(worker, identity, compiler, gpu, tree_files(dict(passed), context.folder))
    if target.result == "artifacts":
        return plan_artifacts(context, target, worker, tool)
    if target.result == "trace":
        return plan_trace(context, target, worker, tool)
    spec = PackageSpec(
        name=re.sub(r"\W", "_", target.output_name or target.name),
        mode=target.mode,
        options=target.options,
        threads=_threads(context, target),
        compiler=os.path.basename(program),
        device=target.device,
    )
    made: tuple[Action, ...] = ()
    tools: tuple[Tool, ...] = (tool,)
    if target.source:
        export, exporter = export_action(context, target, worker, tool)
        made, tools = (export,), (tool, exporter)
    action = _action(context, target, spec, tool, worker, made)
    output = action.outputs[0]
    if output.path in action.inputs:
        raise RequestError(
            "output-conflict",
            f'target "{target.name}" would overwrite its own archive {output.path}',
            file=target.where,
            next_step="keep the archive outside of build_dir, or give the target an output_name",
        )
    return Part(
        actions=(*made, action),
        tools=tools,
        artifacts=tuple(
            NamedArtifact(target=target.name, name=os.path.basename(each.path), path=each.path)
            for each in action.outputs
        ),
        notices=tuple(f"TORCH_TRACE: the trace of {target.name} is {each.path}" for each in action.outputs[1:]),
    )


def _check(context: Context, target: TorchTarget) -> None:
    if target.arch:
        raise RequestError(
            "bad-arch",
            f'target "{target.name}": kind torch compiles for the processor of this machine',
            file=target.where,
            next_step="remove `arch`",
        )
    if bool(target.archive) == bool(target.source):
        raise RequestError(
            "bad-project",
            f'target "{target.name}" needs one of archive and source',
            file=target.where,
            next_step="name the file from torch.export.save (archive) or the Python file with the model (source)",
        )
    check_result(target)
    check_device(target)
    check_source(context, target)
    if target.source:
        return
    if not target.archive.endswith(ENDING):
        raise RequestError(
            "bad-project",
            f'target "{target.name}": archive must be a {ENDING} file, not "{target.archive}"',
            file=target.where,
            next_step=f'write it with torch.export.save(program, "model{ENDING}"), not with torch.save',
        )
    if not os.path.isfile(os.path.join(context.folder, target.archive)):
        raise RequestError(
            "missing-source",
            f'target "{target.name}": {target.archive} does not exist',
            file=target.where,
            next_step="write it with torch.export.save; paths are relative to the project",
        )


def _compiler(context: Context) -> str:
    """Return the host compiler that Inductor would use."""
    name = context.environment.get("CXX", "") or "g++"
    return context.toolchains.program(name)


def _threads(context: Context, target: TorchTarget) -> int:
    """Return the number of threads, which Inductor writes into the generated code."""
    if target.threads < 0:
        raise RequestError("bad-project", f'target "{target.name}": threads must not be below 0', file=target.where)
    # "4,2" means four threads, each of which may start two.
    said = re.match(r"\s*(\d+)", context.variables.text("OMP_NUM_THREADS"))
    return target.threads or (int(said[1]) if said else 0) or len(os.sched_getaffinity(0))


def _check_options(target: TorchTarget, identity: TorchIdentity) -> None:
    """Raise RequestError for an option or a mode that the installed torch does not have, before anything runs."""
    where = target.where
    if target.backend not in identity.backends:
        like = nearest(target.backend, identity.backends)
        raise RequestError(
            "bad-project",
            f'target "{target.name}" has the unknown backend "{target.backend}"{like}',
            file=where,
            next_step="choose one of the backends of this torch: " + ", ".join(identity.backends),
        )
    if target.mode and target.options:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": mode and options exclude each other, as in torch.compile',
            file=where,
            next_step=f'write the options of mode "{target.mode}" into `options`',
        )
    if target.mode and target.mode not in identity.modes:
        raise RequestError(
            "bad-project",
            f'target "{target.name}" has the unknown mode "{target.mode}"{nearest(target.mode, identity.modes)}',
            file=where,
            next_step="choose one of the modes of this torch: " + ", ".join(identity.modes),
        )
    for name, value in target.options.items():
        accepted = identity.options.get(name)
        if accepted is None:
            raise RequestError(
                "bad-project",
                f'target "{target.name}": torch {identity.torch.partition(" ")[0]} has no option "{name}"'
                f"{nearest(name, identity.options)}",
                file=where,
                next_step="torch._inductor.list_options() lists all options",
            )
        if why := refusal_of(name, accepted, target.device):
            raise RequestError(
                "bad-project",
                f'target "{target.name}": option "{name}" cannot be set here: {why}',
                file=where,
                next_step=_INSTEAD.get(name, "remove it"),
            )
        found = type(value).__name__
        if found not in accepted and not (found == "int" and "float" in accepted):
            raise RequestError(
                "bad-project",
                f'target "{target.name}": option "{name}" takes {" or ".join(accepted)}, not {found}',
                file=where,
                next_step="correct this option",
            )


def refusal_of(name: str, accepted: Iterable[str], device: str) -> str:
    """Return why no target for a device can set an option; empty if it can.

    Args:
        accepted: the types that torch accepts, as in `TorchIdentity.options`.
    """
    if not tuple(accepted):
        return "its value is code, not data"
    if name in _INSTEAD:
        return "buildd sets it"
    if _OURS.fullmatch(name):
        return "it names a path or a function, or leaves the result as it is: no compiled model may depend on it"
    return option_fault(name, device)


def _tool(
    worker: Worker,
    identity: TorchIdentity,
    compiler: HostCompiler,
    gpu: GpuIdentity | None,
    trees: Iterable[ToolFile],
) -> Tool:
    capability = dict(worker.environment).get("ATEN_CPU_CAPABILITY", "")
    return Tool(
        name="torch",
        files=(
            ToolFile(role="worker", path=str(WORKER)),
            ToolFile(role="worker's files", path=str(WORKER_FILES)),
            *(ToolFile(role=role, path=path) for role, path in identity.files.items()),
            *compiler.files,
            *trees,
        ),
        facts=(
            ("torch", identity.torch),
            ("python", identity.python),
            ("host compiler", compiler.version),
            # Inductor asks the processor for its vector instructions.
            ("processor", f"{platform.machine()}\n{processor.features()}"),
            ("vector width", capability or "the widest"),
            *((("gpu", gpu.words),) if gpu is not None else ()),
        ),
        roots=(*worker.roots, ("torch", identity.folder), ("site", identity.site)),
        search=tuple(
            dict.fromkeys(
                (
                    *identity.include,
                    *(gpu.include if gpu is not None else ()),
                    *map(os.path.normpath, variable_folders(worker.environment)),
                    *compiler.search,
                )
            )
        ),
    )


def _action(
    context: Context, target: TorchTarget, spec: PackageSpec, tool: Tool, worker: Worker, made: tuple[Action, ...]
) -> Action:
    """Args: made: the output that is the archive, if an action makes it."""
    path = f"{context.build}/{target.name}/{target.output_name or target.name}{ENDING}"
    archive: Argument = os.path.normpath(target.archive)
    inputs, size = (os.path.normpath(target.archive),), 0
    if made:
        inputs = (made[0].outputs[0].path,)
        archive = Ref(place=Place.INPUT, name=inputs[0])
    else:
        size = os.stat(os.path.join(context.folder, target.archive)).st_size
    argv: tuple[Argument, ...] = (
        worker.program,
        worker.argument,
        Ref(place=Place.DEPFILE),
        Ref(place=Place.OUTPUT, name="package"),
        archive,
    )
    outputs: tuple[Output, ...] = (Output(name="package", path=path),)
    if context.variables.text("TORCH_TRACE"):
        argv = (*argv, Ref(place=Place.OUTPUT, name="trace"))
        outputs = (*outputs, Output(name="trace", path=f"{path.removesuffix(ENDING)}.torch_trace.log"))
    return Action(
        name=f"{target.name}/{os.path.basename(path)}",
        kind="torch",
        tool=tool.name,
        argv=argv,
        environment=worker.environment,
        # Sorted by name, because a table in another order is the same request.
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=inputs,
        outputs=outputs,
        discovery=Discovery.REPORTED,
        # A process that has asked the driver anything cannot use a GPU in a fork of itself.
        warm=target.device == "cpu",
        # The weights are in memory three times: in the archive, in the program and in the output.
        resources=Resources(memory_bytes=_BASE_BYTES + 4 * size, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
