"""What a worker says of the GPU that its package sees here. Knows no package and no action."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from codegen.compilers import native_gpus
from codegen.context import Context
from codegen.errors import RequestError
from codegen.plan import Frozen, Probe
from codegen.python.worker import Worker
from protocol.described import described

Identity = TypeVar("Identity", bound=Frozen)
_IDENTIFY_S = 120.0


def ask_of_gpu(
    context: Context, worker: Worker, kind: type[Identity], *, target: str, device: str, next_step: str
) -> Identity:
    """Return the worker's answer about the GPU.

    Args:
        kind: of the answer.
        target: the target's name, for the error.
        device: as the target spells it.
        next_step: what to do if there is no such GPU.

    Raises ProbesNeeded, RequestError.
    """
    probe = Probe(
        argv=(worker.interpreter, str(worker.script), "--identify-gpu"),
        environment=worker.environment,
        files=worker.installed(context),
        # Nothing reads this text: other GPUs, or another machine that uses the same store, run the probe again.
        payload=native_gpus.identity().encode(),
        timeout_s=_IDENTIFY_S,
    )
    (answer,) = context.knowledge.ask(probe)
    try:
        return msgspec.json.decode(answer.stdout.encode(errors="surrogateescape"), type=described(kind))
    except msgspec.MsgspecError as error:
        said = [line for line in answer.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("error: ") if said else f"it ended with status {answer.status}"
        raise RequestError(
            "compiler-not-found",
            f'target "{target}": no GPU for device "{device}": {reason}',
            file=worker.interpreter,
            next_step=next_step,
        ) from error
