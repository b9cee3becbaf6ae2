"""The `triton` kind: a kernel compiled ahead of time by the client's own Triton, one action an architecture.

Knows no daemon: the action runs a worker script with the client's interpreter; the spec travels on its standard input.
"""

from __future__ import annotations

import os
import re

import msgspec

from codegen.compiled import needs_arch
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
from codegen.python_worker import FOLDER, Worker, worker_of
from codegen.target import TritonTarget

WORKER = FOLDER / "worker_triton.py"
WORKER_FILES = FOLDER / "worker_triton_files.py"

RESOURCES = Resources(memory_bytes=700 << 20, wall_s=1.5)
_STAGES = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}
_COMMON_STAGES = ("ttir", "ttgir", "llir")


class Goal(Frozen, frozen=True):
    """An architecture as Triton names it."""

    name: str
    backend: str
    arch: int | str
    warp_size: int


class Spec(Frozen, frozen=True):
    """What the worker reads on its standard input."""

    source: str
    module: str
    """Name that the source is imported under; with its package where it is in one, so that relative imports work."""
    kernel: str
    signature: dict[str, str]
    constants: dict[str, int | float | bool | str]
    backend: str
    arch: int | str
    warp_size: int
    num_warps: int
    num_stages: int


class Identity(Frozen, frozen=True):
    """What the worker says about the installed Triton."""

    triton: str
    python: str
    backends: tuple[str, ...]
    files: dict[str, str]
    variables: dict[str, str] = msgspec.field(default_factory=dict)


def goal_of(name: str, where: str = "") -> Goal:
    """An architecture by its usual name.

    Args:
        name: "sm_90", "sm_100a" or "gfx942".
        where: for the message.

    Raises:
        RequestError: "bad-arch".
    """
    cuda = re.fullmatch(r"sm_(\d{2,3})[af]?", name)
    # LLVM aborts on what lacks the instructions that Triton takes for granted.
    if cuda and int(cuda[1]) >= 70:
        return Goal(name=name, backend="cuda", arch=int(cuda[1]), warp_size=32)
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", name):
        # Wavefronts: 64 lanes on GCN and CDNA (gfx9), 32 on RDNA.
        return Goal(name=name, backend="hip", arch=name, warp_size=64 if name.startswith("gfx9") else 32)
    raise RequestError(
        "bad-arch",
        f'"{name}" is no architecture that Triton compiles for',
        file=where,
        next_step="name architectures such as sm_90 or gfx942",
    )


def plan_triton(context: Context, target: TritonTarget) -> Part:
    """One action an architecture; each makes the binary, every stage before it, and a description.

    Raises:
        ProbesNeeded: the interpreter has to say what its Triton is.
        RequestError: bad-arch, missing-source, bad-project, compiler-not-found.
    """
    names = context.request.arch or target.arch
    needs_arch(target, names, "sm_90")
    goals = tuple(dict.fromkeys(goal_of(name, target.where) for name in names))
    _check(context, target)
    environment = tool_environment(context.environment, Family.TRITON)
    worker = worker_of(context, WORKER.name, "triton", "Triton", environment)
    tool = triton_tool(context, goals, worker)
    actions = tuple(_action(context, target, goal, tool, worker) for goal in goals)
    return Part(
        actions=actions,
        tools=(tool,),
        # An __init__.py that comes or goes beside the source changes the name it is imported under.
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
            f'target "{target.name}": there is no {target.source}',
            file=target.where,
            next_step="paths are relative to the project",
        )
    warps = target.num_warps
    if not 1 <= warps <= 32 or warps & (warps - 1):
        raise RequestError(
            "bad-project",
            f'target "{target.name}": num_warps must be a power of two up to 32, not {warps}',
            file=target.where,
        )
    if target.num_stages < 1:
        raise RequestError("bad-project", f'target "{target.name}": num_stages must be at least 1', file=target.where)


def triton_tool(context: Context, goals: tuple[Goal, ...], worker: Worker) -> Tool:
    """The installed Triton as a closure, which must have a backend for each of `goals`."""
    identity = worker.identity(context, Identity)
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
            ToolFile(role="worker's files", path=str(WORKER_FILES)),
            *(ToolFile(role=role, path=path) for role, path in identity.files.items()),
        ),
        facts=(
            ("triton", identity.triton),
            ("python", identity.python),
            *((f"variable {name}", value) for name, value in sorted(identity.variables.items())),
        ),
        roots=worker.roots,
    )


def _module_name(project: str, source: str) -> str:
    """ "pkg.add" for pkg/add.py where pkg has an `__init__.py`, "add" where it has none."""
    parts = source.removesuffix(".py").split("/")
    in_package = os.path.isfile(os.path.join(project, os.path.dirname(source), "__init__.py"))
    return ".".join(parts) if in_package and all(part.isidentifier() for part in parts) else parts[-1]


def _action(context: Context, target: TritonTarget, goal: Goal, tool: Tool, worker: Worker) -> Action:
    stem = f"{context.build}/{target.name}/{target.output_name or target.kernel}.{goal.name}"
    stages = (*_STAGES[goal.backend], *_COMMON_STAGES)
    outputs = (
        *(Output(name=stage, path=f"{stem}.{stage}") for stage in stages),
        Output(name="metadata", path=f"{stem}.json"),
    )
    source = os.path.normpath(target.source)
    spec = Spec(
        source=source,
        module=_module_name(context.folder, source),
        kernel=target.kernel,
        signature=target.signature,
        constants=target.constants,
        backend=goal.backend,
        arch=goal.arch,
        warp_size=goal.warp_size,
        num_warps=target.num_warps,
        num_stages=target.num_stages,
    )
    argv: tuple[Argument, ...] = (
        worker.program,
        worker.argument,
        Ref(place=Place.DEPFILE),
        *(Ref(place=Place.OUTPUT, name=output.name, prefix=output.name + "=") for output in outputs),
    )
    folder = os.path.dirname(source) or "."
    return Action(
        name=f"{target.name}/{target.output_name or target.kernel}.{goal.name}",
        kind="triton",
        tool=tool.name,
        argv=argv,
        environment=worker.environment,
        # Sorted by name: a table in another order is the same request.
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=(source,),
        outputs=outputs,
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((folder, ".", *worker.python_path))),
        warm=True,
        resources=RESOURCES,
        timeout_s=target.timeout_s,
    )
