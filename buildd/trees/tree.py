"""Build trees of other tools: the facts about a tree that a watch needs, and how a run's output becomes events.

Knows neither ninja nor make (`ninja_tree`, `make_tree`), nor the watch (`tree_watch`).
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
from typing import Protocol

from buildd.artifacts.diagnostics import diagnose
from buildd.artifacts.kernel_reports import completed, is_report, kernels_in
from buildd.errors import BuilddError
from buildd.files.cmake_cache import source_folder
from buildd.shims.shim_folders import find_tools
from buildd.ui.text import tool_of
from protocol import messages as m

_ERROR = re.compile(r"\w+: (?:error|fatal): ")
_SYSTEM = ("/usr/", "/proc/", "/sys/", "/dev/", "/opt/rocm")
_BESIDE = (".d", ".dep", ".rsp", ".tmp")
_OPTION = re.compile(r"(?:^|\s)-(?:I|isystem|iquote|idirafter)[ =]?(?:\"([^\"]+)\"|'([^']+)'|(\S+))")


class TreeError(BuilddError):
    """A tool's build tree cannot be read."""

    code = "tree"
    is_usage = True


class Reader(Protocol):
    """Turns the output of one run of the tool into events. Called in order from one thread."""

    def foresee(self) -> list[m.EventBody]:
        """The plan of the run, which has begun, as far as the tool can tell."""

    def line(self, text: str) -> list[m.EventBody]:
        """Take in a line of the run's output."""

    def pause(self) -> list[m.EventBody]:
        """The output pauses: no further line for now."""

    def end(self, status: int) -> list[m.EventBody]:
        """The run is over."""

    @property
    def problem(self) -> str:
        """The tool's own last error: why the build failed; empty if it gave none."""


class Tree(Protocol):
    """A build tree. `describe` and `reader` run its tool; everything else returns at once."""

    folder: str
    """Absolute path of the folder that the tool runs in."""
    project: str
    """Absolute path of the folder that shown paths are relative to."""
    inputs: tuple[str, ...]
    """Absolute paths of the files that the tree is built from, and of folders in which a new file may matter."""
    outputs: frozenset[str]
    """Absolute paths of the files that it makes."""

    def describe(self) -> None:
        """Find `inputs` and `outputs`. Raises TreeError."""

    def command(self, jobs: int | None) -> list[str]:
        """The command that builds it. A tool that gets a width as an option shares no jobserver."""

    def reader(self, *, everything: bool) -> Reader:
        """A reader for a run that begins now.

        Args:
            everything: also report the kernels of outputs that are not built again.
        """

    def notice(self) -> str:
        """A hint for the tree's owner; empty if there is none."""


@dataclass(slots=True)
class Edge:
    """One command of a run, and its output."""

    number: int
    action: str
    command: str
    lines: list[str] = field(default_factory=list)
    status: int = 0

    @property
    def begun(self) -> m.Started:
        """The event for its beginning."""
        return m.Started(
            job_id=m.JobId(self.number), action=self.action, command=self.command, kind=tool_of(self.command)
        )

    @property
    def said(self) -> list[m.EventBody]:
        """Its output as events, without the reports that are sent as data."""
        return [log_line(self.number, line) for line in self.lines if not is_report(line)]

    def ended(self, wall_s: float, kernels: tuple[m.Kernel, ...]) -> m.EventBody:
        """The event for its end.

        Args:
            kernels: those in its outputs.
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
    """Whether a file comes and goes as a tree is built: an output, a file written beside one, a tool's own log.

    Args:
        path: absolute; so are outputs.
    """
    if path in outputs or os.path.basename(path).startswith((".ninja_", ".buildd-")):
        return True
    stem, ending = os.path.splitext(path)
    return ending in _BESIDE and (stem in outputs or any(f"{stem}{kind}" in outputs for kind in (".o", ".obj")))


def log_line(number: int, text: str) -> m.EventBody:
    """The event for a line of output of the edge with this number."""
    return m.LogLine(job_id=m.JobId(number), stream="stdout", text=text)


def is_system(path: str) -> bool:
    """Whether a path belongs to the system. Such files are not watched: nobody edits them and expects a build."""
    return path.startswith(_SYSTEM)


def toolkits(environ: Mapping[str, str], named: Iterable[str] = ()) -> tuple[str, ...]:
    """The folders of compilers' own headers and libraries, each with its final slash.

    Args:
        environ: its PATH has compilers.
        named: paths of further compilers.
    """
    roots = {
        os.path.dirname(os.path.dirname(os.path.realpath(path))) for path in (*find_tools(environ).values(), *named)
    }
    return tuple(f"{root}/{part}/" for root in roots for part in ("include", "lib", "lib64", "targets", "nvvm"))


def include_folders(command: str) -> list[str]:
    """The include folders of a compile command, as the command spells them."""
    return ["".join(groups) for groups in _OPTION.findall(command)]


def source_root(folder: str, sources: Iterable[str]) -> str:
    """The folder that has both the tree and its sources; the tree's own folder if they have nothing in common.

    Args:
        folder: the tree's; absolute.
        sources: absolute paths of sources that the tree's files name.
    """
    if of_cmake := source_folder(folder):
        return of_cmake
    above = os.path.commonpath([folder, *(path for path in sources if not is_system(path))])
    return above if above.count("/") > 1 else folder


def tool_output(
    argv: list[str], folder: str, environ: Mapping[str, str], *, may_fail: bool = False, timeout_s: float = 120.0
) -> str:
    """Run a tool and return its standard output.

    Raises: TreeError if it cannot be run or, without `may_fail`, if it fails.
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
                # The whole group: a makefile that calls itself goes on without the make that started it.
                # The group may be gone already, by the same Ctrl-C; that error must not replace the interrupt.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer in {timeout_s:g} s"
        raise TreeError(
            f"{argv[0]} cannot be run: {why}", file=folder, command=command, next_step="run the command by hand"
        ) from error
    if process.returncode and not may_fail:
        said = (errors or output).decode(errors="replace").strip().splitlines()
        # ninja shows the place of an error below its message.
        words = next((line for line in said if _ERROR.match(line)), said[-1] if said else "")
        raise TreeError(
            words or f"{argv[0]} ended with status {process.returncode}",
            file=folder,
            command=command,
            next_step="run the command by hand",
        )
    return output.decode(errors="surrogateescape")
