"""The graph of a ninja tree: outputs, inputs, commands and depfiles, as ninja's own tools list them.

Asks `ninja -t targets`, `-t inputs`, `-t query`, `-t deps` and `-t compdb`; of compilers it knows only the folders of
their own headers. Builds nothing, and does not know what is watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from buildd.keys import depfiles
from buildd.trees.tree import TreeError, include_folders, is_system, source_root, tool_output, toolkits
from codegen.foreign.called_tool import MARK
from codegen.foreign.command_line import family_of
from codegen.plan import Discovery

FILE = "build.ninja"
MOST_TOLD = 1000
"""The most objects whose kernels are reported although they are not built again."""
_INCLUDED = re.compile(r"^(?:include|subninja) +(\S+)", re.MULTILINE)
_OF_CMAKE = ("CMakeCache.txt", "CMakeFiles/")
_DEPS_HEAD = re.compile(r"(?P<output>.+): #deps \d+, deps mtime \d+ \((?:VALID|STALE)\)")
_DEVICE = re.compile(r"\.(?:cu|hip)$")
_DEVICE_WORDS = ("hipcc", "-x hip", "-x cu", "--offload-arch")
Stamps = tuple[tuple[int, int, int] | None, ...]


class NinjaGraph:
    """The graph of one build folder; empty before `load`. Paths are spelled as ninja spells them.

    Args:
        folder: absolute.
        targets: as for ninja; empty means the default ones.
        environ: its PATH has ninja.
    """

    def __init__(self, folder: str, targets: Iterable[str], environ: Mapping[str, str]) -> None:
        self.folder = self.project = folder
        """`project` is the folder that has both the tree and its sources."""
        self.outputs: frozenset[str] = frozenset()
        """Absolute paths of everything that ninja makes."""
        self.by_command: dict[str, str] = {}
        """Command -> its first output."""
        self.compiled: dict[str, tuple[str, str]] = {}
        """Output -> its first input and its command."""
        self.device: tuple[str, ...] = ()
        """Outputs that may hold device code."""
        self.folders: set[str] = set()
        """Absolute paths of the include folders of all commands."""
        self.uncached = 0
        """Number of compiles that bypass the shims: they call a compiler by an absolute path."""
        self._targets, self._environ = tuple(targets), environ
        self._commands: Stamps | None = None
        """Stamps of the manifest when `by_command` was read."""
        self._explicit: set[str] = set()
        self._manifest: set[str] = set()
        self._made: set[str] = set()
        self._read: dict[str, tuple[str, ...]] = {}
        """Output -> the files that its command read."""
        self._toolkits: tuple[str, ...] = ()

    @property
    def inputs(self) -> set[str]:
        """Absolute paths of the files that the tree is built from, without those of the system and of compilers."""
        named = {*self._explicit, *self._manifest, *(path for read in self._read.values() for path in read)}
        return {path for spelled in named - self._made if not self.is_left_out(path := self.absolute(spelled))}

    def stamps(self) -> Stamps:
        """The stamps of the manifest and of the files that it includes."""
        return tuple(_stamp(self.absolute(path)) for path in (FILE, *self._included()))

    def load(self) -> None:
        """Read the graph, except for what commands have read. Raises TreeError."""
        rules = dict(line.rpartition(": ")[::2] for line in self._ask("-t", "targets", "all").splitlines())
        self._made = set(rules)
        self._explicit = set(_unquoted(self._ask("-t", "inputs", *self._targets)))
        # The inputs of the manifest count, too: a changed CMakeLists.txt regenerates it.
        if FILE in self._made:
            direct = set(_direct_inputs(self._ask("-t", "query", FILE)))
            # CMake declares them as phony, so that a missing one is no error; `-t inputs` of ninja 1.12 and later
            # leaves phony ones out. What CMake itself writes while it configures stays among the outputs.
            self._made -= {path for path in direct if rules.get(path) == "phony" and not path.startswith(_OF_CMAKE)}
            self._manifest = direct.union(_unquoted(self._ask("-t", "inputs", FILE)))
        else:
            self._manifest = {FILE, *self._included()}
        self.outputs = frozenset(map(self.absolute, self._made))
        self._commands = self.stamps()
        self._load_commands()
        sources = map(self.absolute, (self._explicit | self._manifest) - self._made)
        self.project = source_root(self.folder, (path for path in sources if not path.startswith(self._toolkits)))

    def load_read(self, outputs: Iterable[str]) -> None:
        """Load what the commands of these outputs have read, or of all if none are given. Raises TreeError."""
        names = sorted(outputs)
        # An output without deps is an error for older versions of ninja; they print those before it.
        said = tool_output(["ninja", "-t", "deps", *names], self.folder, self._environ, may_fail=bool(names))
        found = dict(_deps(said))
        self._read = {**self._read, **found} if names else found
        for output in names or [path for path in self.by_command.values() if path.endswith((".o", ".obj"))]:
            if output not in found and (read := self._depfile(output)):
                self._read[output] = read

    def output_of(self, command: str) -> str:
        """The first output of a command, as ninja spells it; empty if the command is unknown."""
        if command not in self.by_command and self._commands != (now := self.stamps()):
            # The current run has configured the tree again.
            with contextlib.suppress(TreeError):
                self._load_commands()
            self._commands = now
        return self.by_command.get(command, "")

    def absolute(self, spelled: str) -> str:
        return os.path.normpath(os.path.join(self.folder, spelled))

    def is_left_out(self, path: str) -> bool:
        """Whether a file belongs to the system or a compiler, so nobody edits it."""
        return is_system(path) or (
            path.startswith(self._toolkits) and not path.startswith((f"{self.project}/", f"{self.folder}/"))
        )

    def _ask(self, *arguments: str) -> str:
        return tool_output(["ninja", *arguments], self.folder, self._environ)

    def _included(self) -> list[str]:
        """The files that the manifest includes, except for names with variables."""
        found: dict[str, None] = {}
        left = [FILE]
        while left:
            with contextlib.suppress(OSError), open(self.absolute(left.pop()), errors="surrogateescape") as file:
                new = [name for name in _INCLUDED.findall(file.read()) if "$" not in name and name not in found]
                found.update(dict.fromkeys(new))
                left += new
        return list(found)

    def _load_commands(self) -> None:
        entries: list[dict[str, str]] = json.loads(self._ask("-t", "compdb"))
        self.by_command = {entry["command"]: entry.get("output", "") for entry in entries}
        self.compiled = {entry["output"]: (entry["file"], entry["command"]) for entry in entries if "output" in entry}
        self.device = tuple(
            entry["output"]
            for entry in entries
            if "output" in entry
            and (_DEVICE.search(entry.get("file", "")) or any(word in entry["command"] for word in _DEVICE_WORDS))
        )[:MOST_TOLD]
        spelled = {option for command in self.by_command for option in include_folders(command)}
        self.folders = set(map(self.absolute, spelled))
        compilers = [word for command in self.by_command if (word := _compiler(command))]
        self.uncached = sum(not os.path.isdir(os.path.join(os.path.dirname(word), MARK)) for word in compilers)
        self._toolkits = toolkits(self._environ, compilers)

    def _depfile(self, output: str) -> tuple[str, ...]:
        """The content of a depfile that ninja reads at each start: it is beside the output, by either usual name."""
        for path in (f"{output}.d", f"{os.path.splitext(output)[0]}.d"):
            with contextlib.suppress(OSError), open(self.absolute(path), "rb") as file:
                return depfiles.parse(Discovery.GCC, file.read())
        return ()


def _unquoted(text: str) -> Iterator[str]:
    """Read paths, one a line, that ninja has quoted for a shell."""
    for line in text.splitlines():
        if "'" in line:
            yield from shlex.split(line)
        elif line:
            yield line


def _direct_inputs(text: str) -> Iterator[str]:
    """Read the inputs that `ninja -t query` lists for one output."""
    for line in text.partition("\n  outputs:")[0].splitlines():
        if line.startswith("    "):
            yield re.sub(r"^\|{1,2} ", "", line[4:])


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
    """The compiler that a command calls by an absolute path; empty if PATH or a launcher decides, or there is none."""
    for word in command.split(maxsplit=4)[:4]:
        if "=" in word or word == "env":
            continue
        return word if word.startswith("/") and family_of(os.path.basename(word)) else ""
    return ""


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
