"""`buildd profile`: candidates of GEMMs and convolutions compiled, measured on this machine's GPUs, the best kept.

Knows options, variables and how results are shown. Compiling goes through the daemon; measuring happens here, so that
what a request may see of GPUs is what the caller may.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from buildd.cli import FAILED, OK
from buildd.commands.common import is_on, parser, print_note
from buildd.commands.request import add_request_arguments, request_from
from codegen.plan import RequestError
from protocol.messages import Mode

if TYPE_CHECKING:
    from buildd.candidate_builds import Builder
    from buildd.gpus import Gpu
    from buildd.profile_told import Chosen, Summary, Told
    from buildd.profiling import Plan
    from buildd.store import Store
    from codegen.gemm_choice import Sizes
    from codegen.gemm_survey import Survey
    from protocol.messages import Request

    _Seen = tuple[tuple[Gpu, ...], str, asyncio.Task[Mapping[Gpu, int]] | None]
    """The GPUs, why there is none, and how many processes compute on each."""

_DETAILS = """\
A later `buildd build` takes the best kernel that is known for the architecture. Without a GPU the likely candidates are
compiled, so that a machine with one only has to measure them.
"""


def run(arguments: list[str]) -> int:
    """Carry out `buildd profile`; the exit status: 0 every problem has a kernel, 1 one has none, 2 wrong usage."""
    command = parser("profile", "Find the fastest kernels for GEMMs and convolutions.", details=_DETAILS)
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="the N likeliest candidates of each problem (default 2, and more where processors would wait)",
    )
    command.add_argument("--exhaustive", action="store_true", help="every candidate, each measured in full")
    command.add_argument(
        "--problem",
        action="append",
        default=[],
        metavar="[BATCHx]MxNxK",
        help="sizes that a target leaves open, of a convolution those of x: NxHxWxC; may be repeated",
    )
    command.add_argument("--no-gpu", action="store_true", help="only compile the likely candidates")
    options = command.parse_args(arguments)
    if options.top is not None and not 1 <= options.top <= 1000:
        raise RequestError("bad-value", f"--top {options.top} makes no sense", next_step="give a number from 1 on")
    environ = dict(os.environ)
    request = request_from(options, tuple(options.targets), Mode.BUILD, environ)
    problems = [problem_from(text) for text in options.problem]
    return asyncio.run(_profile(options, request, problems, environ))


async def _profile(options: Namespace, request: Request, problems: list[Sizes], environ: Mapping[str, str]) -> int:
    # The daemon's start and nvidia-smi are waited for beside the survey, which asks other programs.
    building = asyncio.create_task(builder_for(options, request, environ))
    seeing = asyncio.create_task(_look(environ) if not options.no_gpu else _none())
    try:
        return await _find(options, request, problems, building, seeing)
    finally:
        await asyncio.wait([seeing])
        await (await building).close()


async def _look(environ: Mapping[str, str]) -> _Seen:
    from buildd.gpus import find_gpus, strangers

    gpus, why = await asyncio.to_thread(find_gpus, environ)
    return gpus, why, asyncio.create_task(asyncio.to_thread(strangers, gpus, environ))


async def _none() -> _Seen:
    return (), "--no-gpu", None


async def _find(
    options: Namespace,
    request: Request,
    problems: list[Sizes],
    building: Awaitable[Builder],
    looking: Awaitable[_Seen],
) -> int:
    from buildd.gpus import find_amd_gpus
    from buildd.profile_cache import flush_asked, open_profiles
    from buildd.profiling import Plan, Profiling
    from buildd.store import Store

    with Store.open(Path(request.store)) as store:
        survey = await survey_of(request, problems, store)
        say = print_note
        for line in survey.notices:
            say(f"buildd: {line}")
        for line in flush_asked(survey.environment, store, request.project, request.build_id):
            say(f"buildd: {line}")
        gpus, why, asked = await looking
        if survey.hip and not options.no_gpu:
            (gpus, why), asked = find_amd_gpus(), None
        alike, why = shown_gpus(gpus, why, survey.devices, lambda line: say(f"buildd: {line}"), hip=survey.hip)
        if not alike and not survey.continuous_integration and why != "--no-gpu":
            say(f"buildd: {why}: the likely candidates are compiled, and nothing is measured")
        plan = Plan(request=request, survey=survey, gpus=alike, exhaustive=options.exhaustive, asked=asked)
        if options.jobs:
            plan = replace(plan, most_builds=options.jobs)
        plan = replace(plan, top=options.top) if options.top else plan.with_room()
        with open_profiles(survey.environment, store, request.project) as cache:
            for line in cache.notices:
                say(f"buildd: {line}")
            _check_known(plan)
            shower = _Shower(json=options.json, exhaustive=options.exhaustive)
            profiling = Profiling(plan, await building, cache, shower.tell, lambda line: say(f"buildd: {line}"))
            summary = await profiling.run()
        shower.end(summary, measured=bool(alike))
        return FAILED if shower.missing else OK


def shown_gpus(
    gpus: tuple[Gpu, ...],
    why: str,
    devices: tuple[str, ...] | None,
    say: Callable[[str], None],
    *,
    hip: bool = False,
) -> tuple[tuple[Gpu, ...], str]:
    """Those of one model that a request may use, and why there is none.

    Args:
        why: as of `find_gpus`.
        devices: as of `visible`.
        say: is told that some are of another model.
        hip: they are AMD's.
    """
    from buildd.gpus import visible

    shown, variable = visible(gpus, devices), f"{'HIP' if hip else 'CUDA'}_VISIBLE_DEVICES"
    if gpus and not shown:
        why = f"{variable} shows none"
    alike = tuple(gpu for gpu in shown if (gpu.name, gpu.driver) == (shown[0].name, shown[0].driver))
    if len(alike) < len(shown):
        say(f"measuring on {alike[0].name} only; show another model with {variable}")
    return alike, why


async def builder_for(options: Namespace, request: Request, environ: Mapping[str, str]) -> Builder:
    """What builds candidates: the daemon, or this process where it has to, in this loop."""
    from buildd.candidate_builds import Here, ThroughDaemon
    from protocol.errors import ProtocolError

    if not (options.no_daemon or is_on(environ, "BUILDD_DISABLE")):
        try:
            return await asyncio.to_thread(ThroughDaemon, environ)
        except ProtocolError as error:
            print_note(f"buildd: {error.message.splitlines()[0]}; building without the daemon")
    return Here(request.store)


async def survey_of(
    request: Request, problems: list[Sizes], store: Store, *, ranks: bool = True, first_on: str = ""
) -> Survey:
    """What is to be measured. Arguments and errors: `codegen.gemm_survey.survey`."""
    from buildd.files import Files
    from buildd.planner import Planner
    from buildd.runner import Runner
    from codegen.gemm_survey import survey

    runner = Runner()
    try:
        planner = Planner(runner, store, Files(store))
        found, _ = await planner.learn(
            f"{request.project} profile",
            lambda knowledge: survey(request, knowledge, problems, ranks=ranks, first_on=first_on),
        )
        return found
    finally:
        await runner.close()


def _check_known(plan: Plan) -> None:
    """AIT_FORCE_PROFILER_CACHE: what is not known is an error, and nothing is measured."""
    from codegen import best

    survey, request = plan.survey, plan.request
    if not survey.only_known:
        return
    known = {one.problem for one in best.published(best.folders(survey.environment, request.store, request.project))}
    for case in survey.cases:
        if case.problem not in known:
            raise RequestError(
                "not-profiled",
                f'target "{case.target}": nothing was measured for {case.problem}, and AIT_FORCE_PROFILER_CACHE=1'
                " forbids to measure",
                file=case.spec.where,
                next_step="unset it, and run `buildd profile` on a machine with such a GPU",
            )


class _Shower:
    """What happens, as lines for people or for programs."""

    def __init__(self, *, json: bool, exhaustive: bool) -> None:
        self._json = json
        self._exhaustive = exhaustive
        self.missing = 0

    def tell(self, told: Told) -> None:
        from buildd.profile_told import Chosen

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
            print_note("buildd: the profiles were emptied or could not be written meanwhile: not all of it is kept")

    def _print_json(self, kind: str, value: object) -> None:
        import msgspec

        fields = msgspec.to_builtins(value)
        sys.stdout.write(msgspec.json.encode({"type": kind, **fields}).decode() + "\n")
        sys.stdout.flush()


def chosen_words(told: Chosen) -> str:
    """What a problem came to, behind the target's name."""
    if not told.candidate:
        return f"no kernel for {told.problem} is known to work"
    if not told.time_us:
        return f"{told.candidate} is the likeliest, not measured"
    known = ", known" if told.known else ""
    rate = f"{told.time_us:.1f} us, {told.tflops:.0f} TFLOP/s"
    return f"{told.candidate}, {rate}, the best of {told.tried} tried on {told.gpu}{known}"


def problem_from(text: str) -> Sizes:
    """Sizes as `--problem` has them. Raises RequestError."""
    match = re.fullmatch(r"\d+([x,]\d+){2,3}", text)
    sizes = tuple(map(int, re.findall(r"\d+", text)))
    if match is None or not all(sizes):
        raise RequestError(
            "bad-value",
            f"--problem {text} are no sizes",
            next_step="give them as 4096x4096x4096, of batched targets as 16x4096x4096x4096, of conv2d as 16x56x56x64",
        )
    return sizes
