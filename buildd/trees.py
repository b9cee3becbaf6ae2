"""Build trees that another tool builds: what a watch needs to know of one, and how the words of a run become events.

Knows neither ninja nor make (`ninjatree`, `maketree`), nor who watches (`commands.rebuilds`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from buildd.diagnostics import diagnose
from buildd.errors import BuilddError
from buildd.kernels import completed, is_report, kernels_in
from buildd.standins import find_tools
from buildd.ui.text import tool_of
from protocol import messages as m

_ERROR = re.compile(r"\w+: (?:error|fatal): ")
_SYSTEM = ("/usr/", "/proc/", "/sys/", "/dev/", "/opt/rocm")
_BESIDE = (".d", ".dep", ".rsp", ".tmp")
_OPTION = re.compile(r"(?:^|\s)-(?:I|isystem|iquote|idirafter)[ =]?(?:\"([^\"]+)\"|'([^']+)'|(\S+))")


class TreeError(BuilddError):
    """A tool's build tree cannot be made sense of."""

    code = "tree"
    is_usage = True


class Reader(Protocol):
    """What one run of the tool says -> events. Called in order from one thread."""

    def foresee(self) -> list[m.EventBody]:
        """What the run, which has begun, will do, as far as the tool can tell."""

    def line(self, text: str) -> list[m.EventBody]:
        """A line of the run's output."""

    def pause(self) -> list[m.EventBody]:
        """For now there is no further line."""

    def end(self, status: int) -> list[m.EventBody]:
        """The run is over."""

    @property
    def problem(self) -> str:
        """What the tool said of itself last: why nothing was built; empty where it did not."""


class Tree(Protocol):
    """A build tree. `describe` and `reader` ask its tool; all others answer at once."""

    folder: str
    """Absolute; the tool runs there."""
    project: str
    """Absolute: the folder that paths are relative to for people."""
    inputs: tuple[str, ...]
    """Absolute paths of the files that it is built of, and of folders in which a new name may count."""
    outputs: frozenset[str]
    """Absolute paths of what it makes."""

    def describe(self) -> None:
        """Find `inputs` and `outputs`. Raises TreeError."""

    def command(self, jobs: int | None) -> list[str]:
        """What builds it. A tool that is told a width in words shares no jobserver."""

    def reader(self, *, everything: bool) -> Reader:
        """For a run that begins now.

        Args:
            everything: tell the kernels of what is not built again, too.
        """

    def notice(self) -> str:
        """What its owner should know; empty where there is nothing."""


@dataclass(slots=True)
class Edge:
    """One command of a run, and what was said of it."""

    number: int
    action: str
    command: str
    lines: list[str] = field(default_factory=list)
    status: int = 0

    @property
    def begun(self) -> m.Started:
        """That it was begun."""
        return m.Started(
            job_id=m.JobId(self.number), action=self.action, command=self.command, kind=tool_of(self.command)
        )

    @property
    def said(self) -> list[m.EventBody]:
        """What it said, but for reports that are told as data."""
        return [log_line(self.number, line) for line in self.lines if not is_report(line)]

    def ended(self, wall_s: float, kernels: tuple[m.Kernel, ...]) -> m.EventBody:
        """How it ended.

        Args:
            kernels: in what it made.
        """
        text = "\n".join(self.lines)
        if not self.status:
            return m.Finished(
                job_id=m.JobId(self.number),
                action=self.action,
                timing=m.Timing(wall_s=wall_s),
                kernels=completed(kernels_in(text), kernels),
            )
        return m.Failed(
            job_id=m.JobId(self.number),
            action=self.action,
            kind=m.FailureKind.COMPILE_ERROR,
            message=f"ended with status {self.status}",
            exit_status=self.status,
            command=self.command,
            diagnostics=diagnose(text),
        )


def is_by_product(path: str, outputs: Container[str]) -> bool:
    """Whether a file comes and goes as a tree is built: an output, what is written beside one, a tool's own notes.

    Args:
        path: absolute; so are outputs.
    """
    if path in outputs or os.path.basename(path).startswith((".ninja_", ".buildd-")):
        return True
    stem, ending = os.path.splitext(path)
    return ending in _BESIDE and (stem in outputs or any(f"{stem}{kind}" in outputs for kind in (".o", ".obj")))


def log_line(number: int, text: str) -> m.EventBody:
    """A line that the edge of this number said."""
    return m.LogLine(job_id=m.JobId(number), stream="stdout", text=text)


def is_system(path: str) -> bool:
    """Whether a path belongs to the system: nobody edits that and waits for a build."""
    return path.startswith(_SYSTEM)


def toolkits(environ: Mapping[str, str], named: Iterable[str] = ()) -> tuple[str, ...]:
    """Where compilers keep what is theirs, each folder with its final slash.

    Args:
        environ: its PATH has compilers.
        named: paths of further ones.
    """
    roots = {
        os.path.dirname(os.path.dirname(os.path.realpath(path))) for path in (*find_tools(environ).values(), *named)
    }
    return tuple(f"{root}/{part}/" for root in roots for part in ("include", "lib", "lib64", "targets", "nvvm"))


def searched(command: str) -> list[str]:
    """The folders that a command's compiler searches, as it spells them."""
    return ["".join(groups) for groups in _OPTION.findall(command)]


def source_root(folder: str, sources: Iterable[str]) -> str:
    """The folder that has both the tree and its sources; the tree's own where that says nothing.

    Args:
        folder: of the tree; absolute.
        sources: absolute paths that the tree's files name by themselves.
    """
    try:
        for line in Path(folder, "CMakeCache.txt").read_text(errors="surrogateescape").splitlines():
            if line.startswith("CMAKE_HOME_DIRECTORY:INTERNAL="):
                return os.path.realpath(line.partition("=")[2])
    except OSError:
        pass
    above = os.path.commonpath([folder, *(path for path in sources if not is_system(path))])
    return above if above.count("/") > 1 else folder


def asked(
    argv: list[str], folder: str, environ: Mapping[str, str], *, may_fail: bool = False, timeout_s: float = 120.0
) -> str:
    """What a tool says on standard output.

    Raises: TreeError where it cannot be had or, but for `may_fail`, ends badly.
    """
    command = shlex.join(argv)
    try:
        with subprocess.Popen(
            argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                # Its whole group: a makefile that calls itself goes on without the make that began it.
                # Nothing is left where it took the same Ctrl-C, and only that may be what leaves this.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer in {timeout_s:g} s"
        raise TreeError(
            f"{argv[0]} cannot be asked: {why}", file=folder, command=command, next_step="run the command by hand"
        ) from error
    if process.returncode and not may_fail:
        said = (errors or output).decode(errors="replace").strip().splitlines()
        # ninja shows the place of a mistake below what it says of it.
        words = next((line for line in said if _ERROR.match(line)), said[-1] if said else "")
        raise TreeError(
            words or f"{argv[0]} ended with status {process.returncode}",
            file=folder,
            command=command,
            next_step="run the command by hand",
        )
    return output.decode(errors="surrogateescape")
