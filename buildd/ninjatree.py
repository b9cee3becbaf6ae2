"""A build tree of ninja's (CMake's, Meson's): what ninja itself knows of it, and its words as events.

Everything comes from ninja's tools: `-t targets`, `-t inputs`, `-t deps`, `-t compdb`. Knows no compiler but for where
its headers are, which are not watched. Runs nothing that builds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from buildd import depfiles
from buildd.devicecode import kernels_of_file
from buildd.includes import mentioned
from buildd.trees import Edge, TreeError, asked, is_system, searched, source_root, toolkits
from codegen.commandline import TOOLS
from codegen.foreign import MARK
from codegen.plan import Discovery
from protocol import messages as m

FILE = "build.ninja"
STATUS = "\x1e%f/%t\x1e"
"""For NINJA_STATUS: marks the lines that are ninja's own."""
MOST_TOLD = 1000
"""Objects whose kernels are told though they are not built again."""
_MOST_ASKED = 500
"""Outputs that are named to `-t deps`: command lines are not endless."""
_MARK = re.compile("\x1e(?P<done>\\d+)/(?P<total>\\d+)\x1e(?P<command>.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=(?P<code>\d+)\] )?.*")
_OWN = re.compile(r"ninja: (?:(?P<severity>error|warning|fatal): )?(?P<message>.*)")
_INCLUDED = re.compile(r"^(?:include|subninja) +(\S+)", re.MULTILINE)
_DEPS_HEAD = re.compile(r"(?P<output>.+): #deps \d+, deps mtime \d+ \((?:VALID|STALE)\)")
_DEVICE = re.compile(r"\.(?:cu|hip)$")
_DEVICE_WORDS = ("hipcc", "-x hip", "-x cu", "--offload-arch")
_Stamp = tuple[int, int, int]


class NinjaTree:
    """A folder with a build.ninja; see `trees.Tree`.

    Args:
        folder: absolute.
        targets: as for ninja; none means its default ones.
        environ: its PATH has ninja.

    Raises: TreeError.
    """

    def __init__(self, folder: str, targets: Iterable[str], environ: Mapping[str, str]) -> None:
        self.folder = self.project = os.path.realpath(folder)
        self.inputs: tuple[str, ...] = ()
        self.outputs: frozenset[str] = frozenset()
        self.log = Log(f"{self.folder}/.ninja_log")
        self.by_command: dict[str, str] = {}
        """Command -> its first output, as ninja spells it."""
        self.device: tuple[str, ...] = ()
        """Outputs that may hold device code."""
        self.failed: dict[str, str] = {}
        """Outputs whose commands failed the last time, with what those said: ninja does not know what they read."""
        self.targets = tuple(targets) or (os.path.basename(self.folder),)
        """Names for people."""
        self._targets = tuple(targets)
        self._environ = environ
        self._graph: tuple[_Stamp | None, ...] | None = None
        """The manifest, as it was when the tree was described."""
        self._commands: tuple[_Stamp | None, ...] | None = None
        """The same of `by_command`."""
        self._compiled: dict[str, tuple[str, str]] = {}
        """Output -> its first input and its command, as ninja spells them."""
        self._explicit: set[str] = set()
        self._manifest: set[str] = set()
        self._folders: set[str] = set()
        self._made: set[str] = set()
        self._read: dict[str, tuple[str, ...]] = {}
        """Output -> what its command read, as ninja spells both."""
        self._past = 0
        """Compiles that call their compiler by its own path."""
        self._toolkits: tuple[str, ...] = ()
        if not os.path.isfile(f"{self.folder}/{FILE}"):
            raise TreeError(
                f"no {FILE} in {self.folder}",
                file=self.folder,
                next_step=f"cmake -G Ninja -B {shlex.quote(folder)}, or name the folder that has one",
            )

    def command(self, jobs: int | None) -> list[str]:
        # Beside an old make ninja is told of no jobserver; see `jobserver.variables`.
        shares = self._environ.get("BUILDD_JOBSERVER", "").startswith("/")
        return ["ninja", "-v", *(() if jobs is None or shares else (f"-j{jobs}",)), *self._targets]

    def reader(self, *, everything: bool) -> NinjaReader:
        self.log.read()
        return NinjaReader(self, dict(self.log.wall_s), self.device if everything else ())

    def notice(self) -> str:
        if not self._past:
            return ""
        return (
            f"{self._past} of {len(self.by_command)} commands call a compiler by its own path, past the cache: "
            "configure the tree anew under `buildd run -- cmake ...`"
        )

    def describe(self) -> None:
        graph = self._stamps()
        if graph != self._graph:
            self._load_graph()
            self.log.read()
            self.log.new = set()
            self._load_read(())
            self._graph = graph
        else:
            new, self.log.new = self.log.new, set()
            if new:
                self._load_read(new if len(new) <= _MOST_ASKED else ())
        named = {*self._explicit, *self._manifest, *(path for read in self._read.values() for path in read)}
        files = {path for spelled in named - self._made if not self._is_left_out(path := self._absolute(spelled))}
        files.update(self._mentioned())
        folders = {os.path.dirname(path) for path in files}
        folders.update(folder for folder in self._folders if f"{folder}/".startswith(f"{self.project}/"))
        # Where ninja writes, new names come with every build.
        folders = {folder for folder in folders if self.project == self.folder or not self.is_inside(folder)}
        self.inputs = tuple(sorted(files | {folder for folder in folders if os.path.isdir(folder)}))

    def _mentioned(self) -> Iterator[str]:
        """What the sources of failed commands include: where it is missing or wrong, a save there mends it."""
        for output in self.failed.keys() & self._compiled.keys():
            source, command = self._compiled[output]
            search = list(map(self._absolute, searched(command)))
            for path in mentioned([self._absolute(source)], search, lambda path: not self._is_left_out(path)):
                # Not what the compiler has found in folders of its own.
                is_missed = os.path.isfile(path) or os.path.basename(path) in self.failed[output]
                if is_missed and path not in self.outputs:
                    yield path

    def is_inside(self, path: str) -> bool:
        """Whether a path is in the build folder."""
        return f"{path}/".startswith(f"{self.folder}/")

    def absolute(self, spelled: str) -> str:
        return self._absolute(spelled)

    def output_of(self, command: str) -> str:
        """The first output of a command, as ninja spells it; empty where it is not known."""
        if command not in self.by_command and self._commands != (now := self._stamps()):
            # The run that is under way has configured the tree anew.
            with contextlib.suppress(TreeError):
                self._load_commands()
            self._commands = now
        return self.by_command.get(command, "")

    def dry_run(self) -> list[str]:
        """The first outputs of what ninja would run now, as it spells them, as far as they are known."""
        command = [*self.command(None), "-n"]
        said = asked(command, self.folder, {**self._environ, "NINJA_STATUS": STATUS}, may_fail=True)
        found = (match for line in said.split("\n") if (match := _MARK.fullmatch(line)))
        return [output for match in found if (output := self.by_command.get(match["command"], ""))]

    # ---------------------------------------------------------------- what ninja knows

    def _ask(self, *arguments: str) -> str:
        return asked(["ninja", *arguments], self.folder, self._environ)

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(self._absolute(path)) for path in (FILE, *self._included()))

    def _included(self) -> list[str]:
        """The files that the manifest includes, as far as their names are plain."""
        found: dict[str, None] = {}
        left = [FILE]
        while left:
            with contextlib.suppress(OSError), open(self._absolute(left.pop()), errors="surrogateescape") as file:
                new = [name for name in _INCLUDED.findall(file.read()) if "$" not in name and name not in found]
                found.update(dict.fromkeys(new))
                left += new
        return list(found)

    def _load_graph(self) -> None:
        self._made = {line.rpartition(": ")[0] for line in self._ask("-t", "targets", "all").splitlines()}
        self.outputs = frozenset(map(self._absolute, self._made))
        self._explicit = set(_unquoted(self._ask("-t", "inputs", *self._targets)))
        # How the tree is configured, too: a changed CMakeLists.txt regenerates.
        if FILE in self._made:
            self._manifest = set(_unquoted(self._ask("-t", "inputs", FILE)))
        else:
            self._manifest = {FILE, *self._included()}
        self._commands = self._stamps()
        self._load_commands()
        sources = map(self._absolute, (self._explicit | self._manifest) - self._made)
        self.project = source_root(self.folder, (path for path in sources if not path.startswith(self._toolkits)))

    def _load_commands(self) -> None:
        entries: list[dict[str, str]] = json.loads(self._ask("-t", "compdb"))
        self.by_command = {entry["command"]: entry.get("output", "") for entry in entries}
        self._compiled = {entry["output"]: (entry["file"], entry["command"]) for entry in entries if "output" in entry}
        self.device = tuple(
            entry["output"]
            for entry in entries
            if "output" in entry
            and (_DEVICE.search(entry.get("file", "")) or any(word in entry["command"] for word in _DEVICE_WORDS))
        )[:MOST_TOLD]
        spelled = {option for command in self.by_command for option in searched(command)}
        self._folders = set(map(self._absolute, spelled))
        compilers = [word for command in self.by_command if (word := _compiler(command))]
        self._past = sum(not os.path.isdir(os.path.join(os.path.dirname(word), MARK)) for word in compilers)
        self._toolkits = toolkits(self._environ, compilers)

    def _load_read(self, outputs: Iterable[str]) -> None:
        """What commands were seen to read: of these outputs, else of all."""
        names = sorted(outputs)
        # An output that has none is an error to older versions of ninja; all are told up to there.
        said = asked(["ninja", "-t", "deps", *names], self.folder, self._environ, may_fail=bool(names))
        found = dict(_deps(said))
        self._read = {**self._read, **found} if names else found
        for output in names or [path for path in self.by_command.values() if path.endswith((".o", ".obj"))]:
            if output not in found and (read := self._depfile(output)):
                self._read[output] = read

    def _depfile(self, output: str) -> tuple[str, ...]:
        """What stands in a depfile that ninja reads anew each time: beside the output, by either usual name."""
        for path in (f"{output}.d", f"{os.path.splitext(output)[0]}.d"):
            with contextlib.suppress(OSError), open(self._absolute(path), "rb") as file:
                return depfiles.parse(Discovery.GCC, file.read())
        return ()

    def _absolute(self, spelled: str) -> str:
        return os.path.normpath(os.path.join(self.folder, spelled))

    def _is_left_out(self, path: str) -> bool:
        return is_system(path) or (
            path.startswith(self._toolkits) and not path.startswith((f"{self.project}/", f"{self.folder}/"))
        )


class Log:
    """What ninja writes down of the commands that it ran; read as far as it is new.

    Args:
        path: of .ninja_log.
    """

    def __init__(self, path: str) -> None:
        self.wall_s: dict[str, float] = {}
        """Output -> how long its command took."""
        self.new: set[str] = set()
        """Outputs that were written down since somebody emptied this."""
        self._path = path
        self._file: tuple[int, int] = (0, 0)
        """Inode, and how far it was read."""

    def read(self) -> None:
        """Take in what came since the last time."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                inode, at = self._file
                if status.st_ino != inode or status.st_size < at:
                    at = 0  # written anew: shortened
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
    """The words of one run; see `trees.Reader`.

    Args:
        expected_s: by output, from earlier runs.
        device: outputs whose kernels are told also where they are not built.
    """

    tree: NinjaTree
    expected_s: dict[str, float]
    device: tuple[str, ...]
    problem: str = ""
    _edge: Edge | None = None
    _output: str = ""
    _place: tuple[int, int] = (0, 0)
    _number: int = 0
    """Of edges that ended."""
    _jobs: dict[str, int] = field(default_factory=dict)
    """Output -> the number of its edge, once that was told to wait."""
    _built: set[str] = field(default_factory=set)

    def foresee(self) -> list[m.EventBody]:
        told = [self._queued(output, output) for output in self.tree.dry_run() if output not in self._jobs]
        if not told:
            return []
        expected_s = sum(self.expected_s.get(output, 0.0) for output in self._jobs)
        return [m.Planned(targets=self.tree.targets, actions=len(told), expected_s=expected_s), *told]

    def _queued(self, key: str, action: str) -> m.EventBody:
        number = self._jobs[key] = len(self._jobs) + 1
        action = action.encode(errors="replace").decode()  # a name that is not UTF-8
        return m.Queued(job_id=m.JobId(number), action=action, expected_s=self.expected_s.get(key, 0.0))

    def line(self, text: str) -> list[m.EventBody]:
        if match := _MARK.fullmatch(text):
            ended = self.pause()
            self._place = int(match["done"]), int(match["total"])
            command = match["command"]
            self._output = self.tree.output_of(command)
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
                return [*self.pause(), m.Notice(text=text, severity=m.Severity.WARNING)]
            return self.pause()
        if self._edge is None:
            return [m.Notice(text=text)] if text.strip() else []
        if (match := _FAILED.fullmatch(text)) and not self._edge.status:
            self._edge.status = int(match["code"] or 1)
        elif not (self._edge.status and self._edge.command.endswith(f" && {text}")):
            self._edge.lines.append(text)
        return []

    def pause(self) -> list[m.EventBody]:
        edge, self._edge = self._edge, None
        if edge is None:
            return []
        # Written down right after it was told.
        self.tree.log.read()
        self._number += 1
        kernels: tuple[m.Kernel, ...] = ()
        if edge.status:
            self.tree.failed[self._output] = "\n".join(edge.lines)
        else:
            self.tree.failed.pop(self._output, None)
        if self._output and not edge.status:
            self._built.add(self._output)
            kernels = kernels_of_file(self.tree.absolute(self._output))
        done, total = self._place
        ended = edge.ended(self.tree.log.wall_s.get(self._output, 0.0), kernels)
        return [edge.begun, *edge.said, ended, m.Progress(done=done, total=total, misses=self._number)]

    def end(self, status: int) -> list[m.EventBody]:
        told = self.pause()
        hits: list[m.EventBody] = []
        for output in self.device:
            if output not in self._built and (kernels := kernels_of_file(self.tree.absolute(output))):
                hits.append(m.CacheHit(job_id=m.JobId(0), action=output, reason="up to date", kernels=kernels))
        planned = () if self._jobs else (m.Planned(targets=self.tree.targets, actions=len(hits)),)
        return [*told, *planned, *hits]


def _unquoted(text: str) -> Iterator[str]:
    """Paths as ninja quotes them for a shell, one a line."""
    for line in text.splitlines():
        if "'" in line:
            yield from shlex.split(line)
        elif line:
            yield line


def _deps(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    output, read = "", list[str]()
    for line in text.splitlines():
        if line.startswith("    "):
            read.append(line[4:])
        elif match := _DEPS_HEAD.fullmatch(line):
            if output:
                yield output, tuple(read)
            output, read = match["output"], []
    if output:
        yield output, tuple(read)


def _compiler(command: str) -> str:
    """The compiler that a command calls by its own path; empty where PATH or a launcher decides, or there is none."""
    for word in command.split(maxsplit=4)[:4]:
        if "=" in word or word == "env":
            continue
        return word if word.startswith("/") and os.path.basename(word) in TOOLS else ""
    return ""


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
