"""What a request becomes: actions, generated files and named artifacts, all frozen.

Knows no tool, no store and no scheduler. A plan is data: it can be encoded, compared and carried out by anybody. What
has to be learned from a tool before a plan can be written is asked for as a `Probe`; see `Knowledge`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the plan's structs."""


MAPPED = "+"
"""Before the name of a root whose path reaches no output: the tool is told to write another. No shell reads it."""


class Place(Enum):
    """What a `Ref` stands for."""

    OUTPUT = "output"
    """The file of the output named `name`, inside the job's private folder."""
    INPUT = "input"
    """A file made by another action of the plan; `name` is that output's path."""
    TEMPORARY = "temporary"
    """The job's private folder itself."""
    ROOT = "root"
    """The folder of the tool's root called `name` ("cuda" -> /usr/local/cuda)."""
    DEPFILE = "depfile"
    """The file that the tool lists its inputs in (see `Discovery`)."""


class Ref(Frozen, frozen=True):
    """An argument that is known only when the job runs, or that differs from machine to machine without changing the
    result. Keys hold the reference, not what it expands to. The argument is `prefix + value + suffix`."""

    place: Place
    name: str = ""
    prefix: str = ""
    suffix: str = ""


Argument = str | Ref


class Discovery(Enum):
    """How the files that an action really read are learned while it runs."""

    NONE = "none"
    """The declared inputs are all."""
    GCC = "gcc"
    """SUNPRO_DEPENDENCIES in the tool's environment: each gcc preprocessor run appends to the depfile. With nvcc this
    covers the host pass and the device pass of every architecture, which nvcc's own -MD does not."""
    CLANG = "clang"
    """CC_PRINT_HEADERS_FILE in the tool's environment: each clang -cc1 run appends the headers that it opened."""
    LINKER = "linker"
    """The linker's --dependency-file, named by a DEPFILE `Ref` in argv."""
    GCC_LINKER = "gcc+linker"
    """Compiled and linked in one command: as GCC, and the linker's file beside the depfile, `LINKED` at its end."""
    REPORTED = "reported"
    """The tool writes one path a line into the depfile named by a DEPFILE `Ref` (Python modules, worker kinds)."""


LINKED = ".linked"


class Kept(Enum):
    """What is kept of an action's result."""

    FILES = "files"
    DIGESTS = "digests"
    """What its files are, which is enough where those who read them are found; else it runs again."""
    NOTHING = "nothing"
    """It runs whenever it is needed. What it makes counts by content, to the actions that read it."""


class Output(Frozen, frozen=True):
    """A file that an action makes. `path` is relative to the project, with forward slashes."""

    name: str
    path: str
    executable: bool = False


class Resources(Frozen, frozen=True):
    """A first guess, used until the action has a history."""

    cpus: int = 1
    memory_bytes: int = 512 << 20
    wall_s: float = 2.0


BARE = "bare"
"""Name, and ending of the path, of an output beside a file: what the file is apart from what may not matter."""


class Action(Frozen, frozen=True):
    """One tool invocation with its inputs and outputs. Runs in the project's folder."""

    name: str
    """Unique in the plan and stable over edits: "saxpy/src/a.cu.o". History and explanations go by it."""
    kind: str
    """Short label for people and for learned defaults: "nvcc", "hipcc", "link", "ar", "triton"."""
    tool: str
    """Name of a `Tool` of the plan."""
    argv: tuple[Argument, ...]
    environment: tuple[tuple[str, str], ...] = ()
    """The whole environment of the tool, sorted by name."""
    payload: bytes = b""
    """Standard input."""
    inputs: tuple[str, ...] = ()
    """Declared input files, relative to the project or absolute: sources, generated files, other actions' outputs."""
    outputs: tuple[Output, ...] = ()
    discovery: Discovery = Discovery.NONE
    search: tuple[str, ...] = ()
    """Folders that the tool searches for discovered inputs, in any order, besides those of its own `Tool.search`."""
    path_sensitive: bool = False
    """Absolute paths reach the result (-g, -lineinfo): the project's and the roots' folders are part of the key."""
    uncacheable: str = ""
    """Why the result must not be stored; empty where it may."""
    kept: Kept = Kept.FILES
    apart: bool = False
    """Runs in its private folder instead of the project's, so that no folder gets into its output."""
    steps: str = ""
    """Name of the `Steps` of the plan that it is carried out by; empty where it runs as one process."""
    whole: str = ""
    """Why it is not carried out in steps though others of its kind are."""
    reports: bool = False
    """It was told to report on each kernel, which nobody asked to read: the report is told as data."""
    twins: tuple[str, ...] = ()
    """Those of `inputs` whose makers have `BARE` outputs beside them. A result of which the tool said nothing is filed
    and found under these instead."""
    warm: bool = False
    """It is a Python worker, which may be forked from a process that has the tool's packages imported."""
    served: bool = False
    """It runs a program of the user's, whose own compiles go through the daemon as below `buildd run`: stand-ins come
    first on its PATH when it runs. Where those are is no part of the key. Such an action takes no CPU token (`cpus` is
    0): what it has compiled takes one, while it waits."""
    resources: Resources = Resources()
    timeout_s: float = 3600.0


class ToolFile(Frozen, frozen=True):
    """A file whose bytes are part of a tool's identity."""

    role: str
    """"cicc", "cc1plus", "libdevice": the key holds the role, not the path."""
    path: str


class Tool(Frozen, frozen=True):
    """A tool as a closure: everything that really runs when it is called."""

    name: str
    files: tuple[ToolFile, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Named strings that identify it besides its files: versions, a configuration."""
    roots: tuple[tuple[str, str], ...] = ()
    """Named folders for `Ref`s; discovered files below one are keyed relative to it."""
    search: tuple[str, ...] = ()
    """Folders that it searches by itself, in order (absolute)."""


class Steps(Frozen, frozen=True):
    """How a compile is carried out step by step: `nvcc_steps` and `hipcc_steps` write them, see `expansion` too."""

    name: str
    identity: str
    """Of the project: sources of two projects with one path must not be taken for one."""
    actions: tuple[Action, ...]
    """In the order in which the compiler would run them, of a source and an object with placeholders' names."""
    said: str = ""
    """What the compiler itself says before its first step, on standard error."""
    silent: bool = False
    """What a step says is not what the compiler says: where one says something, the compiler runs whole."""


class GeneratedFile(Frozen, frozen=True):
    """A file that the plan wants written before its actions run; rewritten only when its content differs."""

    path: str
    content: bytes


class NamedArtifact(Frozen, frozen=True):
    """What a target is asked for: an output of one of its actions under a name."""

    target: str
    name: str
    path: str


class Recompile(Enum):
    """What AIT_RECOMPILE says."""

    BY_CONTENT = "by content"
    AGAIN = "again"
    NEVER = "never"


class Unmeasured(Frozen, frozen=True):
    """A target whose kernels are to be measured before it is built (key `profile`), as far as they are not."""

    target: str
    archs: tuple[str, ...]
    """All that it is compiled for."""
    wanted: tuple[str, ...]
    """Those whose kernel is still to be measured, where there is such a GPU."""
    guessed: tuple[str, ...]
    """Those whose kernel is the likeliest: no measured one is known."""


class Plan(Frozen, frozen=True):
    """The actions and generated files for a request. An action depends on those whose outputs its inputs name."""

    targets: tuple[str, ...]
    actions: tuple[Action, ...]
    tools: tuple[Tool, ...] = ()
    steps: tuple[Steps, ...] = ()
    files: tuple[GeneratedFile, ...] = ()
    artifacts: tuple[NamedArtifact, ...] = ()
    notices: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    """Every file and folder (absolute) whose change means that the plan must be made again: buildd.toml, globbed
    folders, toolchain files."""
    recompile: Recompile = Recompile.BY_CONTENT
    unmeasured: tuple[Unmeasured, ...] = ()

    def makers(self) -> list[tuple[int, ...]]:
        """Of each action those that make its inputs, as indices."""
        maker = {output.path: index for index, action in enumerate(self.actions) for output in action.outputs}
        return [tuple(dict.fromkeys(maker[p] for p in action.inputs if p in maker)) for action in self.actions]


class Probe(Frozen, frozen=True):
    """A question to a tool. Its answer is remembered as long as `files` have the same bytes."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    payload: bytes = b""
    timeout_s: float = 30.0


class Answer(Frozen, frozen=True):
    """What a probe's command said. Text is decoded with surrogateescape, so no byte is lost."""

    status: int
    stdout: str
    stderr: str


class ProbesNeeded(Exception):
    """The plan cannot go on until these are answered."""

    def __init__(self, probes: tuple[Probe, ...]) -> None:
        super().__init__(f"{len(probes)} probes needed")
        self.probes = probes


class RequestError(Exception):
    """The request cannot become a plan. `code` is stable; the rest is for people.

    Args:
        code: "unknown-target", "bad-project", "missing-source", "compiler-not-found", "bad-arch", "bad-variable" ...
        message: what is wrong, in one sentence.
        file: the file to look at, "buildd.toml:12" where a line is known.
        next_step: what to do about it.
    """

    def __init__(self, code: str, message: str, *, file: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.file = file
        self.next_step = next_step


class Knowledge:
    """Answers of probes so far. Generators ask; who runs them catches `ProbesNeeded`, answers, and tries again."""

    def __init__(self, answers: Iterable[tuple[Probe, Answer]] = ()) -> None:
        self._answers = dict(answers)
        self._asked: dict[Probe, None] = {}
        self._foreseen: dict[str, None] = {}
        self._ahead: dict[Probe, bool] = {}
        """Whether they were taken."""

    @property
    def asked(self) -> tuple[Probe, ...]:
        """Every probe that was asked for so far, each once."""
        return tuple(self._asked)

    def ask(self, *probes: Probe) -> tuple[Answer, ...]:
        """Answers in the order of `probes`. Raises `ProbesNeeded` with all that are still unknown."""
        self._asked.update(dict.fromkeys(probes))
        missing = tuple(probe for probe in probes if probe not in self._answers)
        if missing:
            raise ProbesNeeded(missing)
        return tuple(self._answers[probe] for probe in probes)

    def learn(self, probe: Probe, answer: Answer) -> None:
        self._answers[probe] = answer

    def foresee(self, paths: Iterable[str]) -> None:
        """Say that these files' digests will be wanted: they can be read while probes run."""
        self._foreseen.update(dict.fromkeys(paths))

    def ask_ahead(self, probe: Probe) -> None:
        """Say that this command will be asked for, with more files for its answer to stand on: it can run meanwhile."""
        self._ahead.setdefault(probe, False)

    def take_ahead(self) -> tuple[Probe, ...]:
        """Those that were named since the last call, each once."""
        taken = tuple(probe for probe, was_taken in self._ahead.items() if not was_taken)
        self._ahead.update(dict.fromkeys(taken, True))
        return taken

    def take_foreseen(self) -> tuple[str, ...]:
        """Those that were foreseen since the last call."""
        taken = tuple(self._foreseen)
        self._foreseen.clear()
        return taken
