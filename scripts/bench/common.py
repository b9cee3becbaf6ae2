"""What the benchmarks share: interleaved rounds, medians, intervals, goals, and the table that says how it went.

Knows nothing of what is measured. A goal is met when the upper end of a 95 % bootstrap interval is within it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
RESAMPLES = 10_000


class Running(Protocol):
    """A process."""

    @property
    def pid(self) -> int: ...

    @property
    def command(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command used. CPU is of everything that worked for it; NaN where it was not measured."""

    wall_s: float
    cpu_s: float = float("nan")


def bootstrap(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the medians of paired rounds, and the ends of its 95 % percentile interval (Efron 1979)."""
    rng = random.Random(20)
    count = len(ours)
    found = []
    for _ in range(RESAMPLES):
        rounds = [rng.randrange(count) for _ in range(count)]
        found.append(median(ours[i] for i in rounds) / median(theirs[i] for i in rounds))
    found.sort()
    return median(ours) / median(theirs), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


@dataclass
class Report:
    """Figures of a run, printed as they come, and written as JSON at the end."""

    name: str
    file: str = ""
    figures: dict[str, object] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def start(self, **about: object) -> None:
        # A script that is ended from outside leaves no daemon behind either.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        # A background job of a script ignores it, and so would what is begun here and asked to end by it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        busy = os.getloadavg()[0]
        cores = len(os.sched_getaffinity(0))
        about = {"cores": cores, "load": round(busy, 1), "python": sys.version.split()[0], **about}
        self.figures["about"] = about
        print(f"{self.name}: " + ", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
        if busy > 0.5:
            print("  (something else runs on this machine: figures are of little use)")

    def ratio(
        self,
        what: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        peer: str,
        *,
        most: float | None = None,
        unit: str = "s",
    ) -> None:
        """A line of the table: our median beside the peer's, the ratio, and whether the goal is met."""
        ratio, low, high = bootstrap(ours, theirs)
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        line = (
            f"{what:34} {median(ours) * scale:10.2f} {unit:2} {peer:>22} {median(theirs) * scale:10.2f} {unit:2}"
            f"  {ratio:6.3f}x [{low:.3f}, {high:.3f}]"
        )
        entry: dict[str, object] = {"ours": list(ours), "peer": peer, "theirs": list(theirs)}
        entry |= {"ratio": ratio, "low": low, "high": high}
        self._tell(what, line, entry, high, most, "x")

    def figure(self, what: str, value: float, unit: str, *, most: float | None = None) -> None:
        """A line for a figure that has no peer."""
        self._tell(what, f"{what:34} {value:10.2f} {unit}", {"value": value, "unit": unit}, value, most, f" {unit}")

    def fail(self, what: str) -> None:
        """Something was not as it must be: that is no figure."""
        print(f"WRONG: {what}", flush=True)
        self.missed.append(what)

    def end(self) -> int:
        """Write the JSON file; exit status 1 where a goal was missed."""
        if self.file:
            Path(self.file).write_text(json.dumps({**self.figures, "missed": self.missed}, indent=1) + "\n")
        return 1 if self.missed else 0

    def _tell(
        self, what: str, line: str, entry: dict[str, object], value: float, most: float | None, unit: str
    ) -> None:
        if most is not None:
            met = value <= most
            line += f"  goal: at most {most:g}{unit}: {'met' if met else 'not met'}"
            entry |= {"most": most, "met": met}
            if not met:
                self.missed.append(what)
        self.figures[what] = entry
        print(line, flush=True)


def interleaved(rounds: int, contestants: Mapping[str, Callable[[], Cost]]) -> dict[str, list[Cost]]:
    """Costs of each contestant, round by round. Every other round goes backwards, so that nobody is always first."""
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in names if number % 2 == 0 else reversed(names):
            costs[name].append(contestants[name]())
    return costs


def walls(costs: Sequence[Cost]) -> list[float]:
    return [cost.wall_s for cost in costs]


def cpus(costs: Sequence[Cost]) -> list[float]:
    return [cost.cpu_s for cost in costs]


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    others: Callable[[], float] = lambda: 0.0,
) -> Cost:
    """The cost of a command that must succeed; its output goes to a file, as in a log.

    Args:
        others: CPU seconds so far of processes that work for it without being its children.
    """
    with tempfile.TemporaryFile() as output:
        before_s, start_s = others(), time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # ended from outside: so is everything that it started
            os.killpg(process.pid, signal.SIGKILL)
            raise
        wall_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime + others() - before_s
        if process.returncode != 0:
            output.seek(0)
            said = output.read()[-3000:].decode(errors="replace")
            raise SystemExit(f"{' '.join(command)[:300]} ended with status {process.returncode}:\n{said}")
    return Cost(wall_s, cpu_s)


def cpu_of(pids: Sequence[int]) -> float:
    """CPU seconds of processes and of their children that have ended (and theirs). The children's are rounded down to
    ticks of the kernel (10 ms): what a fork uses shows in sums of many commands only."""
    used_s = 0.0
    for pid in pids:
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]))
        used_s += time.clock_gettime(_cpu_clock(pid)) + ticks / os.sysconf("SC_CLK_TCK")
    return used_s


def _cpu_clock(pid: int) -> int:
    """The clock of a process, as clock_getcpuclockid(3) makes it, which Python does not have for other processes."""
    return (~pid << 3) | 2


class Workers:
    """What a user's daemon and its helpers use, also when the daemon starts anew as another process while it rests.

    Args:
        processes: those of the user that live now, see `tests.support.user`.
    """

    def __init__(self, processes: Callable[[], Sequence[Running]]) -> None:
        self._processes = processes
        self._used_s: dict[int, float] = {}

    def cpu_s(self) -> float:
        """CPU seconds so far, of those that ended as they were when last looked at."""
        for process in self._processes():
            if any(name in process.command for name in (" serve", "spawner.py", "buildd-cli")):
                with suppress(OSError):
                    self._used_s[process.pid] = cpu_of([process.pid])
        return sum(self._used_s.values())


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def program(name: str, hint: str) -> str:
    """Path of a tool beside this interpreter or on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name) or ""
    if not found:
        raise SystemExit(f"{name} is missing: {hint}")
    return found


def real_nvcc(option: str) -> Path:
    """nvcc of an option, of the PyPI wheels, or on the PATH, in this order."""
    if option:
        return Path(option)
    found = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    for place in found.submodule_search_locations or () if found else ():
        if (Path(place) / "bin" / "nvcc").exists():
            return Path(place) / "bin" / "nvcc"
    return Path(os.path.realpath(program("nvcc", "pip install buildd[cuda], or --nvcc PATH")))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="buildd-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser(description: str) -> argparse.ArgumentParser:
    """With the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description.partition("\n")[0])
    made.add_argument("--rounds", type=int, default=7, metavar="N", help="interleaved rounds (default 7)")
    made.add_argument("--json", default="", metavar="FILE", help="write all figures there")
    return made
