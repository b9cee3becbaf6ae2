"""The bodies of `Event`, as typed structs: what happens in a request. SPEC.md is the document.

Knows nothing of who asks or listens; `messages` has the messages that travel, and names these again.
"""

from __future__ import annotations

from enum import Enum
from typing import NewType

import msgspec

RequestId = NewType("RequestId", str)
BuildId = NewType("BuildId", str)
JobId = NewType("JobId", int)
Digest = NewType("Digest", str)
"""A BLAKE3 digest, 64 hexadecimal characters."""


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding of a compiler. `line` and `column` count from 1; 0 means unknown."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    code: str = ""


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job used."""

    wall_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    peak_rss_bytes: int = 0


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file that an action made. `path` is relative to the project unless absolute."""

    path: str
    digest: Digest
    size_bytes: int


class Kernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one kernel needs on one architecture, as its assembler says; -1 where it does not say."""

    name: str
    """As in the object file: mangled."""
    arch: str
    registers: int = -1
    shared_bytes: int = -1
    """Static shared memory (LDS on AMD GPUs)."""
    constant_bytes: int = -1
    """Of all banks."""
    stack_bytes: int = -1
    spill_store_bytes: int = -1
    spill_load_bytes: int = -1
    scalar_registers: int = -1
    """SGPRs of AMD GPUs; `registers` are their VGPRs, `stack_bytes` their scratch memory."""
    spilled_registers: int = -1
    """On AMD GPUs, of both kinds."""
    code: str = ""
    """A digest of its machine code; empty where that is not known."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the steps that a job was carried out in."""

    name: str
    start_s: float
    """After the job's own start."""
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    hit: bool = False
    """It did not run."""


class FailureKind(Enum):
    COMPILE_ERROR = "compile_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    TOOL_MISSING = "tool_missing"
    OUTPUT_MISSING = "output_missing"
    STORE = "store"
    """A disk is full, a folder is read-only: the tool itself did not fail."""
    INTERNAL = "internal"


class Outcome(Enum):
    BUILT = "built"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The request itself was wrong: unknown target, bad TOML, no compiler."""
    DAEMON_ERROR = "daemon_error"


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of event bodies."""


class Planned(Body, frozen=True, tag="planned"):
    """The request became a plan."""

    targets: tuple[str, ...]
    actions: int
    expected_s: float = 0.0


class Queued(Body, frozen=True, tag="queued"):
    """An action missed and waits. `reasons` say which inputs, flags, variables or tools made it miss."""

    job_id: JobId
    action: str
    reasons: tuple[str, ...] = ()
    expected_s: float = 0.0
    shared: bool = False
    """An equal job of another request already runs; this one joined it."""


class Started(Body, frozen=True, tag="started"):
    job_id: JobId
    action: str
    command: str
    """One line that repeats the command by hand (for people, shell-quoted)."""
    expected_s: float = 0.0
    kind: str = ""
    """Short name of what runs: "nvcc", "link", "ar", "triton"."""


class LogLine(Body, frozen=True, tag="log_line"):
    job_id: JobId
    stream: str
    """"stdout" or "stderr"."""
    text: str
    """Without the newline; bytes that are not UTF-8 arrive as surrogate-free replacement characters."""


class Progress(Body, frozen=True, tag="progress"):
    done: int
    total: int
    hits: int = 0
    misses: int = 0
    running: int = 0
    eta_s: float = 0.0
    waiting_for: str = ""
    """Why nothing starts right now, in words: "memory: needs 1.9 GiB, 0.8 GiB free"."""


class CacheHit(Body, frozen=True, tag="cache_hit"):
    job_id: JobId
    action: str
    reason: str
    saved_s: float = 0.0
    kernels: tuple[Kernel, ...] = ()


class Finished(Body, frozen=True, tag="finished"):
    job_id: JobId
    action: str
    timing: Timing
    outputs: tuple[Output, ...] = ()
    note: str = ""
    """Set where something is worth saying: "not stored: src/a.cu changed while it was compiled"."""
    kernels: tuple[Kernel, ...] = ()
    steps: tuple[Step, ...] = ()
    """In the order in which they ended; none where one process did all."""


class Failed(Body, frozen=True, tag="failed"):
    job_id: JobId
    action: str
    kind: FailureKind
    message: str
    exit_status: int = 0
    signal: int = 0
    command: str = ""
    next_step: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    timing: Timing = Timing()


class ToolOutput(Body, frozen=True, tag="tool_output"):
    """What the tool of a COMPILE request wrote, byte for byte: all of it before `Done`, in order for each stream."""

    stream: str
    data: bytes


class Explained(Body, frozen=True, tag="explained"):
    """Answer of EXPLAIN and PROVE modes for one action."""

    action: str
    would_run: bool
    reasons: tuple[str, ...]


class Artifact(Body, frozen=True, tag="artifact"):
    """A named output of a target was published."""

    target: str
    name: str
    path: str
    digest: Digest
    size_bytes: int


class Notice(Body, frozen=True, tag="notice"):
    """One line worth showing: a fallback, a variable that acted, a deviation."""

    text: str
    severity: Severity = Severity.NOTE


class Watching(Body, frozen=True, tag="watching"):
    """A WATCH request: from now on no change goes unseen. Sent again when a build has shown more of what it reads."""

    files: int
    folders: int
    polled: tuple[str, ...] = ()
    """Folders that give no events: their files are looked at every few seconds."""


class Changed(Body, frozen=True, tag="changed"):
    """What a WATCH request's targets are built of is not what it was: other content, not only another time."""

    paths: tuple[str, ...]
    """Relative to the project where they are in it."""
    more: int = 0
    """Number of further paths that are not named."""


class Compared(Body, frozen=True, tag="compared"):
    """How the kernels of a good build stand beside those of the last one. No daemon sends it: `buildd watch --json`
    writes it after each good build that has kernels."""

    kernels: int
    """In all, a kernel of several architectures as often."""
    recoded: int = 0
    """Other machine code than before."""
    moved: int = 0
    """Other needs than before: registers, memory, spills."""
    came: int = 0
    went: int = 0


class Measured(Body, frozen=True, tag="measured"):
    """A target's kernel ran on a GPU. No daemon sends it: `buildd watch --profile --json` writes it after a build."""

    target: str
    problem: str
    """Its sizes: "4096x4096x4096"."""
    gpu: str
    outcome: str
    """"measured", or what was wrong: "wrong", "refused", "crashed", "hung"."""
    time_us: float = 0.0
    tflops: float = 0.0
    before_us: float = 0.0
    """The last time on the same problem; 0 where there was none."""
    spread: float = 0.0
    """Of the samples, as a share of the time."""
    error: float = 0.0
    """The largest relative one, against the reference."""
    message: str = ""


class Lagged(Body, frozen=True, tag="lagged"):
    """Events `first`..`last` were dropped for this follower; `buildd log` has them."""

    first: int
    last: int


class Done(Body, frozen=True, tag="done"):
    """Last event of a request. A COMPILE that FAILED without `exit_status` and `signal` was not carried out."""

    outcome: Outcome
    message: str = ""
    code: str = ""
    file: str = ""
    next_step: str = ""
    hits: int = 0
    misses: int = 0
    failures: int = 0
    wall_s: float = 0.0
    saved_s: float = 0.0
    exit_status: int = 0
    signal: int = 0


class Unknown(Body, frozen=True, tag="unknown"):
    """A body that this side does not know. Never sent: the decoder puts it where a newer daemon said more."""

    name: str = ""
    """The `type` that it had."""


EventBody = (
    Planned
    | Queued
    | Started
    | LogLine
    | Progress
    | CacheHit
    | Finished
    | Failed
    | ToolOutput
    | Explained
    | Artifact
    | Notice
    | Watching
    | Changed
    | Compared
    | Measured
    | Lagged
    | Done
    | Unknown
)
