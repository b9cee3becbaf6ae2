"""What a profiling run needs before it begins: the survey of its problems, and a builder of its candidates.

Knows requests, the store and the daemon; measures nothing.
"""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from buildd.ui.problems import is_on, print_note
from codegen.errors import RequestError

if TYPE_CHECKING:
    from buildd.client.candidate_builds import Builder
    from buildd.store.store import Store
    from codegen.gemm.kernel_options import Sizes
    from codegen.tuning.survey import Survey
    from protocol.messages import Request


def problem_from(text: str) -> Sizes:
    """Sizes from the text of `--problem`. Raises RequestError."""
    match = re.fullmatch(r"\d+([x,]\d+){2,3}", text)
    sizes = tuple(map(int, re.findall(r"\d+", text)))
    if match is None or not all(sizes):
        raise RequestError(
            "bad-value",
            f"--problem {text}: these are not sizes",
            next_step="write 4096x4096x4096, for a batched target 16x4096x4096x4096, for a conv2d 16x56x56x64",
        )
    return sizes


async def builder_for(options: Namespace, request: Request, environ: Mapping[str, str]) -> Builder:
    """The builder of candidates: the daemon, or else this process, in this event loop."""
    from buildd.client.candidate_builds import InProcess, ThroughDaemon
    from protocol.errors import ProtocolError

    if not (options.no_daemon or is_on(environ, "BUILDD_DISABLE")):
        try:
            return await asyncio.to_thread(ThroughDaemon, environ)
        except ProtocolError as error:
            print_note(f"buildd: {error.message.splitlines()[0]}; building without the daemon")
    return InProcess(request.store)


async def survey_of(
    request: Request, problems: list[Sizes], store: Store, *, ranks: bool = True, first_on: str = ""
) -> Survey:
    """The kernels to measure. Arguments and errors: see `codegen.tuning.survey.survey`."""
    from buildd.builds.planner import Planner
    from buildd.files.digests import Files
    from buildd.native.bare_text import bare_text_of
    from buildd.processes.runner import Runner
    from codegen.tuning.survey import survey

    runner = Runner()
    try:
        planner = Planner(runner, store, Files(store, bare=bare_text_of(store.folder).digests))
        found, _ = await planner.learn(
            f"{request.project} profile",
            lambda knowledge: survey(request, knowledge, problems, ranks=ranks, first_on=first_on),
        )
        return found
    finally:
        await runner.close()
