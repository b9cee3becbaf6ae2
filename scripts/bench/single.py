"""One compile at a time, called by itself: one that is known, and one CUTLASS source that was changed.

Knows no build system; `rows` measures whole builds.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from common import Cost, Report, Workers, cpus, interleaved, program, run, temporary_folder, walls
from corpora import Corpus

from buildd.shims.interposition import LAUNCHER
from tests.support.foreign_project import ForeignProject
from tests.support.user import User

ONE = ("sm_80",)
FOUR = ("sm_80", "sm_86", "sm_89", "sm_90")


class Bench:
    """A user, a daemon and ccache in one folder."""

    def __init__(self, folder: Path, nvcc: Path) -> None:
        self.folder = folder
        self.nvcc = nvcc
        self.user = User(folder)
        self.user.buildd("up")
        self.foreign = ForeignProject(self.user, folder / "build", str(nvcc.parent))
        self.ccache = program("ccache", "pip install buildd[bench]")
        self.launcher = str(self.foreign.shims / LAUNCHER)
        self.plain = {**self.foreign.plain, "CCACHE_DIR": str(folder / "ccache")}

    def workers(self) -> Workers:
        return Workers(self.user.processes)

    def end(self, report: Report) -> None:
        if left := self.user.end():
            report.fail(f"left behind: {left}")


def hit(report: Report, rounds: int, calls: int, nvcc: Path) -> None:
    with temporary_folder() as folder:
        bench = Bench(folder, nvcc)
        source = bench.foreign.write("k.cu", "__global__ void k(float *x) { x[threadIdx.x] *= 2; }\n")
        host = bench.foreign.write(
            "a.cpp", "#include <vector>\nint size(std::vector<int> const &x) { return x.size(); }\n"
        )
        gxx = shutil.which("g++", path=bench.plain["PATH"])
        assert gxx is not None
        workers = bench.workers()

        def several(command: list[str], environ: Mapping[str, str]) -> Cost:
            """The mean of some calls: a tick of /proc is longer than one."""
            before_s, start_s, begun = workers.cpu_s(), time.perf_counter(), os.times()
            for _ in range(calls):
                process = os.posix_spawn(command[0], command, environ, setpgroup=0)
                if os.waitpid(process, 0)[1]:
                    raise SystemExit(f"{command} failed")
            wall_s, ended = time.perf_counter() - start_s, os.times()
            used_s = ended.children_user + ended.children_system - begun.children_user - begun.children_system
            return Cost(wall_s / calls, (used_s + workers.cpu_s() - before_s) / calls)

        os.chdir(bench.foreign.folder)
        for what, compiler, unit in (("nvcc", str(nvcc), source), ("g++", gxx, host)):
            command = [compiler, "-c", unit.name, "-o", f"{unit.stem}.o", "-MD", "-MF", f"{unit.stem}.d"]
            contestants: dict[str, Callable[[], Cost]] = {
                "true": lambda: several(["/bin/true"], bench.plain),
                "ccache": lambda command=command: several([bench.ccache, *command], bench.plain),
                "buildd": lambda command=command: several([bench.launcher, *command], bench.foreign.environ),
            }
            for _ in range(4):  # The first ones compile, and look at files that are too young to trust.
                for contestant in contestants.values():
                    contestant()
            costs = interleaved(rounds, contestants)
            mine, peer = costs["buildd"], costs["ccache"]
            report.ratio(f"one hit, {what}: wall", walls(mine), walls(peer), "ccache", most=0.4, unit="ms")
            report.ratio("  CPU, with the daemon's", cpus(mine), cpus(peer), "ccache", most=0.4, unit="ms")
            report.ratio("  wall", walls(mine), walls(costs["true"]), "/bin/true", unit="ms")
        os.chdir("/")
        figures = bench.foreign.figures()
        if figures.misses != 2 or figures.passed_through:
            report.fail(f"not all were hits: {figures}")
        bench.end(report)


def one(report: Report, rounds: int, nvcc: Path, cutlass: Path, *, most_four: float = 1.0) -> None:
    """One CUTLASS source changed: one architecture beside nvcc, four beside `nvcc --threads 0`."""
    for archs, rivals in ((ONE, {"nvcc": []}), (FOUR, {"nvcc": [], "nvcc --threads 0": ["--threads", "0"]})):
        with temporary_folder() as folder:
            bench = Bench(folder, nvcc)
            corpus = Corpus("cutlass", folder / "project", nvcc, 1, cutlass)
            (source,) = (unit.source for unit in corpus.units)
            flags = ["-c", *corpus.arch_flags(archs), *corpus.flags]
            workers = bench.workers()

            def compile(
                command: list[str],
                environ: Mapping[str, str],
                more: Sequence[str] = (),
                *,
                corpus: Corpus = corpus,
                last: Sequence[str] = (*flags, "-o", "x.o", source),
                workers: Workers = workers,
            ) -> Cost:
                corpus.change_one()
                return run(
                    [*command, *more, *last], cwd=corpus.folder, environment=environ, others=lambda: workers.cpu_s()
                )

            contestants: dict[str, Callable[[], Cost]] = {
                name: lambda more=more, compile=compile, bench=bench: compile([str(nvcc)], bench.plain, more)
                for name, more in rivals.items()
            }
            contestants["buildd"] = lambda compile=compile, bench=bench: compile(
                [bench.launcher, str(nvcc)], bench.foreign.environ
            )
            for contestant in contestants.values():  # Headers into the page cache, and the tool described.
                contestant()
            costs = interleaved(rounds, contestants)
            for name in rivals:
                most = {("nvcc", 1): 0.70, ("nvcc --threads 0", 4): most_four}.get((name, len(archs)))
                what = f"one CUTLASS source, {len(archs)} archs: wall"
                report.ratio(what, walls(costs["buildd"]), walls(costs[name]), name, most=most)
            bench.end(report)


def start(report: Report, rounds: int, nvcc: Path) -> None:
    """What `buildd run` itself costs, once a build."""
    with temporary_folder() as folder:
        bench = Bench(folder, nvcc)
        command = [sys.executable, "-P", "-m", "buildd", "run", "--", "true"]
        run(command, cwd=folder, environment=bench.foreign.plain)
        costs = [run(command, cwd=folder, environment=bench.foreign.plain) for _ in range(max(rounds, 7))]
        report.figure("buildd run -- true: wall", median(walls(costs)) * 1e3, "ms")
        bench.end(report)


def cutlass_folder() -> Path:
    """The sources in nvidia-cutlass."""
    found = importlib.util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        raise SystemExit("no CUTLASS: pip install buildd[cuda]")
    return Path(found.origin).parent / "source"
