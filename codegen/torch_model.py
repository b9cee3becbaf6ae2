"""The `torch` kind: a model, as torch.export saved it, compiled ahead of time for the CPU by the client's own torch.

The key holds the archive's bytes, torch's files, the host compiler, the processor and the number of threads: generated
code depends on all of them. Knows no daemon: the action runs a worker script with the client's interpreter.
"""

from __future__ import annotations

import os
import platform
import re

import msgspec

from codegen import closure, processor
from codegen.closure import HostCompiler
from codegen.context import Context, Part
from codegen.environment import Family, tool_environment
from codegen.plan import (
    Action,
    Argument,
    Discovery,
    Frozen,
    NamedArtifact,
    Output,
    Place,
    Ref,
    RequestError,
    Resources,
    Tool,
    ToolFile,
)
from codegen.project import nearest
from codegen.python_worker import FOLDER, Worker, worker_of
from codegen.target import OptionValue, TorchTarget
from codegen.torch_artifacts import check_result, plan_artifacts
from codegen.torch_export import check_source, export_action

WORKER = FOLDER / "worker_torch.py"
ENDING = ".pt2"

_BASE_BYTES = 1200 << 20
"""torch and Inductor hold 0.42 GB, its compiles up to 0.7 GB each."""
_WALL_S = 25.0
_OURS = re.compile(
    r"trace\..*|.*_path|.*_dir|.*custom_\w*pass\w*|custom_partitioner_fn|inductor_choices_class|external_matmul"
    r"|cpp\.cxx|cpp\.threads|compile_threads|worker_.*|.*remote_cache|_.*|test_configs\..*|lookup_table\..*"
    r"|aot_inductor\.(package\w*|output_path|custom_op\w*|metadata|presets|cross_target_platform|aoti_shim_library)"
    r"|aot_inductor\.(model_name_for_generated_files|dump_aoti_minifier|repro_level|debug_dump_consts_bin)"
)
"""Options that say where something is read or written, or that hold functions: no result may depend on those."""
_INSTEAD = {
    "cpp.cxx": "set CXX",
    "cpp.threads": "write `threads` in the target",
    "compile_threads": "leave it out: buildd has one job use one CPU",
}


class Spec(Frozen, frozen=True):
    """What the worker reads on its standard input."""

    name: str
    """Of the generated files in the package."""
    mode: str
    options: dict[str, OptionValue]
    threads: int
    compiler: str
    """File name of the host compiler."""


class Identity(Frozen, frozen=True):
    """What the worker says about the installed torch."""

    torch: str
    """Version, with what it was built from and for."""
    python: str
    folder: str
    """Of torch."""
    site: str
    """Of installed packages."""
    include: tuple[str, ...]
    """Where its compiles search for headers."""
    modes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    """Option -> the types that its value may have ("bool", "int", "float", "str", "list")."""
    files: dict[str, str]


def plan_torch(context: Context, target: TorchTarget) -> Part:
    """One action: archive -> package; before it, where the model is code, the one that exports it.

    Raises:
        ProbesNeeded: the interpreter has to say what its torch is; likewise the host compiler.
        RequestError: bad-project, missing-source, compiler-not-found.
    """
    _check(context, target)
    program = _compiler(context)
    passed = tool_environment(context.environment, Family.TORCH, folders=(os.path.dirname(program),))
    # numpy, which torch imports, would start threads at once, and then nothing may be forked.
    environment = {**dict(passed), "OPENBLAS_NUM_THREADS": "1"}
    worker = worker_of(context, WORKER.name, "torch", "torch", environment.items())
    identity = worker.identity(context, Identity)
    _check_options(target, identity)
    compiler = closure.host_compiler(context.knowledge, (program,), worker.environment, context.toolchains.path)
    if compiler.clang:
        raise RequestError(
            "compiler-not-found",
            f"kind torch compiles with g++; {program} is clang",
            file=program,
            next_step="set CXX to a g++ (Debian: apt install g++)",
        )
    tool = _tool(worker, identity, compiler)
    if target.result == "artifacts":
        return plan_artifacts(context, target, worker, tool)
    spec = Spec(
        name=re.sub(r"\W", "_", target.output_name or target.name),
        mode=target.mode,
        options=target.options,
        threads=_threads(context, target),
        compiler=os.path.basename(program),
    )
    made: tuple[Action, ...] = ()
    tools: tuple[Tool, ...] = (tool,)
    if target.source:
        export, exporter = export_action(context, target, worker, tool)
        made, tools = (export,), (tool, exporter)
    action = _action(context, target, spec, tool, worker, made)
    (output,) = action.outputs
    if output.path in action.inputs:
        raise RequestError(
            "output-conflict",
            f'target "{target.name}": {output.path} is what it would write',
            file=target.where,
            next_step="keep the archive outside of build_dir, or give the target an output_name",
        )
    return Part(
        actions=(*made, action),
        tools=tools,
        artifacts=(NamedArtifact(target=target.name, name=os.path.basename(output.path), path=output.path),),
    )


def _check(context: Context, target: TorchTarget) -> None:
    if target.arch:
        raise RequestError(
            "bad-arch",
            f'target "{target.name}": kind torch compiles for the processor of this machine',
            file=target.where,
            next_step="remove arch",
        )
    if bool(target.archive) == bool(target.source):
        raise RequestError(
            "bad-project",
            f'target "{target.name}" needs one of archive and source',
            file=target.where,
            next_step="name what torch.export.save wrote (archive), or the Python file that has the model (source)",
        )
    check_result(target)
    check_source(context, target)
    if target.source:
        return
    if not target.archive.endswith(ENDING):
        raise RequestError(
            "bad-project",
            f'target "{target.name}": archive must be a {ENDING} file, not "{target.archive}"',
            file=target.where,
            next_step=f'write it with torch.export.save(program, "model{ENDING}"); torch.save is something else',
        )
    if not os.path.isfile(os.path.join(context.folder, target.archive)):
        raise RequestError(
            "missing-source",
            f'target "{target.name}": there is no {target.archive}',
            file=target.where,
            next_step="write it with torch.export.save; paths are relative to the project",
        )


def _compiler(context: Context) -> str:
    """The host compiler that Inductor would take."""
    name = context.environment.get("CXX", "") or "g++"
    return context.toolchains.program(name)


def _threads(context: Context, target: TorchTarget) -> int:
    """Inductor writes the number of threads into the code that it generates."""
    if target.threads < 0:
        raise RequestError("bad-project", f'target "{target.name}": threads must not be below 0', file=target.where)
    # "4,2" is four threads, each of which may start two.
    said = re.match(r"\s*(\d+)", context.variables.text("OMP_NUM_THREADS"))
    return target.threads or (int(said[1]) if said else 0) or len(os.sched_getaffinity(0))


def _check_options(target: TorchTarget, identity: Identity) -> None:
    """Inductor's configuration and modes are the installed torch's, so what is wrong is said before anything runs."""
    where = target.where
    if target.mode and target.options:
        raise RequestError(
            "bad-project",
            f'target "{target.name}": mode and options exclude each other, as in torch.compile',
            file=where,
            next_step=f'write what mode "{target.mode}" means among the options',
        )
    if target.mode and target.mode not in identity.modes:
        raise RequestError(
            "bad-project",
            f'target "{target.name}" has the unknown mode "{target.mode}"{nearest(target.mode, identity.modes)}',
            file=where,
            next_step="modes of this torch: " + ", ".join(identity.modes),
        )
    for name, value in target.options.items():
        accepted = identity.options.get(name)
        if accepted is None:
            raise RequestError(
                "bad-project",
                f'target "{target.name}": torch {identity.torch.partition(" ")[0]} has no option "{name}"'
                f"{nearest(name, identity.options)}",
                file=where,
                next_step="torch._inductor.list_options() tells them all",
            )
        if not accepted or _OURS.fullmatch(name):
            raise RequestError(
                "bad-project",
                f'target "{target.name}": option "{name}" cannot be set here',
                file=where,
                next_step=_INSTEAD.get(name, "leave it out: no compiled model may depend on it"),
            )
        found = type(value).__name__
        if found not in accepted and not (found == "int" and "float" in accepted):
            raise RequestError(
                "bad-project",
                f'target "{target.name}": option "{name}" takes {" or ".join(accepted)}, not {found}',
                file=where,
                next_step="correct this option",
            )


def _tool(worker: Worker, identity: Identity, compiler: HostCompiler) -> Tool:
    capability = dict(worker.environment).get("ATEN_CPU_CAPABILITY", "")
    return Tool(
        name="torch",
        files=(
            ToolFile(role="worker", path=str(WORKER)),
            *(ToolFile(role=role, path=path) for role, path in identity.files.items()),
            *compiler.files,
        ),
        facts=(
            ("torch", identity.torch),
            ("python", identity.python),
            ("host compiler", compiler.version),
            # Inductor asks the processor which vector instructions it has.
            ("processor", f"{platform.machine()}\n{processor.features()}"),
            ("vector width", capability or "the widest"),
        ),
        roots=(*worker.roots, ("torch", identity.folder), ("site", identity.site)),
        search=tuple(dict.fromkeys((*identity.include, *compiler.search))),
    )


def _action(
    context: Context, target: TorchTarget, spec: Spec, tool: Tool, worker: Worker, made: tuple[Action, ...]
) -> Action:
    """Args: made: what makes the archive, if that is not there already."""
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
    return Action(
        name=f"{target.name}/{os.path.basename(path)}",
        kind="torch",
        tool=tool.name,
        argv=argv,
        environment=worker.environment,
        # Sorted by name: a table in another order is the same request.
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=inputs,
        outputs=(Output(name="package", path=path),),
        discovery=Discovery.REPORTED,
        warm=True,
        # The weights are there in the archive, in the program, and in what is written.
        resources=Resources(memory_bytes=_BASE_BYTES + 4 * size, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
