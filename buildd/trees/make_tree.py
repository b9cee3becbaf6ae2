"""A build tree of GNU make: its rules and depfiles, as make's database lists them, and make's output as events.

`make -pn` reads all makefiles and depfiles and prints every rule that the targets need, also for makes that make calls.
A header that no rule and no depfile names is unknown to make, so it is not watched. Runs no recipes, with two
exceptions that make runs even with `-n`: recipes of makefiles, and lines marked as calls of make.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from buildd.artifacts.device_code import kernels_of_file
from buildd.artifacts.kernel_reports import is_report
from buildd.trees.tree import Edge, TreeError, include_folders, is_system, log_line, source_root, tool_output, toolkits
from protocol import messages as m

FILES = ("GNUmakefile", "makefile", "Makefile")
_OBJECTS = (".o", ".obj", ".cubin", ".hsaco", ".so")
_BUILT_IN = re.compile(r"\.[^./]*(?:\.[^./]*)?")
"""Suffix rules, .PHONY and the like."""
_FOLDER = re.compile(r"CURDIR :?= (.+)")
_LIST = re.compile(r"MAKEFILE_LIST :?= (.*)")
_RULE = re.compile(r"(?P<target>[^\s#:=][^#:=]*?):{1,2}(?: (?P<needs>.*))?")
_PROBLEM = re.compile(r"make(?:\[\d+\])?: \*\*\* (?P<message>.*)")
_DEPFILES = (".d", ".dep", ".P")
"""Endings of makefiles that compilers write."""
_CALL = re.compile(r"\S*make (?:-C|-f) .*")
_QUIET = re.compile(
    r"make(?:\[\d+\])?: (?:Nothing to be done for .*|.* is up to date\.|(?:Entering|Leaving) directory .*)"
)
_Stamp = tuple[int, int, int]


class MakeTree:
    """A folder with a Makefile; see `trees.tree.Tree`.

    Args:
        folder: absolute.
        targets: as for make; empty means the default one.
        environ: its PATH has make.

    Raises: TreeError.
    """

    def __init__(self, folder: str, targets: Iterable[str], environ: Mapping[str, str]) -> None:
        self.folder = self.project = os.path.realpath(folder)
        self.inputs: tuple[str, ...] = ()
        self.outputs: frozenset[str] = frozenset()
        self.targets = tuple(targets) or (os.path.basename(self.folder),)
        """Names to show."""
        self._targets = tuple(targets)
        self._kernels: dict[str, tuple[_Stamp, tuple[m.Kernel, ...]]] = {}
        """Output -> its stamp, and the kernels in it."""
        self._shares = bool(environ.get("BUILDD_JOBSERVER"))
        self._toolkits = toolkits(environ)
        # The database is parsed: it has to be English, and parallel makes must not mix theirs.
        alone = {name: value for name, value in environ.items() if name not in ("MAKEFLAGS", "BUILDD_JOBSERVER")}
        self._environ = {**alone, "LC_ALL": "C"}
        if not any(os.path.isfile(f"{self.folder}/{name}") for name in FILES):
            raise TreeError(f"no Makefile in {self.folder}", file=self.folder, next_step="name the folder that has one")

    def command(self, jobs: int | None) -> list[str]:
        return ["make", *(() if jobs is None or self._shares else (f"-j{jobs}",)), *self._targets]

    def reader(self, *, everything: bool) -> MakeReader:
        return MakeReader(self)

    @property
    def title(self) -> str:
        """The targets, in one name."""
        return " ".join(self.targets)

    def notice(self) -> str:
        return ""

    def kernels(self) -> tuple[m.Kernel, ...]:
        """The kernels of all outputs as they are now; reads those that have changed since the last call."""
        known, self._kernels = self._kernels, {}
        for path in sorted(self.outputs):
            if path.endswith(_OBJECTS):
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                before, kernels = known.get(path, (None, ()))
                self._kernels[path] = stamp, kernels if before == stamp else kernels_of_file(path)
        return tuple(kernel for _, kernels in self._kernels.values() for kernel in kernels)

    def describe(self) -> None:
        database = _Database(self.folder)
        # With -n make fails if a recipe that calls make fails, but has printed its database by then.
        text = tool_output(["make", "-pn", *self._targets], self.folder, self._environ, may_fail=True)
        database.read(text)
        if not database.makefiles:
            raise TreeError(
                f"make lists no rules for {self.folder}", file=self.folder, next_step="run make -pn there by hand"
            )
        database.made.update(path for path in database.makefiles if path.endswith(_DEPFILES))
        self.outputs = frozenset(database.made)
        files = {
            path
            for path in (*database.named, *database.makefiles)
            if path not in database.made
            and not is_system(path)
            and not path.startswith(self._toolkits)
            and not os.path.isdir(path)
        }
        # Missing files stay: the build may fail for want of one. A file that only -include names is in no rule.
        self.project = source_root(self.folder, (path for path in files if os.path.exists(path)))
        folders = {os.path.dirname(path) for path in files}
        folders.update(
            path for path in database.searched if os.path.isdir(path) and f"{path}/".startswith(f"{self.project}/")
        )
        self.inputs = tuple(sorted(files | {folder for folder in folders if os.path.isdir(folder)}))


class _Database:
    """The database that `make -pn` printed."""

    def __init__(self, folder: str) -> None:
        self.made: set[str] = set()
        """Targets with a recipe."""
        self.named: set[str] = set()
        """Prerequisites."""
        self.makefiles: set[str] = set()
        self.searched: set[str] = set()
        self._folder = folder
        self._in_files = False
        self._target = ""

    def read(self, text: str) -> None:
        for line in text.splitlines():
            self._line(line)

    def _line(self, line: str) -> None:
        if match := _FOLDER.fullmatch(line):
            self._folder = match[1]  # the first line of each make
        elif match := _LIST.fullmatch(line):
            self.makefiles.update(map(self._absolute, match[1].split()))
        elif line == "# Files":
            self._in_files = True
        elif line.startswith("# files hash-table stats"):
            self._in_files = False
        elif not self._in_files:
            self.searched.update(map(self._absolute, include_folders(line)))
        elif line.startswith("#  recipe to execute") and self._target:
            self.made.add(self._target)
        elif line.startswith("\t"):
            self.searched.update(map(self._absolute, include_folders(line)))
        elif not line:
            self._target = ""
        elif match := _RULE.fullmatch(line):
            self._rule(match["target"], match["needs"] or "")

    def _rule(self, target: str, needs: str) -> None:
        if _BUILT_IN.fullmatch(target):
            return
        self._target = self._absolute(target)
        self.named.update(self._absolute(need) for need in needs.split() if need != "|")

    def _absolute(self, spelled: str) -> str:
        return os.path.normpath(os.path.join(self._folder, spelled))


@dataclass(slots=True)
class MakeReader:
    """Reads one run as a single command: make does not say which recipe printed a line. See `trees.tree.Reader`."""

    tree: MakeTree
    problem: str = ""
    _edge: Edge | None = None
    _began_s: float = field(default_factory=time.monotonic)

    def foresee(self) -> list[m.EventBody]:
        return []  # make -n would run the recipes that call make, in a tree that is being built

    def line(self, text: str) -> list[m.EventBody]:
        if match := _PROBLEM.fullmatch(text):
            self.problem = self.problem or match["message"]
        if _QUIET.fullmatch(text) or _CALL.fullmatch(text):
            return []
        edge, told = self._begin()
        edge.lines.append(text)
        return told if is_report(text) else [*told, log_line(edge.number, text)]

    def pause(self) -> list[m.EventBody]:
        return []

    def end(self, status: int) -> list[m.EventBody]:
        kernels = self.tree.kernels()
        if self._edge is None and not status:
            planned = m.Planned(targets=self.tree.targets, actions=1)
            return [
                planned,
                m.CacheHit(job_id=m.JobId(0), action=self.tree.title, reason="up to date", kernels=kernels),
            ]
        edge, told = self._begin()
        edge.status = status
        return [*told, edge.ended(time.monotonic() - self._began_s, kernels)]

    def _begin(self) -> tuple[Edge, list[m.EventBody]]:
        """The command, and the events for its beginning, the first time."""
        if self._edge is not None:
            return self._edge, []
        edge = self._edge = Edge(
            1, self.tree.title, f"cd {shlex.quote(self.tree.folder)} && {shlex.join(self.tree.command(None))}"
        )
        planned = m.Planned(targets=self.tree.targets, actions=1)
        return edge, [planned, m.Queued(job_id=m.JobId(edge.number), action=edge.action), edge.begun]
