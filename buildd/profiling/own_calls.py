"""Calls of the user's own kernels as questions to the worker that carries them out (`codegen/workers/call_worker.py`).

Knows files and words; starts nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

import msgspec
from blake3 import blake3

from codegen.gemm.capability import best_arch
from codegen.python.worker import FOLDER
from codegen.tuning.own_problem import OwnCall
from protocol import messages as m

WORKER = FOLDER / "call_worker.py"


def command(request: m.Request) -> tuple[str, ...]:
    """What starts the worker: the client's Python, which has the torch that the reference uses."""
    return (request.interpreter or sys.executable, str(WORKER))


def on_gpu(calls: Iterable[OwnCall], capability: str) -> dict[str, list[OwnCall]]:
    """The calls of each target that run on a GPU; none where no architecture of the target does.

    Args:
        capability: "9.0".
    """
    found: dict[str, list[OwnCall]] = {}
    for call in calls:
        found.setdefault(call.target, []).append(call)
    for target, several in found.items():
        best = best_arch((call.arch for call in several if call.arch), capability)
        found[target] = [call for call in several if call.arch == best]
    return found


def with_paths(call: OwnCall, project: str, build: str, libraries: Mapping[str, str]) -> OwnCall | None:
    """The call with absolute paths; None if its target has no library.

    Args:
        build: folder of all outputs, relative to the project.
        libraries: each target's shared library.
    """
    path = os.path.join(project, build, call.path) if call.path else libraries.get(call.target)
    if path is None:
        return None
    return msgspec.structs.replace(
        call,
        path=path,
        source=os.path.join(project, call.source) if call.source else "",
        reference=msgspec.structs.replace(call.reference, path=os.path.join(project, call.reference.path)),
    )


def content(call: OwnCall) -> bytes:
    """Digest of the kernel and of its reference. Raises OSError.

    Args:
        call: with absolute paths.
    """
    found = blake3()
    for path in (call.path, call.reference.path):
        with open(path, "rb") as file:
            found.update(blake3(file.read()).digest())
    return found.digest()


def question(call: OwnCall) -> tuple[str]:
    """The worker's question, as `Bench.measure` takes it."""
    # With the fields that have their defaults, which the struct would leave out.
    return (msgspec.json.encode(_fields(call)).decode(),)


def _fields(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return {name: _fields(each) for name, each in msgspec.structs.asdict(value).items()}
    return [_fields(each) for each in value] if isinstance(value, tuple) else value
