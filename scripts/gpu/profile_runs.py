"""Six half-precision GEMMs that one user of buildd profiles with the command, and what its lines say.

Knows the command's JSON; compares nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from common import Report

from tests.support.user import User

SHAPES = (
    (4096, 4096, 4096),
    (8192, 1024, 8192),
    (128, 11008, 4096),
    (16, 4096, 4096),
    (1024, 1024, 1024),
    (2048, 8192, 2048),
)
COMMAND_S = 580.0


def name_of(shape: tuple[int, int, int]) -> str:
    return "g" + "x".join(map(str, shape))


class Run:
    """One user of buildd with a project of the six targets."""

    def __init__(self, folder: Path, arch: str, nvcc: Path, cutlass: Path, report: Report) -> None:
        self.report = report
        self.tried: list[dict[str, Any]] = []
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        tables = (
            f'[target.{name_of(shape)}]\nkind = "gemm"\nm = {shape[0]}\nn = {shape[1]}\nk = {shape[2]}\n'
            f'epilogue = "none"\narch = ["{arch}"]\n'
            for shape in SHAPES
        )
        (self.project / "buildd.toml").write_text("\n".join(tables))
        inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if os.environ.get(name)}
        self.user = User(folder, {**inherited, "CUDA_HOME": str(nvcc.parents[1]), "CUTLASS_PATH": str(cutlass)})

    def command(self, *arguments: str, **environ: str) -> tuple[float, list[dict[str, Any]], int]:
        """Wall time, JSON lines and status of a command; what it said else is printed."""
        before = dict(self.user.environ)
        self.user.environ |= environ
        begun_s = time.monotonic()
        try:
            status, said = self.user.buildd(*arguments, "-C", str(self.project), "--json", timeout_s=COMMAND_S)
        except subprocess.TimeoutExpired:
            self.report.fail(f"buildd {' '.join(arguments)}: not done after {COMMAND_S:.0f} s")
            return COMMAND_S, [], 124
        finally:
            self.user.environ = before
        wall_s = time.monotonic() - begun_s
        lines = []
        for line in said.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                print(f"  | {line}", flush=True)
        if status:
            self.report.fail(f"buildd {' '.join(arguments)}: status {status}")
        return wall_s, lines, status

    def profile(self, what: str, *arguments: str, **environ: str) -> tuple[float, dict[str, Any], dict[str, Any]]:
        """Wall time, what was chosen for each target, the summary; prints the candidates, and keeps them as `tried`."""
        print(f"\n{what}: buildd profile {' '.join(arguments)}", flush=True)
        wall_s, lines, _ = self.command("profile", *arguments, **environ)
        for line in lines:
            if line["type"] == "tried":
                note = f"  {line['note']}" if line["note"] else ""
                figures = f"{line['time_us']:9.1f} us  spread {line['spread']:5.1%}  error {line['error']:.1e}"
                print(f"  {line['target']:<18} {figures}  {line['outcome']:<12} {line['candidate']}{note}")
        self.tried = [line for line in lines if line["type"] == "tried"]
        timeline(self.tried)
        chosen = {line["target"]: line for line in lines if line["type"] == "chosen"}
        summary = next((line for line in lines if line["type"] == "summary"), {})
        print(f"  {json.dumps(summary)}", flush=True)
        return wall_s, chosen, summary

    def check_libraries(self) -> None:
        """The libraries that the targets were built to, by the program that measured their candidates."""
        measure = self.user.store / "profiles/measure/build/measure/measure"
        for shape in SHAPES:
            name = name_of(shape)
            library = self.project / "build" / name / f"lib{name}.so"
            command = [measure, library, name, *map(str, shape), "fp16", "fp16", "rcr", "none", "2e-3"]
            try:
                done = subprocess.run(
                    command, env=self.user.environ, input="0\n", capture_output=True, text=True, timeout=120
                )
                said = json.loads(done.stdout.strip().splitlines()[-1])
            except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
                self.report.fail(f"{name}: its library could not be checked: {error!r}")
                continue
            print(f"  {name:<18} {json.dumps(said)}", flush=True)
            if said["outcome"] != "measured":
                self.report.fail(f"{name}: {said}")


def timeline(tried: list[dict[str, Any]]) -> None:
    """When each candidate was compiled, what that took, and when it was measured for which problem; all in seconds."""
    compiled = {line["candidate"]: line for line in tried if line["began_s"]}
    for line in sorted(compiled.values(), key=lambda line: float(line["ready_s"])):
        measured = sorted(other["measured_s"] for other in tried if other["candidate"] == line["candidate"])
        when = f"compile {line['began_s']:6.1f} to {line['ready_s']:6.1f}  CPU {line['cpu_s']:6.1f}"
        print(f"  {when}  {line['candidate']:<34} measured {' '.join(f'{at_s:.1f}' for at_s in measured if at_s)}")
    print(f"  compiles: {len(compiled)}, CPU {sum(line['cpu_s'] for line in compiled.values()):.1f} s")
    ready = [float(line["ready_s"]) for line in compiled.values()]
    measured = [float(line["measured_s"]) for line in tried if line["measured_s"]]
    if measured:
        print(f"  {len(measured)} measured, the first at {min(measured):.2f} s, the last at {max(measured):.2f} s")
    if ready and measured:
        first, last = min(ready), max(ready)
        print(f"  first library {first:.1f} s, last {last:.1f} s, last measured {max(measured) - last:.1f} s after it")
