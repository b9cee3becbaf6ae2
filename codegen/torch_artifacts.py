"""Kind `torch` with result "artifacts": what torch.compile leaves in its caches, as one file for
torch.compiler.load_cache_artifacts in the user's own process.

The action runs a program: the model, compiled by the client's own torch and called as the target says. Its C++ and its
kernels go the way of every program's below `buildd run`, so what is in the file and what the store has belong together.
An archive is known by its bytes; a model in code is run each time, and Inductor's own keys decide what is compiled.
Knows no daemon.
"""

from __future__ import annotations

import os

import msgspec

from codegen.context import Context, Part
from codegen.plan import (
    Action,
    Argument,
    Discovery,
    NamedArtifact,
    Output,
    Place,
    Ref,
    RequestError,
    Resources,
    Tool,
    ToolFile,
)
from codegen.python_worker import FOLDER, Worker
from codegen.target import OptionValue, TorchTarget
from codegen.torch_export import WORKER as EXPORTER
from codegen.torch_export import Model

WORKER = FOLDER / "worker_artifacts.py"
RESULTS = ("package", "artifacts")
_DEFAULT = TorchTarget(name="")
_BASE_BYTES = 1200 << 20
_WALL_S = 15.0


class Spec(Model, frozen=True):
    """What the worker reads on its standard input; fields as in `TorchTarget`."""

    mode: str
    options: dict[str, OptionValue]
    fullgraph: bool
    dynamic: bool | None
    training: bool
    threads: int
    """0: as many as torch takes by itself."""


def check_result(target: TorchTarget) -> None:
    """Whether the target's keys go with its result. Raises RequestError: bad-project."""

    def refuse(message: str, next_step: str) -> None:
        raise RequestError("bad-project", f'target "{target.name}": {message}', file=target.where, next_step=next_step)

    if target.result not in RESULTS:
        refuse(f'there is no result "{target.result}"', f"results: {', '.join(RESULTS)}")
    if target.result == "package":
        for key in ("fullgraph", "dynamic", "training"):
            if getattr(target, key) != getattr(_DEFAULT, key):
                refuse(f"{key} is torch.compile's", 'write result = "artifacts", or remove the key')
    elif target.strict:
        refuse("strict is torch.export's, and nothing is exported", "remove it")


def plan_artifacts(context: Context, target: TorchTarget, worker: Worker, tool: Tool) -> Part:
    """One action: the model -> the file.

    Args:
        worker: has the client's interpreter and what the tool sees.
        tool: what torch is identified by.
    """
    is_code = bool(target.source)
    read = os.path.normpath(target.source or target.archive)
    fields = {name: getattr(target, name) for name in Spec.__struct_fields__}
    spec = Spec(**{**fields, "source": read if is_code else ""})
    path = f"{context.build}/{target.name}/{target.output_name or target.name}.artifacts"
    environment = dict(worker.environment)
    for name in ("HOME", "OMP_NUM_THREADS", "TORCH_COMPILE_CACHE_KEY_TAG"):
        if (value := context.environment.get(name)) and (name != "HOME" or is_code):
            environment[name] = value  # the user's code may look for its files at home
    del environment["OPENBLAS_NUM_THREADS"]
    argv: tuple[Argument, ...] = (
        worker.program,
        Ref(place=Place.ROOT, name="worker", suffix="/" + WORKER.name),
        Ref(place=Place.DEPFILE),
        Ref(place=Place.OUTPUT, name="artifacts"),
        *(() if is_code else (read,)),
    )
    files = (ToolFile(role="artifacts worker", path=str(WORKER)), ToolFile(role="export worker", path=str(EXPORTER)))
    own = msgspec.structs.replace(tool, name="torch.compile", files=(*files, *tool.files))
    action = Action(
        name=f"{target.name}/{os.path.basename(path)}",
        kind="torch",
        tool=own.name,
        argv=argv,
        environment=tuple(sorted(environment.items())),
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=(read,),
        outputs=(Output(name="artifacts", path=path),),
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((os.path.dirname(read) or ".", ".", *worker.python_path))) if is_code else (),
        uncacheable="the model's code may read anything" if is_code else "",
        served=True,
        resources=Resources(cpus=0, memory_bytes=_BASE_BYTES, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
    artifact = NamedArtifact(target=target.name, name=os.path.basename(path), path=path)
    return Part(actions=(action,), tools=(own,), artifacts=(artifact,))
