"""A build tree of ninja (CMake, Meson): its files, as ninja itself lists them, and ninja's output as events.

Decides what is watched and reads a run's output; `ninja_graph` reads the tree. Knows no compiler, and builds nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from buildd.artifacts.device_code import kernels_of_file
from buildd.artifacts.diagnostics import diagnose
from buildd.builds.includes import mentioned
from buildd.shims import interposition
from buildd.trees.ninja_graph import FILE, NinjaGraph, Stamps
from buildd.trees.tree import Edge, TreeError, include_folders, tool_output
from protocol import messages as m

STATUS = "\x1e%f/%t\x1e"
"""Value of NINJA_STATUS: marks ninja's own lines."""
_ABSOLUTE = re.compile(r"""(?:(?<=[\s"'])|^)/[^\s"']*[^\s"'.]""", re.MULTILINE)
_MOST_ASKED = 500
"""The most outputs on the command line of `-t deps`."""
_MARK = re.compile("\x1e(?P<done>\\d+)/(?P<total>\\d+)\x1e(?P<command>.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=(?P<code>\d+)\] )?.*")
_OWN = re.compile(r"ninja: (?:(?P<severity>error|warning|fatal): )?(?P<message>.*)")


class NinjaTree:
    """A folder with a build.ninja; see `trees.tree.Tree`.

    Args:
        folder: absolute.
        targets: as for ninja; empty means the default ones.
        environ: its PATH has ninja.

    Raises: TreeError.
    """

    def __init__(self, folder: str, targets: Iterable[str], environ: Mapping[str, str]) -> None:
        self.folder = self.project = os.path.realpath(folder)
        self.inputs: tuple[str, ...] = ()
        self.outputs: frozenset[str] = frozenset()
        self.log = NinjaLog(f"{self.folder}/.ninja_log")
        self.failed: dict[str, str] = {}
        """Outputs whose commands failed last time -> their messages. Ninja has no deps of a failed command."""
        self.targets = tuple(targets) or (os.path.basename(self.folder),)
        """Names to show."""
        self._targets = tuple(targets)
        self._environ = environ
        self.graph = NinjaGraph(self.folder, self._targets, environ)
        self._described: Stamps | None = None
        """Stamps of the manifest when the tree was described."""
        if not os.path.isfile(f"{self.folder}/{FILE}"):
            raise TreeError(
                f"no {FILE} in {self.folder}",
                file=self.folder,
                next_step=f"cmake -G Ninja -B {shlex.quote(folder)}, or name the folder that has one",
            )

    def command(self, jobs: int | None) -> list[str]:
        # With an old make, ninja gets no jobserver; see `jobserver.variables`.
        shares = self._environ.get("BUILDD_JOBSERVER", "").startswith("/")
        return ["ninja", "-v", *(() if jobs is None or shares else (f"-j{jobs}",)), *self._targets]

    def reader(self, *, everything: bool) -> NinjaReader:
        self.log.read()
        return NinjaReader(self, dict(self.log.wall_s), self.graph.device if everything else ())

    def notice(self) -> str:
        past = self.graph.uncached
        if not past or interposition.folder_of(self._environ):  # the library takes calls by path
            return ""
        return (
            f"{past} of {len(self.graph.by_command)} commands call a compiler by its own path and bypass the cache: "
            "configure the tree again with `buildd run -- cmake ...`"
        )

    def describe(self) -> None:
        graph, stamps = self.graph, self.graph.stamps()
        if stamps != self._described:
            graph.load()
            self.project, self.outputs = graph.project, graph.outputs
            self.log.read()
            self.log.new = set()
            graph.load_read(())
            self._described = stamps
        else:
            new, self.log.new = self.log.new, set()
            if new:
                graph.load_read(new if len(new) <= _MOST_ASKED else ())
        files = {*graph.inputs, *self._mentioned()}
        folders = {os.path.dirname(path) for path in files}
        folders.update(folder for folder in graph.folders if f"{folder}/".startswith(f"{self.project}/"))
        # Not the folders that ninja writes to: every build makes new files there.
        folders = {folder for folder in folders if self.project == self.folder or not self._is_inside(folder)}
        self.inputs = tuple(sorted(files | {folder for folder in folders if os.path.isdir(folder)}))

    def _mentioned(self) -> Iterator[str]:
        """The files that sources of failed commands include: saving a missing or wrong one may fix the build."""
        for output in self.failed.keys() & self.graph.compiled.keys():
            source, command = self.graph.compiled[output]
            search = list(map(self.graph.absolute, include_folders(command)))
            for path in mentioned([self.graph.absolute(source)], search, lambda path: not self.graph.is_left_out(path)):
                # Skip the headers that the compiler has found in its own folders.
                is_missed = os.path.isfile(path) or os.path.basename(path) in self.failed[output]
                if is_missed and path not in self.outputs:
                    yield path
        if said := self.failed.get(FILE):
            yield from self._named_by_cmake(said)

    def _named_by_cmake(self, said: str) -> Iterator[str]:
        """The files of the project that an error of CMake's names: the manifest does not know the new ones yet."""
        named = [found.file for found in diagnose(said)]
        for path in dict.fromkeys(os.path.join(self.project, name) for name in (*named, *_ABSOLUTE.findall(said))):
            if path.startswith(f"{self.project}/") and not self._is_inside(path):
                yield f"{path}/CMakeLists.txt" if os.path.isdir(path) else path

    def _is_inside(self, path: str) -> bool:
        """Whether a path is in the build folder."""
        return f"{path}/".startswith(f"{self.folder}/")

    def dry_run(self) -> list[str]:
        """The first outputs of the commands that ninja would run now, as it spells them, as far as they are known."""
        command = [*self.command(None), "-n"]
        said = tool_output(command, self.folder, {**self._environ, "NINJA_STATUS": STATUS}, may_fail=True)
        found = (match for line in said.split("\n") if (match := _MARK.fullmatch(line)))
        return [output for match in found if (output := self.graph.by_command.get(match["command"], ""))]


class NinjaLog:
    """Ninja's log of the commands that it ran; only new lines are read.

    Args:
        path: .ninja_log.
    """

    def __init__(self, path: str) -> None:
        self.wall_s: dict[str, float] = {}
        """Output -> duration of its command."""
        self.new: set[str] = set()
        """Outputs logged since the tree last emptied this set."""
        self._path = path
        self._file: tuple[int, int] = (0, 0)
        """Inode, and the offset read so far."""

    def read(self) -> None:
        """Read the lines that are new."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                inode, at = self._file
                if status.st_ino != inode or status.st_size < at:
                    at = 0  # ninja has rewritten the log to shorten it
                file.seek(at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._file = status.st_ino, at + len(whole) + len(newline)
        for line in whole.decode(errors="surrogateescape").split("\n"):
            fields = line.split("\t")
            if len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
                self.wall_s[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
                self.new.add(fields[3])


@dataclass(slots=True)
class NinjaReader:
    """Reads the output of one run; see `trees.tree.Reader`.

    Args:
        expected_s: durations by output, from earlier runs.
        device: outputs whose kernels are reported even if they are not built.
    """

    tree: NinjaTree
    expected_s: dict[str, float]
    device: tuple[str, ...]
    problem: str = ""
    _edge: Edge | None = None
    _output: str = ""
    _place: tuple[int, int] = (0, 0)
    _number: int = 0
    """Number of edges that have ended."""
    _jobs: dict[str, int] = field(default_factory=dict)
    """Output -> the number of its edge, once the edge was reported as queued."""
    _built: set[str] = field(default_factory=set)

    def foresee(self) -> list[m.EventBody]:
        told = [self._queued(output, output) for output in self.tree.dry_run() if output not in self._jobs]
        if not told:
            return []
        return [m.Planned(targets=self.tree.targets, actions=len(told), expected_s=self._left_s()), *told]

    def _left_s(self) -> float:
        """Expected time to the end, if the tool keeps the processors busy; 0 if an edge was never seen to run."""
        left = [self.expected_s.get(output, 0.0) for output in self._jobs if output not in self._built]
        return max(sum(left) / (os.cpu_count() or 1), *left) if left and all(left) else 0.0

    def _queued(self, key: str, action: str) -> m.EventBody:
        number = self._jobs[key] = len(self._jobs) + 1
        action = action.encode(errors="replace").decode()  # a name that is not UTF-8
        return m.Queued(job_id=m.JobId(number), action=action, expected_s=self.expected_s.get(key, 0.0))

    def line(self, text: str) -> list[m.EventBody]:
        if match := _MARK.fullmatch(text):
            ended = self._ended()
            self._place = int(match["done"]), int(match["total"])
            command = match["command"]
            self._output = self.tree.graph.output_of(command)
            key, action = self._output or command, self._output or command.partition(" ")[0]
            if not self._jobs:
                ended.append(m.Planned(targets=self.tree.targets, actions=self._place[1]))
            if key not in self._jobs:
                ended.append(self._queued(key, action))
            self._edge = Edge(self._jobs[key], action, f"cd {shlex.quote(self.tree.folder)} && {command}")
            return ended
        if match := _OWN.fullmatch(text):
            self.problem = match["message"] if match["severity"] in ("error", "fatal") else self.problem
            if match["severity"] == "warning":
                return [*self._ended(), m.Notice(text=text, severity=m.Severity.WARNING)]
            return self._ended()
        if self._edge is None:
            return [m.Notice(text=text)] if text.strip() else []
        if (match := _FAILED.fullmatch(text)) and not self._edge.status:
            self._edge.status = int(match["code"] or 1)
        elif not (self._edge.status and self._edge.command.endswith(f" && {text}")):
            self._edge.lines.append(text)
        return []

    def pause(self) -> list[m.EventBody]:
        # Ninja shows this command when it begins, and nothing runs beside it: CMake may be silent for long.
        return [] if self._output == FILE else self._ended()

    def _ended(self) -> list[m.EventBody]:
        edge, self._edge = self._edge, None
        if edge is None:
            return []
        # Ninja logs a command right after it prints its status.
        self.tree.log.read()
        self._number += 1
        kernels: tuple[m.Kernel, ...] = ()
        if edge.status:
            self.tree.failed[self._output] = "\n".join(edge.lines)
        else:
            self.tree.failed.pop(self._output, None)
        if self._output and not edge.status:
            self._built.add(self._output)
            kernels = kernels_of_file(self.tree.graph.absolute(self._output))
        done, total = self._place
        ended = edge.ended(self.tree.log.wall_s.get(self._output, 0.0), kernels)
        progress = m.Progress(done=done, total=total, misses=self._number, to_run=total, eta_s=self._left_s())
        return [edge.begun, *edge.said, ended, progress]

    def end(self, status: int) -> list[m.EventBody]:
        told = self._ended()
        hits: list[m.EventBody] = []
        for output in self.device:
            if output not in self._built and (kernels := kernels_of_file(self.tree.graph.absolute(output))):
                hits.append(m.CacheHit(job_id=m.JobId(0), action=output, reason="up to date", kernels=kernels))
        planned = () if self._jobs else (m.Planned(targets=self.tree.targets, actions=len(hits)),)
        return [*told, *planned, *hits]
