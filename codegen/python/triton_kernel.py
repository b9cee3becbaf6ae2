"""Generator of kind "triton": the client's own Triton compiles a kernel ahead of time, one action per architecture.

Knows no daemon: the action runs a worker script with the client's interpreter and passes the spec on standard input.
"""

from __future__ import annotations

import os
import re
from itertools import product

import msgspec

from codegen.compiled.recipe import needs_arch
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
from codegen.project.target import TritonTarget, TritonValue
from codegen.python.triton_grid import TritonConfig, check_for, configurations
from codegen.python.worker import FOLDER, Worker, worker_of
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily

WORKER = FOLDER / "triton_worker.py"
WORKER_ERRORS = FOLDER / "triton_errors_worker.py"
WORKER_FILES = FOLDER / "triton_files_worker.py"
WORKER_QUESTIONS = FOLDER / "triton_questions_worker.py"
WORKER_SOURCES = FOLDER / "triton_sources_worker.py"

RESOURCES = Resources(memory_bytes=700 << 20, wall_s=1.5)
_STAGES = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}
_COMMON_STAGES = ("ttir", "ttgir", "llir")


class Goal(Frozen, frozen=True):
    """An architecture in Triton's terms."""

    name: str
    backend: str
    arch: int | str
    warp_size: int


class KernelSpec(Frozen, frozen=True):
    """The worker's standard input."""

    source: str
    module: str
    """Module name of the source, including its package if it has one, so that relative imports work."""
    kernel: str
    signature: dict[str, str]
    constants: dict[str, TritonValue]
    backend: str
    arch: int | str
    warp_size: int
    num_warps: int
    num_stages: int
    num_ctas: int
    maxnreg: int
    label: str
    """As of `TritonConfig`."""


class TritonIdentity(Frozen, frozen=True):
    """The worker's answer about the installed Triton."""

    triton: str
    python: str
    backends: tuple[str, ...]
    files: dict[str, str]
    variables: dict[str, str] = msgspec.field(default_factory=dict)


def goal_of(name: str, where: str = "") -> Goal:
    """Return an architecture by its usual name.

    Args:
        name: "sm_90", "sm_100a" or "gfx942".
        where: for the message.

    Raises:
        RequestError: "bad-arch".
    """
    cuda = re.fullmatch(r"sm_(\d{2,3})[af]?", name)
    # LLVM aborts for architectures without the instructions that Triton requires.
    if cuda and int(cuda[1]) >= 70:
        return Goal(name=name, backend="cuda", arch=int(cuda[1]), warp_size=32)
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", name):
        # Wavefronts: 64 lanes on GCN and CDNA (gfx9), 32 on RDNA.
        return Goal(name=name, backend="hip", arch=name, warp_size=64 if name.startswith("gfx9") else 32)
    raise RequestError(
        "bad-arch",
        f'Triton cannot compile for "{name}"',
        file=where,
        next_step="use architectures such as sm_90 or gfx942",
    )


def plan_triton(context: Context, target: TritonTarget) -> Part:
    """Return the part of a target: an action for each configuration and architecture, which makes the binary, all
    earlier stages and a description.

    Raises:
        ProbesNeeded: the interpreter's Triton must be asked first.
        RequestError: bad-arch, missing-source, bad-project, compiler-not-found.
    """
    names = context.request.arch or target.arch
    needs_arch(target, names, "sm_90")
    goals = tuple(dict.fromkeys(goal_of(name, target.at("arch")) for name in names))
    _check(context, target)
    configs = configurations(target)
    for config, goal in product(configs, goals):
        check_for(target, config, goal.name)
    environment = tool_environment(context.environment, ToolFamily.TRITON)
    worker = worker_of(context, WORKER.name, "triton", "Triton", environment)
    tool = triton_tool(context, goals, worker)
    actions = tuple(_action(context, target, config, goal, tool, worker) for config in configs for goal in goals)
    return Part(
        actions=actions,
        tools=(tool,),
        # Adding or removing an __init__.py beside the source changes its module name.
        read=(os.path.dirname(os.path.join(context.folder, target.source)),),
        artifacts=tuple(
            NamedArtifact(target=target.name, name=os.path.basename(output.path), path=output.path)
            for action in actions
            for output in action.outputs
        ),
    )


def _check(context: Context, target: TritonTarget) -> None:
    if not target.source.endswith(".py"):
        raise RequestError(
            "bad-project",
            f'target "{target.name}": source must be a .py file, not "{target.source}"',
            file=target.where,
        )
    if not os.path.isfile(os.path.join(context.folder, target.source)):
        raise RequestError(
            "missing-source",
            f'target "{target.name}": {target.source} does not exist',
            file=target.where,
            next_step="correct `source`; paths are relative to the project",
        )


def triton_tool(context: Context, goals: tuple[Goal, ...], worker: Worker) -> Tool:
    """Return the installed Triton as a tool; it must have a backend for each of `goals`."""
    identity = worker.identity(context, TritonIdentity)
    wanted = {"cuda": "nvidia", "hip": "amd"}
    for goal in goals:
        if wanted[goal.backend] not in identity.backends:
            has = ", ".join(identity.backends)
            raise RequestError(
                "bad-arch",
                f"the Triton of {worker.interpreter} has no backend for {goal.name} (it has {has})",
                next_step=worker.next_step,
            )
    return Tool(
        name="triton",
        files=(
            ToolFile(role="worker", path=str(WORKER)),
            ToolFile(role="worker's errors", path=str(WORKER_ERRORS)),
            ToolFile(role="worker's files", path=str(WORKER_FILES)),
            ToolFile(role="worker's questions", path=str(WORKER_QUESTIONS)),
            ToolFile(role="worker's sources", path=str(WORKER_SOURCES)),
            *(ToolFile(role=role, path=path) for role, path in identity.files.items()),
        ),
        facts=(
            ("triton", identity.triton),
            ("python", identity.python),
            *((f"variable {name}", value) for name, value in sorted(identity.variables.items())),
        ),
        roots=(*worker.roots, ("project", context.folder)),
    )


def _module_name(project: str, source: str) -> str:
    """Return the module name: "pkg.add" for pkg/add.py if pkg has an `__init__.py`, else "add"."""
    parts = source.removesuffix(".py").split("/")
    in_package = os.path.isfile(os.path.join(project, os.path.dirname(source), "__init__.py"))
    return ".".join(parts) if in_package and all(part.isidentifier() for part in parts) else parts[-1]


def _action(
    context: Context, target: TritonTarget, config: TritonConfig, goal: Goal, tool: Tool, worker: Worker
) -> Action:
    name = f"{target.name}/{target.output_name or target.kernel}{config.suffix}.{goal.name}"
    stem = f"{context.build}/{name}"
    stages = (*_STAGES[goal.backend], *_COMMON_STAGES)
    outputs = (
        *(Output(name=stage, path=f"{stem}.{stage}") for stage in stages),
        Output(name="metadata", path=f"{stem}.json"),
    )
    source = os.path.normpath(target.source)
    spec = KernelSpec(
        source=source,
        module=_module_name(context.folder, source),
        kernel=target.kernel,
        signature=target.signature,
        constants=config.constants,
        backend=goal.backend,
        arch=goal.arch,
        warp_size=goal.warp_size,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        num_ctas=config.num_ctas,
        maxnreg=config.maxnreg,
        label=config.label,
    )
    argv: tuple[Argument, ...] = (
        worker.program,
        worker.argument,
        Ref(place=Place.DEPFILE),
        *(Ref(place=Place.OUTPUT, name=output.name, prefix=output.name + "=") for output in outputs),
    )
    folder = os.path.dirname(source) or "."
    return Action(
        name=name,
        kind="triton",
        tool=tool.name,
        argv=argv,
        environment=worker.environment,
        # Sorted by name, because a table in another order is the same request.
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=(source,),
        outputs=outputs,
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((folder, ".", *worker.python_path))),
        warm=True,
        reports=goal.backend == "cuda",
        resources=RESOURCES,
        timeout_s=target.timeout_s,
    )
