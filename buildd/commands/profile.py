"""`buildd profile`: compiles candidates of GEMMs and convolutions, measures them on GPUs, keeps the best.

Knows options, variables and how results are shown. The daemon compiles; this process measures, so that it sees exactly
the GPUs that the caller may use.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from buildd.client.request import add_request_arguments, request_from
from buildd.exits import FAILED, OK
from buildd.profiling.call import NO_GPU, profile
from buildd.profiling.preparation import builder_for, problem_from
from buildd.ui.problems import parser, print_note
from codegen.errors import RequestError
from protocol.messages import Mode, ProfileOptions

if TYPE_CHECKING:
    from buildd.profiling.call import Seen
    from buildd.profiling.far_gpus import FarGpus
    from buildd.profiling.reports import Summary, Told
    from protocol.messages import Request

_DETAILS = """\
Later builds use the fastest kernel known for the architecture. Without a GPU, buildd only compiles the likely \
candidates, so that a machine with a GPU only has to measure them.
"""


def run(arguments: list[str]) -> int:
    """Carry out `buildd profile`; exit status: 0 every problem has a kernel, 1 one has none, 2 wrong usage."""
    command = parser("profile", "Find the fastest kernels for GEMMs and convolutions.", details=_DETAILS)
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command)
    command.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="try the N most promising candidates of each problem (default: 2; more if processors are idle)",
    )
    command.add_argument("--exhaustive", action="store_true", help="try every candidate, and measure each in full")
    command.add_argument(
        "--problem",
        action="append",
        default=[],
        metavar="[BATCHx]MxNxK",
        help="sizes that a target leaves open (of a convolution, its input: NxHxWxC); may be repeated",
    )
    command.add_argument("--no-gpu", action="store_true", help="only compile the likely candidates, measure nothing")
    options = command.parse_args(arguments)
    if options.top is not None and not 1 <= options.top <= 1000:
        raise RequestError(
            "bad-value", f"--top {options.top} is out of range", next_step="give a number from 1 to 1000"
        )
    environ = dict(os.environ)
    wanted = ProfileOptions(
        problems=tuple(options.problem),
        top=options.top or 0,
        exhaustive=options.exhaustive,
        measure=not options.no_gpu,
    )
    for text in wanted.problems:
        problem_from(text)  # refused before anything starts
    request = request_from(options, tuple(options.targets), Mode.BUILD, environ)
    request = msgspec.structs.replace(request, profile=wanted)
    return asyncio.run(_profile(options, request, environ))


async def _profile(options: Namespace, request: Request, environ: Mapping[str, str]) -> int:
    # The daemon starts and nvidia-smi runs while the survey asks other programs.
    building = asyncio.create_task(builder_for(options, request, environ))
    seeing = asyncio.create_task(_look(environ) if not options.no_gpu else _none())
    reaching = asyncio.create_task(_reach(environ if not options.no_gpu else {}))
    shower = _Shower(json=options.json, exhaustive=options.exhaustive)
    try:
        summary, measured = await profile(
            request,
            request.profile,
            building,
            seeing,
            reaching,
            shower.tell,
            lambda line: print_note(f"buildd: {line}"),
            most_builds=options.jobs or 0,
            is_logged=True,
        )
    finally:
        await asyncio.wait([seeing])
        if (far := await reaching) is not None:
            await far.close()
        await (await building).close()
    shower.end(summary, measured=measured)
    return FAILED if shower.missing else OK


async def _look(environ: Mapping[str, str]) -> Seen:
    from buildd.profiling.gpus import find_gpus

    return await asyncio.to_thread(find_gpus, environ)


async def _none() -> Seen:
    return (), NO_GPU


async def _reach(environ: Mapping[str, str]) -> FarGpus | None:
    from buildd.profiling.far_gpus import cluster_of, find_far_gpus

    try:
        return await find_far_gpus(cluster_of(environ) if environ else None, environ)
    except RequestError as error:
        print_note(f"buildd: the cluster is not used: {error.message}")
        return None


class _Shower:
    """Prints the progress as lines for people or for programs."""

    def __init__(self, *, json: bool, exhaustive: bool) -> None:
        self._json = json
        self._exhaustive = exhaustive
        self.missing = 0

    def tell(self, told: Told) -> None:
        from buildd.profiling.reports import Chosen, chosen_words

        if isinstance(told, Chosen):
            self.missing += not told.candidate
        if self._json:
            self._print_json("chosen" if isinstance(told, Chosen) else "tried", told)
            return
        if isinstance(told, Chosen):
            print(f"{told.target}: {chosen_words(told)}", flush=True)
            return
        figures = f"{told.time_us:10.1f} us" if told.time_us else f"{told.outcome:>13}"
        mark = f"  {told.outcome}" if told.time_us and told.outcome != "measured" else ""
        note = f"  {told.note}" if told.note else ""
        print(f"  {told.target:<16} {figures}  {told.candidate}{mark}{note}", flush=True)

    def end(self, summary: Summary, *, measured: bool) -> None:
        if self._json:
            self._print_json("summary", summary)
            return
        line = f"{summary.built} compiled, {summary.hits} found, {summary.wall_s:.1f} s"
        if measured:
            line = f"{summary.measured} measured, {summary.failed} failed, {line}"
            if summary.measured > 1:
                line += f", GPU idle {summary.gpu_idle:.0%}"
            if summary.skipped:
                line = f"{line}, {summary.skipped} not worth a compile"
        elif summary.failed:
            line = f"{summary.failed} failed, {line}"
        print(line, flush=True)
        if summary.dropped:
            print_note(
                "buildd: some results are not kept: the stored profiles were flushed meanwhile, or cannot be written"
            )

    def _print_json(self, kind: str, value: object) -> None:
        fields = msgspec.to_builtins(value)
        sys.stdout.write(msgspec.json.encode({"type": kind, **fields}).decode() + "\n")
        sys.stdout.flush()
