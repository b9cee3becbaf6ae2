"""The program that measures kernels (`measure.cu`): how it is built, and how it is asked about a library.

Knows requests and problems; runs nothing on a GPU (`measuring`).
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from buildd.candidate_builds import Builder
from buildd.errors import BuilddError
from codegen.convolution import ImplicitGemm
from codegen.gemm import MEASURE, is_of_split, symbol_of
from codegen.gemm_survey import Case, Survey
from protocol import messages as m

IN_ONE_SOURCE = "BUILDD_SPLIT_KERNELS=0"
_DROPPED = ("FLUSH_PROFILE_CACHE", "AIT_RECOMPILE")
"""Variables that are about the request's own targets."""


def side_request(request: m.Request, name: str, table: dict[str, Any]) -> m.Request:
    """A request for one target that is in no project file.

    Args:
        request: what it is made for.
        table: as it would stand in a project file.
    """
    return msgspec.structs.replace(
        request,
        request_id=m.RequestId(os.urandom(6).hex()),
        build_id=m.BuildId(request.build_id),
        targets=(name,),
        specs={name: m.spec_from(table)},
        arch=(),
        environment={key: value for key, value in request.environment.items() if key not in _DROPPED},
        on_disconnect=m.OnDisconnect.CANCEL,
        measures=(),
    )


def in_one_source(request: m.Request, failed: tuple[str, ...]) -> m.Request | None:
    """The same with each kernel in one source with its launch; None where that would change nothing.

    Args:
        failed: actions that did not compile. A host compiler may refuse what nvcc lets it see.
    """
    name, _, value = IN_ONE_SOURCE.partition("=")
    if request.environment.get(name) == value or not failed or not all(map(is_of_split, failed)):
        return None
    return msgspec.structs.replace(
        request,
        request_id=m.RequestId(os.urandom(6).hex()),
        environment={**request.environment, name: value},
    )


async def harness(builder: Builder, request: m.Request, survey: Survey) -> tuple[str, ...]:
    """The command that measures, before its `question`. Raises BuilddError where it cannot be built."""
    place = os.path.join(request.store, "profiles", "measure")
    os.makedirs(place, exist_ok=True)
    source = "measure.hip" if survey.hip else "measure.cu"
    _place(MEASURE, os.path.join(place, source))
    host = ["-ccbin", survey.host_compiler] if survey.host_compiler and not survey.hip else []
    table = {
        "kind": "hip" if survey.hip else "cuda",
        "sources": [source],
        "arch": [survey.cases[0].arch],
        "output": "executable",
        "flags": ["-std=c++17", "-O3", *host],
        "libraries": ["dl", "pthread"],
    }
    side = msgspec.structs.replace(side_request(request, "measure", table), project=place, file="")
    cuda = {"CUDA_HOME": survey.cuda} if survey.cuda else {}
    built = await builder.build(msgspec.structs.replace(side, environment={**side.environment, **cuda}))
    if built.outcome is not m.Outcome.BUILT or not built.paths:
        raise BuilddError(
            f"the program that measures cannot be built: {built.message}",
            file=os.path.join(place, source),
            next_step="buildd doctor checks the toolkit",
        )
    return (built.paths[0],)


def _place(source: str | os.PathLike[str], there: str) -> None:
    """Where it stands already it stays as it is: what is written anew has to be looked at anew, and is young."""
    with suppress(OSError):
        if filecmp.cmp(source, there, shallow=False):
            return
    shutil.copyfile(source, there)


def question(case: Case, library: str, name: str, rivals: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The arguments for one problem.

    Args:
        library: has the kernel.
        name: of the target that it was built for.
        rivals: library and name of others, to be timed in turns with it.
    """
    spec, (m, n, k) = case.spec, case.sizes
    tolerance = f"{case.tolerance!r},{len(rivals)}" if rivals else repr(case.tolerance)
    others = tuple(word for path, other in rivals for word in (path, symbol_of(other)))
    if isinstance(spec, ImplicitGemm):
        conv = spec.conv
        numbers = (*conv.stride, *conv.padding, *conv.dilation)
        return (
            *(library, symbol_of(name), "x".join(map(str, case.image)), str(n), "x".join(map(str, conv.kernel))),
            *(spec.dtype, case.output, f"conv2d:{','.join(map(str, numbers))}", spec.epilogue, tolerance, *others),
        )
    return (
        *(library, symbol_of(name), f"{case.batch}x{m}" if case.batch else str(m), str(n), str(k)),
        *(spec.dtype, case.output, spec.layout, spec.epilogue, tolerance, *others),
    )
