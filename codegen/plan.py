"""The plan of a request: actions, generated files and named artifacts, all frozen.

Knows no tool, no store and no scheduler. A plan is data: it can be encoded, compared and executed anywhere. A generator
that needs a fact from a tool asks for it with a `Probe`; see `Knowledge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

import msgspec


class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of the plan's structs."""


MAPPED = "+"
"""Prefix of the name of a root whose path does not reach any output, because the tool writes another path instead. No
shell reads the name."""


class Place(Enum):
    """The kind of thing a `Ref` stands for."""

    OUTPUT = "output"
    """The file of the output named `name`, inside the job's private folder."""
    INPUT = "input"
    """An output of another action of the plan; `name` is that output's path."""
    TEMPORARY = "temporary"
    """The job's private folder itself."""
    ROOT = "root"
    """The folder of the tool's root called `name` ("cuda" -> /usr/local/cuda)."""
    DEPFILE = "depfile"
    """The file where the tool lists its inputs (see `Discovery`)."""


class Ref(Frozen, frozen=True):
    """An argument that is known only when the job runs, or that differs between machines without changing the result.
    Keys hold the reference, not the expanded value. The argument is `prefix + value + suffix`."""

    place: Place
    name: str = ""
    prefix: str = ""
    suffix: str = ""


Argument = str | Ref


class Discovery(Enum):
    """How buildd learns which files an action really read."""

    NONE = "none"
    """The action reads its declared inputs only."""
    GCC = "gcc"
    """SUNPRO_DEPENDENCIES in the tool's environment: each gcc preprocessor run appends to the depfile. With nvcc this
    covers the host pass and the device pass of every architecture, which nvcc's own -MD does not."""
    CLANG = "clang"
    """CC_PRINT_HEADERS_FILE in the tool's environment: each clang -cc1 run appends the headers that it opened."""
    CLANG_RULES = "clang+rules"
    """As CLANG, and clang's own depfile, named like the other one with the suffix `RULES`: a DEPFILE `Ref` in argv. It
    also lists files that only `__has_include` has found, second names of a header, and lists of sanitizers."""
    LINKER = "linker"
    """The linker's --dependency-file, named by a DEPFILE `Ref` in argv."""
    GCC_LINKER = "gcc+linker"
    """For a command that compiles and links: as GCC, plus the linker's own file, named like the depfile with the suffix
    `LINKED`."""
    REPORTED = "reported"
    """The tool writes one path per line into the depfile named by a DEPFILE `Ref` (Python modules, worker kinds)."""

    @property
    def is_clang(self) -> bool:
        """Whether clang compiles, alone or below nvcc."""
        return self in (Discovery.CLANG, Discovery.CLANG_RULES)


LINKED = ".linked"
RULES = ".rules"
LISTED = "listed.d"
"""Name of the depfile that nvcc itself writes into the private folder, where it runs whole and is asked for one."""


class Kept(Enum):
    """Which part of an action's result is kept."""

    FILES = "files"
    DIGESTS = "digests"
    """Only the digests of its files. They suffice while the results of all readers are found; otherwise the action runs
    again."""
    NOTHING = "nothing"
    """Nothing: the action runs whenever its outputs are needed. Its readers are keyed by the content of these
    outputs."""


class TextUse(Enum):
    """What of the text of its sources can reach an action's result; each holds the one behind it.

    Texts are compared accordingly: by content, or by a bare form (`native.bare_text`).
    """

    CONTENT = "content"
    LINES = "tokens and their lines"
    TOKENS = "tokens"
    """And the lines of those that a macro for line numbers can see."""


class Output(Frozen, frozen=True):
    """A file that an action writes. `path` is relative to the project, with forward slashes."""

    name: str
    path: str
    executable: bool = False


class Resources(Frozen, frozen=True):
    """A first estimate of what an action needs, used until the action has a history."""

    cpus: int = 1
    memory_bytes: int = 512 << 20
    wall_s: float = 2.0


BARE = "bare"
"""Name and path suffix of an output that holds the equivalence digest of the file beside it."""


class Action(Frozen, frozen=True):
    """One run of a tool with its inputs and outputs. Runs in the project's folder."""

    name: str
    """Unique in the plan and stable across edits: "saxpy/src/a.cu.o". History and explanations use this name."""
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
    """Folders that the tool searches for discovered inputs, in any order, in addition to `Tool.search`."""
    path_sensitive: bool = False
    """Absolute paths reach the result (-g, -lineinfo), so the folders of the project and of the roots are part of the
    key."""
    uncacheable: str = ""
    """Why the result must not be stored; empty if it may."""
    traces: bool = False
    """The action runs a model's code and compiles nothing; what it makes says what is compiled. It runs in a proof
    too."""
    kept: Kept = Kept.FILES
    apart: bool = False
    """Runs in its private folder instead of the project's, so that the project's path does not reach its output."""
    steps: str = ""
    """Name of the plan's `Steps` that carry the action out; empty if it runs as one process."""
    whole: str = ""
    """Why the action runs whole although others of its kind run in steps."""
    reports: bool = False
    """buildd itself asked the tool to report on each kernel. The report is shown as data, not as the tool's output."""
    equivalents: tuple[str, ...] = ()
    """Those of `inputs` that have a `BARE` output beside them. If the tool prints no line number, the result is filed
    and found under their equivalence digests."""
    text: TextUse = TextUse.CONTENT
    """What of the text of its inputs, declared and discovered, can reach the result."""
    older: bool = False
    """The language is C, or C++ before 2014. Texts that it may read otherwise than later versions are compared by
    content."""
    warm: bool = False
    """The action is a Python worker that may be forked from a process which has already imported the tool's
    packages."""
    served: bool = False
    """The action runs a user's program whose own compiles go through the daemon, as under `buildd run`: when it runs,
    the shims come first on its PATH. Their location is not part of the key. Such an action takes no CPU token (`cpus`
    is 0): it waits while its compiles take one each."""
    resources: Resources = Resources()
    timeout_s: float = 3600.0


class ToolFile(Frozen, frozen=True):
    """A file whose bytes are part of a tool's identity."""

    role: str
    """"cicc", "cc1plus", "libdevice": the key holds the role, not the path."""
    path: str


class Tool(Frozen, frozen=True):
    """A tool as a closure: every file that runs when the tool is called."""

    name: str
    files: tuple[ToolFile, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Named strings that identify the tool in addition to its files: versions, a configuration."""
    roots: tuple[tuple[str, str], ...] = ()
    """Named folders for `Ref`s. Discovered files below such a folder are keyed relative to it."""
    search: tuple[str, ...] = ()
    """Folders that the tool searches by default, in order (absolute)."""


class Steps(Frozen, frozen=True):
    """The steps of a compile. `nvcc_steps` and `hipcc_steps` write them; see also `expansion`."""

    name: str
    identity: str
    """Identity of the project: sources of two projects may have the same relative path."""
    actions: tuple[Action, ...]
    """The steps in the compiler's own order. Source and object have placeholder names."""
    said: str = ""
    """The compiler's own output on standard error before its first step."""
    silent: bool = False
    """A step's output differs from the compiler's: if a step prints something, the compiler runs whole."""


class GeneratedFile(Frozen, frozen=True):
    """A file that buildd writes before the plan's actions run. It is rewritten only if its content differs."""

    path: str
    content: bytes


class NamedArtifact(Frozen, frozen=True):
    """A named result of a target: an output of one of its actions."""

    target: str
    name: str
    path: str


class Recompile(Enum):
    """The meaning of AIT_RECOMPILE."""

    BY_CONTENT = "by content"
    AGAIN = "again"
    NEVER = "never"


class Unmeasured(Frozen, frozen=True):
    """A target with unmeasured kernels that are to be measured before it is built (key `profile`)."""

    target: str
    archs: tuple[str, ...]
    """All architectures that the target is compiled for."""
    wanted: tuple[str, ...]
    """Architectures whose kernel is still to be measured, if there is such a GPU."""
    guessed: tuple[str, ...]
    """Architectures that use the likeliest kernel because no measurement is known."""


class Plan(Frozen, frozen=True):
    """The actions and generated files for a request. An action depends on the actions that make its inputs."""

    targets: tuple[str, ...]
    actions: tuple[Action, ...]
    tools: tuple[Tool, ...] = ()
    steps: tuple[Steps, ...] = ()
    files: tuple[GeneratedFile, ...] = ()
    artifacts: tuple[NamedArtifact, ...] = ()
    notices: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    """Every file and folder (absolute) whose change makes the plan stale: buildd.toml, globbed folders, toolchain
    files."""
    recompile: Recompile = Recompile.BY_CONTENT
    unmeasured: tuple[Unmeasured, ...] = ()
    native: bool = False
    """Made for the GPUs of this machine, which no stamp of a file tells: it is never reused, only its results are."""

    def makers(self) -> list[tuple[int, ...]]:
        """Return, for each action, the indices of the actions that make its inputs."""
        maker = {output.path: index for index, action in enumerate(self.actions) for output in action.outputs}
        return [tuple(dict.fromkeys(maker[p] for p in action.inputs if p in maker)) for action in self.actions]


class Probe(Frozen, frozen=True):
    """A question to a tool. Its answer is valid as long as `files` have the same bytes."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    payload: bytes = b""
    timeout_s: float = 30.0


class Answer(Frozen, frozen=True):
    """The output of a probe's command. Text is decoded with surrogateescape, so no byte is lost."""

    status: int
    stdout: str
    stderr: str


class ProbesNeeded(Exception):
    """Planning cannot continue until these probes are answered."""

    def __init__(self, probes: tuple[Probe, ...]) -> None:
        super().__init__(f"{len(probes)} probes needed")
        self.probes = probes


class Unwanted(Exception):
    """Nobody waits for this plan any more."""


class Knowledge:
    """The probes' answers so far. Generators ask; their caller catches `ProbesNeeded`, runs the probes, and plans
    again.

    Args:
        is_unwanted: whether the plan has become useless while it is made; from any thread.
    """

    def __init__(
        self, answers: Iterable[tuple[Probe, Answer]] = (), *, is_unwanted: Callable[[], bool] = lambda: False
    ) -> None:
        self.is_unwanted = is_unwanted
        self._answers = dict(answers)
        self._asked: dict[Probe, None] = {}
        self._foreseen: dict[str, None] = {}
        self._ahead: dict[Probe, bool] = {}
        """For each probe asked ahead: whether `take_ahead` has returned it."""

    @property
    def asked(self) -> tuple[Probe, ...]:
        """Every probe asked for so far, each once."""
        return tuple(self._asked)

    def ask(self, *probes: Probe) -> tuple[Answer, ...]:
        """Return answers in the order of `probes`. Raises `ProbesNeeded` with every probe that has no answer yet."""
        self._asked.update(dict.fromkeys(probes))
        missing = tuple(probe for probe in probes if probe not in self._answers)
        if missing:
            raise ProbesNeeded(missing)
        return tuple(self._answers[probe] for probe in probes)

    def learn(self, probe: Probe, answer: Answer) -> None:
        self._answers[probe] = answer

    def foresee(self, paths: Iterable[str]) -> None:
        """Announce that the digests of these files will be needed, so that they can be read while probes run."""
        self._foreseen.update(dict.fromkeys(paths))

    def ask_ahead(self, probe: Probe) -> None:
        """Announce a command that will be asked for later with more `files`, so that it can run meanwhile."""
        self._ahead.setdefault(probe, False)

    def take_ahead(self) -> tuple[Probe, ...]:
        """Return the probes asked ahead since the last call, each once."""
        taken = tuple(probe for probe, was_taken in self._ahead.items() if not was_taken)
        self._ahead.update(dict.fromkeys(taken, True))
        return taken

    def take_foreseen(self) -> tuple[str, ...]:
        """Return the files foreseen since the last call."""
        taken = tuple(self._foreseen)
        self._foreseen.clear()
        return taken
