"""Kind `torch` with result "trace": TorchScript, as torch.jit.trace makes it from a model in code.

The action is never answered from the store, because code may read anything. Knows no compiler: a trace is data.
"""

from __future__ import annotations

import os

import msgspec

from codegen.context import Context, Part
from codegen.plan import Action, Discovery, NamedArtifact, Output, Place, Ref, Resources, Tool, ToolFile
from codegen.project.target import TensorSpec, TorchTarget
from codegen.python.torch_export import WORKER as EXPORTER
from codegen.python.torch_export import SourceModel
from codegen.python.worker import FOLDER, Worker

WORKER = FOLDER / "trace_worker.py"
_BASE_BYTES = 700 << 20
_WALL_S = 6.0


class TraceSpec(SourceModel, frozen=True):
    """The worker's standard input; fields as in `TorchTarget`."""

    strict: bool
    check: bool
    check_inputs: tuple[tuple[TensorSpec, ...], ...]
    check_tolerance: float


def plan_trace(context: Context, target: TorchTarget, worker: Worker, tool: Tool) -> Part:
    """Return the part of a target: one action that makes the TorchScript file.

    Args:
        worker: names the client's interpreter and its environment.
        tool: the identity of torch.
    """
    source = os.path.normpath(target.source)
    fields = {name: getattr(target, name) for name in TraceSpec.__struct_fields__}
    spec = TraceSpec(**{**fields, "source": source, "strict": target.strict is not False})
    path = f"{context.build}/{target.name}/{target.output_name or target.name}.pt"
    home = context.environment.get("HOME", "")
    environment = {**dict(worker.environment), **({"HOME": home} if home else {})}
    files = (ToolFile(role="trace worker", path=str(WORKER)), ToolFile(role="export worker", path=str(EXPORTER)))
    own = msgspec.structs.replace(tool, name="torch.jit.trace", files=(*files, *tool.files))
    action = Action(
        name=f"{target.name}/{os.path.basename(path)}",
        kind="export",
        tool=own.name,
        argv=(
            worker.program,
            Ref(place=Place.ROOT, name="worker", suffix="/" + WORKER.name),
            Ref(place=Place.DEPFILE),
            Ref(place=Place.OUTPUT, name="trace"),
        ),
        environment=tuple(sorted(environment.items())),
        payload=msgspec.json.encode(spec, order="sorted"),
        inputs=(source,),
        outputs=(Output(name="trace", path=path),),
        discovery=Discovery.REPORTED,
        search=tuple(dict.fromkeys((os.path.dirname(source) or ".", ".", *worker.python_path))),
        uncacheable="the model's code may read anything",
        traces=True,
        resources=Resources(memory_bytes=_BASE_BYTES, wall_s=_WALL_S),
        timeout_s=target.timeout_s,
    )
    artifact = NamedArtifact(target=target.name, name=os.path.basename(path), path=path)
    return Part(actions=(action,), tools=(own,), artifacts=(artifact,))
