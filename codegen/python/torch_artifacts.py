"""Kind `torch` with result "artifacts": packs the entries of torch.compile's caches into one file, for
torch.compiler.load_cache_artifacts in the user's own process.

The action runs a program, in which the client's own torch compiles the model and calls it as the target says. Its C++
and its kernels are compiled as in every program under `buildd run`, so the file and the store fit together. An archive
is keyed by its bytes; a model in code is run each time, and Inductor's own keys decide what is compiled. Knows no
daemon.
"""

from __future__ import annotations

import os

import msgspec

from codegen.context import Context, Part
from codegen.errors import RequestError
from codegen.plan import Action, Argument, Discovery, NamedArtifact, Output, Place, Ref, Resources, Tool, ToolFile
from codegen.project.target import OptionValue, TorchTarget
from codegen.python.torch_export import WORKER as EXPORTER
from codegen.python.torch_export import SourceModel
from codegen.python.worker import FOLDER, Worker

WORKER = FOLDER / "artifacts_worker.py"
RESULTS = ("package", "artifacts", "trace")
_DEFAULT = TorchTarget(name="")
DISABLED = "torch.compile would compile nothing, and leave nothing in its caches"
"""Why no artifacts can have torch.compile's `disable`."""
_COMPILE_ONLY = dict.fromkeys(("fullgraph", "dynamic", "training", "backend"), "it is torch.compile's")
_REFUSED = {
    "package": {**_COMPILE_ONLY, "disable": "it is torch.compile's"},
    "artifacts": {
        "strict": "it is torch.export's and torch.jit.trace's",
        "check_inputs": "nothing is exported or traced",
        "disable": DISABLED,
    },
    "trace": {
        **_COMPILE_ONLY,
        **dict.fromkeys(("mode", "options", "disable"), "a trace is not compiled"),
        "threads": "a trace does not depend on it",
    },
}
"""Result -> the keys that do not apply to it, and why."""
_BASE_BYTES = 1200 << 20
_WALL_S = 15.0


class ArtifactsSpec(SourceModel, frozen=True):
    """The worker's standard input; fields as in `TorchTarget`."""

    mode: str
    options: dict[str, OptionValue]
    fullgraph: bool
    dynamic: bool | None
    backend: str
    training: bool
    threads: int
    """Number of threads; 0 leaves it to torch."""
    cpus: int
    """CPUs from which torch chooses that number, which is part of Inductor's keys; 0 where it is given."""


def check_result(target: TorchTarget) -> None:
    """Check that the target's keys fit its result. Raises RequestError: bad-project."""

    def refuse(message: str, next_step: str) -> None:
        raise RequestError("bad-project", f'target "{target.name}": {message}', file=target.where, next_step=next_step)

    if target.result not in RESULTS:
        refuse(f'there is no result "{target.result}"', f"choose one of: {', '.join(RESULTS)}")
    for key, reason in _REFUSED[target.result].items():
        if getattr(target, key) != getattr(_DEFAULT, key):
            refuse(f'{key} does not apply to result = "{target.result}": {reason}', "remove it, or change `result`")
    if target.result == "trace" and not target.source:
        refuse("torch.jit.trace needs the model's code, and an archive has none", "name the Python file: `source`")


def plan_artifacts(context: Context, target: TorchTarget, worker: Worker, tool: Tool) -> Part:
    """Return the part of a target: one action that makes the file from the model.

    Args:
        worker: names the client's interpreter and its environment.
        tool: the identity of torch.
    """
    is_code = bool(target.source)
    read = os.path.normpath(target.source or target.archive)
    fields = {name: getattr(target, name) for name in ArtifactsSpec.__struct_fields__ if name != "cpus"}
    given = target.threads or context.environment.get("OMP_NUM_THREADS")
    cpus = 0 if given else len(os.sched_getaffinity(0))
    spec = ArtifactsSpec(**{**fields, "source": read if is_code else "", "cpus": cpus})
    path = f"{context.build}/{target.name}/{target.output_name or target.name}.artifacts"
    environment = dict(worker.environment)
    for name in ("HOME", "OMP_NUM_THREADS", "TORCH_COMPILE_CACHE_KEY_TAG"):
        if (value := context.environment.get(name)) and (name != "HOME" or is_code):
            environment[name] = value  # the user's code may read files in its home folder
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
