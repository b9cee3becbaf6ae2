"""`buildd warm --manifest FILE`: recorded Triton kernels compiled into the store, or looked up there.

Knows the words and the exit status; `warming` has the processes, `kernel_manifest` the file. No daemon: the kernels are
kept by the processes that compile them, as they are below `buildd run`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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

_ASKED_S = 60.0


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
        interpreter = interpreter_of(options.python, lines, root)
        warming = Warming(interpreter, _variables(environ, store, private), root, prove=options.prove)
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


def interpreter_of(asked: str, lines: list[Recorded], root: Path) -> str:
    """The program's Python: named, or the first one that is like the recorded one and has what its kernels need."""
    if asked:
        found = shutil.which(asked)
        if found is None:
            raise RequestError(
                "bad-value", f"there is no Python at {asked}", next_step="check the argument of --python"
            )
        return found
    recorded = sorted({str(root / line.kernel.interpreter) for line in lines if line.kernel.interpreter})
    versions = {line.kernel.python for line in lines}
    packages = ("triton", *(("torch",) if any(line.kernel.text for line in lines) else ()))
    # As `buildd run -- python ...` finds it; then ours, which says what it lacks where none serves.
    candidates = [*map(shutil.which, (*recorded, "python", "python3")), sys.executable]
    return next((one for one in dict.fromkeys(candidates) if one and _serves(one, versions, packages)), sys.executable)


def _serves(interpreter: str, versions: set[str], packages: tuple[str, ...]) -> bool:
    """Whether a Python is of one of these versions, and finds all these packages."""
    # A folder of that name where we are has no origin.
    question = (
        "import sys; from importlib.util import find_spec;"
        "print('%d.%d' % sys.version_info[:2], *(n for n in sys.argv[1:] if getattr(find_spec(n), 'origin', None)))"
    )
    try:
        told = subprocess.run(
            [interpreter, "-c", question, *packages],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASKED_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version, *found = told.stdout.split() or [""]
    return told.returncode == 0 and version in versions and set(packages) <= set(found)


def _variables(environ: dict[str, str], store: Path, private: str) -> dict[str, str]:
    """Of the processes that compile: kernels go to the store; Triton's own copies go with them."""
    # BUILDD_DISABLE is about the daemon here, and none takes part; programs leave the store alone for it.
    rest = {name: value for name, value in environ.items() if name not in (FOLDER, ROOT, "BUILDD_DISABLE")}
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
        then = f"{line.kernel.triton} for Python {line.kernel.python}"
        tally.versions.add((then, f"{answer.triton} for Python {answer.python}"))
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
