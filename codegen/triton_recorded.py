"""Triton kernels of a manifest: one action has the client's own Triton compile them, or find them, one after another.

Never answered from the store: Triton's keys decide, and what is kept under them is kept by the process itself, as below
`buildd run`. What became of each kernel is a line of the action's output. Knows no manifest; a kernel is a line of it.
"""

from __future__ import annotations

import os

import msgspec

from codegen.context import Context, Part
from codegen.environment import Family, tool_environment
from codegen.plan import Action, Place, Ref, ToolFile
from codegen.python_worker import FOLDER, worker_of
from codegen.target import RecordedTarget
from codegen.triton_kernel import RESOURCES, WORKER, triton_tool
from protocol.curve import key_folder

REPLAY = FOLDER / "worker_replay.py"
HOOKS = FOLDER / "hooks" / "startup"


def plan_recorded(context: Context, target: RecordedTarget) -> Part:
    """One action, without outputs.

    Raises:
        ProbesNeeded: the interpreter has to say what its Triton is.
        RequestError: compiler-not-found.
    """
    passed = dict(tool_environment(context.environment, Family.TRITON))
    # Modules of a program may look for their files at home.
    passed["HOME"] = context.environment.get("HOME", "/")
    worker = worker_of(context, WORKER.name, "triton", "Triton", passed.items())
    known = triton_tool(context, (), worker)
    files = (ToolFile(role="replay worker", path=str(REPLAY)), *known.files)
    tool = msgspec.structs.replace(known, name="recorded", files=files)
    folders = [str(HOOKS), *filter(None, passed.get("PYTHONPATH", "").split(os.pathsep))]
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
