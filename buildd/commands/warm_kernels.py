"""`buildd warm --manifest FILE`: recorded Triton kernels compiled into the store, or looked up there.

Knows the words and the exit status; `warming` has the processes, `kernel_manifest` the file. No daemon: the kernels are
kept by the processes that compile them, as they are below `buildd run`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from buildd import frameworks, kernel_manifest
from buildd.cli import FAILED, OK
from buildd.commands.common import print_lines
from buildd.commands.request import chosen_jobs, store_of
from buildd.commands.run import bound_kernels
from buildd.hooks.triton_record import FOLDER, ROOT
from buildd.kernel_manifest import Line as Recorded
from buildd.store import Store
from buildd.ui.text import Line, Style, clean, count, duration
from buildd.warming import Answer, Warming, room
from codegen.plan import RequestError


class Warmed(msgspec.Struct, frozen=True, kw_only=True, tag="kernel"):
    """One line of `--json`."""

    kernel: str
    target: str
    hit: bool
    hash: str
    problem: str
    wall_s: float


@dataclass(slots=True)
class _Tally:
    hits: int = 0
    compiled: int = 0
    missing: list[str] = field(default_factory=list)
    problems: int = 0
    moved: int = 0
    versions: set[tuple[str, str]] = field(default_factory=set)


def warm(options: Namespace) -> int:
    """Carry out `buildd warm --manifest`; 1 where a kernel cannot be compiled, or, with --prove, is not there.

    Raises: ManifestError, RequestError, StoreError.
    """
    _check(options)
    environ = dict(os.environ)
    root = Path(options.directory or ".").resolve()
    lines = kernel_manifest.read(options.manifest)
    width = min(chosen_jobs(options.jobs, environ) or room(len(lines)), max(len(lines), 1))
    store = Path(store_of(environ))
    tally, started_s = _Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="buildd-warm-") as private:
        warming = Warming(_interpreter(options.python), _variables(environ, store, private), root, prove=options.prove)
        # Open, so that it is there; closed before kernels are bounded.
        with Store.open(store):
            warming.run(lines, width, lambda line, answer: _tell(line, answer, tally, options))
    if not options.prove:
        bound_kernels({**environ, "BUILDD_DIR": str(store)})
    print_lines(_summary(tally, len(lines), time.monotonic() - started_s, options), to_stderr=options.json)
    return FAILED if tally.problems or tally.missing else OK


def _check(options: Namespace) -> None:
    if options.targets or options.arch or options.file:
        raise RequestError(
            "bad-value",
            "--manifest names its kernels itself, with what each is compiled for",
            next_step="leave out targets, --arch and -f",
        )
    if options.directory and not os.path.isdir(options.directory):
        raise RequestError("bad-project", f"no folder {options.directory}", next_step="check the argument of -C")


def _interpreter(asked: str) -> str:
    found = shutil.which(asked or sys.executable)
    if found is None:
        raise RequestError("bad-value", f"there is no Python at {asked}", next_step="check the argument of --python")
    return found


def _variables(environ: dict[str, str], store: Path, private: str) -> dict[str, str]:
    """Of the processes that compile: kernels go to the store; Triton's own copies go with them."""
    rest = {name: value for name, value in environ.items() if name not in (FOLDER, ROOT)}
    rest |= {"BUILDD_DIR": str(store), "TRITON_CACHE_DIR": private}
    return rest | {"PYTHONPATH": frameworks.variables(rest)["PYTHONPATH"]}


def _tell(line: Recorded, answer: Answer, tally: _Tally, options: Namespace) -> None:
    label = f"{line.kernel.label} for {line.target}"
    if answer.problem:
        tally.problems += 1
        text = Line(f"failed {clean(label)}: {clean(answer.problem)}", Style.ERROR)
    elif options.prove and not answer.hit:
        tally.missing.append(label)
        text = Line(f"not there: {clean(label)}")
    else:
        tally.hits += answer.hit
        tally.compiled += not answer.hit
        tally.moved += bool(line.kernel.hash) and answer.hash != line.kernel.hash
        tally.versions.add((line.kernel.triton, answer.triton))
        text = Line(f"{'hit' if answer.hit else 'compiled'} {clean(label)} ({duration(answer.wall_s)})")
    if options.json:
        told = Warmed(
            kernel=line.kernel.label,
            target=str(line.target),
            hit=answer.hit,
            hash=answer.hash,
            problem=answer.problem,
            wall_s=answer.wall_s,
        )
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()
    elif answer.problem or options.prove or not answer.hit:
        print_lines([text], to_stderr=bool(answer.problem))


def _summary(tally: _Tally, kernels: int, wall_s: float, options: Namespace) -> list[Line]:
    lines = []
    if tally.moved:
        why = "their sources have changed since"
        other = sorted(f"{then}, now {now}" for then, now in tally.versions if then != now)
        if other:
            why = f"they were recorded with Triton {other[0]}"
        lines.append(
            Line(
                f"{count(tally.moved, 'kernel')} have another key than when they were recorded: {why}; "
                "a program hits where it has the same sources and the same Triton",
                Style.WARNING,
            )
        )
    if options.prove:
        if tally.missing or tally.problems:
            text = f"not warm: {len(tally.missing) + tally.problems} of {count(kernels, 'kernel')} would be compiled"
        else:
            text = f"warm: nothing would be compiled, {count(tally.hits, 'hit')}"
    else:
        text = f"{count(kernels, 'kernel')}: {count(tally.hits, 'hit')}, {tally.compiled} compiled"
        text += f", {tally.problems} failed" if tally.problems else ""
        text += f", {duration(wall_s)}"
    return [*lines, Line(text)]
