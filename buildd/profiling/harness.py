"""The program that measures kernels (`measure.cu`): builds it, and makes its arguments.

Knows requests and problems; runs nothing on a GPU (`bench`).
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from buildd.client.candidate_builds import Builder
from buildd.errors import BuilddError
from codegen.gemm.convolution import ImplicitGemm
from codegen.gemm.gemm import MEASURE, symbol_of
from codegen.tuning.survey import Case, Survey
from protocol import messages as m

_DROPPED = ("FLUSH_PROFILE_CACHE", "AIT_RECOMPILE")
"""Variables that concern only the request's own targets."""


def side_request(request: m.Request, name: str, table: dict[str, Any]) -> m.Request:
    """Make a request for one target that no project file has.

    Args:
        request: the request to derive it from.
        table: the target, as in a project file.
    """
    return msgspec.structs.replace(
        request,
        request_id=m.RequestId(os.urandom(6).hex()),
        build_id=m.BuildId(request.build_id),
        targets=(name,),
        specs={name: m.spec_from(table)},
        arch=(),
        environment={**request.environment, **dict.fromkeys(_DROPPED, "")},
        on_disconnect=m.OnDisconnect.CANCEL,
        measures=(),
    )


async def harness(builder: Builder, request: m.Request, survey: Survey) -> tuple[str, ...]:
    """Build the measuring program and return its command, without the `question`. Raises BuilddError."""
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
            f"the measuring program cannot be built: {built.message}",
            file=os.path.join(place, source),
            next_step="buildd doctor checks the toolkit",
        )
    return (built.paths[0],)


def _place(source: str | os.PathLike[str], there: str) -> None:
    """Copy a file unless an equal one is there: a new file has to be hashed again, and its time stamp is too young."""
    with suppress(OSError):
        if filecmp.cmp(source, there, shallow=False):
            return
    shutil.copyfile(source, there)


def question(case: Case, library: str, name: str, rivals: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The arguments of the measuring program for one problem.

    Args:
        library: file with the kernel.
        name: of the target that the library was built for.
        rivals: library and name of other candidates, to be timed in turns with this one.
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
