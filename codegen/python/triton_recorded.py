"""Generator of kind "recorded": in one action the client's own Triton compiles, or finds, the kernels of a manifest in
turn.

The action is never answered from the store: Triton's keys decide, and the process itself stores the results under them,
as under `buildd run`. The action prints a line with the result of each kernel. Knows no manifest; a kernel is a line of
it.
"""

from __future__ import annotations

import os

import msgspec

from codegen.context import Context, Part
from codegen.plan import Action, Place, Ref, ToolFile
from codegen.project.target import RecordedTarget
from codegen.python.triton_kernel import RESOURCES, WORKER, triton_tool
from codegen.python.worker import FOLDER, worker_of
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily
from protocol.curve import key_folder

REPLAY = FOLDER / "replay_worker.py"
MODULES = FOLDER / "kernel_modules.py"
SLICE = FOLDER / "script_slice.py"


def plan_recorded(context: Context, target: RecordedTarget) -> Part:
    """Return the part of a target: one action without outputs.

    Raises:
        ProbesNeeded: the interpreter's Triton must be asked first.
        RequestError: compiler-not-found.
    """
    passed = dict(tool_environment(context.environment, ToolFamily.TRITON))
    # A program's modules may read files in its home folder.
    passed["HOME"] = context.environment.get("HOME", "/")
    worker = worker_of(context, WORKER.name, "triton", "Triton", passed.items())
    known = triton_tool(context, (), worker)
    files = (
        ToolFile(role="replay worker", path=str(REPLAY)),
        ToolFile(role="kernel modules", path=str(MODULES)),
        ToolFile(role="script slice", path=str(SLICE)),
        *known.files,
    )
    tool = msgspec.structs.replace(known, name="recorded", files=files)
    folders = filter(None, (target.hooks, *passed.get("PYTHONPATH", "").split(os.pathsep)))
    environment = {
        **passed,
        **target.variables,
        "BUILDD_DIR": context.request.store,
        "BUILDD_KEY_DIR": str(key_folder(context.environment)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)),
        **({"BUILDD_RECACHE": "1"} if context.request.recache else {}),
    }
    action = Action(
        name=target.name,
        kind="triton",
        tool=tool.name,
        argv=(
            worker.program,
            Ref(place=Place.ROOT, name="worker", suffix="/" + REPLAY.name),
            "prove" if target.prove else "compile",
            target.asked_by,
        ),
        environment=tuple(sorted(environment.items())),
        payload="\n".join(target.kernels).encode(),
        uncacheable="Triton's own keys decide",
        warm=True,
        resources=RESOURCES,
        timeout_s=target.timeout_s,
    )
    return Part(actions=(action,), tools=(tool,))
