"""The Triton kernels of a recording: compiles them into the store, or looks them up there.

Knows the messages and the exit status; `kernel_manifest` knows the file. Sends an ordinary request with one target for
each process that compiles a share of the kernels (`triton_recorded`); each line of its output is one kernel's result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from buildd.client.foreign_build import bound_kernels
from buildd.client.perform import carry_out, status_of
from buildd.client.request import chosen_jobs, selected_environment, store_of, with_files
from buildd.exits import FAILED, OK
from buildd.programs.kernel_manifest import ManifestLine
from buildd.shims.framework_environment import HOOKS
from buildd.ui.problems import is_on, print_lines
from buildd.ui.text import Line, Style, clean, count, duration
from codegen.errors import RequestError
from protocol import messages as m

_ASKED_S = 60.0
_STOPPED = "it was not compiled"


class KernelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one kernel. Without `problem` it is in the store; with `prove`, `hit` says whether it is."""

    hit: bool = False
    hash: str = ""
    triton: str = ""
    python: str = ""
    problem: str = ""
    died: bool = False
    """The process ended instead of answering."""
    wall_s: float = 0.0


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


def warm(options: Namespace, lines: list[ManifestLine]) -> int:
    """Compile recorded kernels; 1 if one cannot be compiled, or, with --prove, is not in the store.

    Raises: RequestError, StoreError.
    """
    environ = dict(os.environ)
    root = Path(options.directory or ".").resolve()
    jobs = chosen_jobs(options.jobs, with_files(environ))
    tally, started_s = _Tally(), time.monotonic()
    store = store_of(environ)
    if lines:
        request_id = m.RequestId(os.urandom(6).hex())
        shares = shared(lines, jobs or len(os.sched_getaffinity(0)))
        request = m.Request(
            request_id=request_id,
            build_id=m.BuildId(environ.get("BUILDD_BUILD_ID") or request_id),
            project=str(root),
            file="",
            specs={name: _spec(share, request_id, options) for name, share in shares.items()},
            environment=selected_environment(environ),
            store=store,
            mode=m.Mode.WARM,
            jobs=jobs,
            priority=m.Priority.WARM,
            on_disconnect=m.OnDisconnect.CANCEL,
            interpreter=interpreter_of(options.python, lines, root),
            keep_going=True,
            recache=is_on(environ, "BUILDD_RECACHE"),
        )
        view = KernelAnswers(shares, tally, options)
        done = carry_out(request, view, no_daemon=options.no_daemon, environ=environ)
        if done.outcome not in (m.Outcome.BUILT, m.Outcome.FAILED):
            return status_of(done)
    if not options.prove:
        bound_kernels({**environ, "BUILDD_DIR": store})
    print_lines(_summary(tally, len(lines), time.monotonic() - started_s, options), to_stderr=options.json)
    return FAILED if tally.problems or tally.missing else OK


def shared(lines: list[ManifestLine], cpus: int) -> dict[str, list[ManifestLine]]:
    """Target name -> the kernels that one process compiles; as many processes as CPUs, at least one a group."""
    groups: dict[tuple[Any, ...], list[ManifestLine]] = defaultdict(list)
    for line in lines:
        groups[line.group].append(line)
    width = -(-cpus // len(groups)) if groups else 0
    shares = [group[part::width] for group in groups.values() for part in range(min(width, len(group)))]
    return {f"kernels.{number}": share for number, share in enumerate(shares, 1)}


def _spec(share: list[ManifestLine], request_id: m.RequestId, options: Namespace) -> msgspec.Raw:
    return m.spec_from(
        {
            "kind": "recorded",
            "kernels": [line.text.decode() for line in share],
            "variables": share[0].kernel.variables,
            "prove": options.prove,
            "hooks": HOOKS,
            "asked_by": request_id,
            "timeout_s": 1e6,  # the process has a time limit of its own for each kernel
        }
    )


class KernelAnswers:
    """The view of such a request: shows each kernel's answer as it arrives."""

    def __init__(self, shares: dict[str, list[ManifestLine]], tally: _Tally, options: Namespace) -> None:
        self._left = {name: deque(share) for name, share in shares.items()}
        """Target -> its kernels without an answer, in the order of their answers."""
        self._targets: dict[m.JobId, str] = {}
        self._said: dict[m.JobId, str] = {}
        """Job -> its last line of output."""
        self._why: dict[str, str] = {}
        self._tally = tally
        self._options = options

    def event(self, event: m.Event) -> None:
        body = event.body
        match body:
            case m.Started():
                self._targets[body.job_id] = body.action
            case m.LogLine(stream="stdout"):
                self._answered(body)
            case m.LogLine() if body.text.strip():
                self._said[body.job_id] = body.text.strip()
            case m.Failed():
                self._why[body.action] = body.message
            case m.Done(outcome=m.Outcome.BUILT | m.Outcome.FAILED):
                for name, left in self._left.items():
                    for line in left:
                        problem = self._why.get(name) or body.message or _STOPPED
                        _tell(line, KernelAnswer(problem=problem), self._tally, self._options)
            case _:
                pass

    def _answered(self, body: m.LogLine) -> None:
        left = self._left.get(self._targets.get(body.job_id, ""))
        if left:
            answer = msgspec.json.decode(body.text, type=KernelAnswer)
            if answer.died and (said := self._said.pop(body.job_id, "")):
                answer = msgspec.structs.replace(answer, problem=f"{answer.problem}: {said}")
            _tell(left.popleft(), answer, self._tally, self._options)

    def close(self) -> None:
        pass


def interpreter_of(asked: str, lines: list[ManifestLine], root: Path) -> str:
    """The program's Python: the named one, or the first one of a recorded version that has the needed packages."""
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
    # As `buildd run -- python ...` finds it; at last buildd's own, whose error says what is missing.
    candidates = [*map(shutil.which, (*recorded, "python", "python3")), sys.executable]
    return next((one for one in dict.fromkeys(candidates) if one and _serves(one, versions, packages)), sys.executable)


def _serves(interpreter: str, versions: set[str], packages: tuple[str, ...]) -> bool:
    """Whether a Python has one of these versions and finds all these packages."""
    # A mere folder of that name in the current one has no origin.
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


def _tell(line: ManifestLine, answer: KernelAnswer, tally: _Tally, options: Namespace) -> None:
    label = f"{line.kernel.label} for {line.target}"
    if answer.problem:
        tally.problems += 1
        text = Line(f"failed {clean(label)}: {clean(answer.problem)}", Style.ERROR)
    elif options.prove and not answer.hit:
        tally.missing.append(label)
        text = Line(f"not in the store: {clean(label)}")
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
        have = "has" if tally.moved == 1 else "have"
        lines.append(
            Line(
                f"{count(tally.moved, 'kernel')} {have} another key than when recorded: {why}; "
                "programs hit only with the same sources and the same Triton",
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
