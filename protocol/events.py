"""The bodies of `Event`, as typed structs: everything that happens in a request. SPEC.md is the document.

Knows nothing of clients or followers; `event_parts` has the structs inside them. `messages` has the messages that
travel, and exports these names too.
"""

from __future__ import annotations

from enum import Enum
from typing import NewType

import msgspec

from protocol.event_parts import Diagnostic, Digest, FailureKind, Kernel, Output, Severity, Step, Timing

RequestId = NewType("RequestId", str)
BuildId = NewType("BuildId", str)
JobId = NewType("JobId", int)


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
    """Whether this action joined an equal job of another request that already runs."""
    after: str = ""
    """The action for which it waited last, of those that make its inputs and ran; empty if it waited for none."""


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
    """Without the newline; bytes that are not UTF-8 are replaced (no surrogates)."""


class Progress(Body, frozen=True, tag="progress"):
    done: int
    total: int
    hits: int = 0
    misses: int = 0
    running: int = 0
    eta_s: float = 0.0
    to_run: int = 0
    """Actions that have run, run, or will run as far as is known: `total` without hits."""
    waiting_for: str = ""
    """Why no job starts, in words: "memory: needs 1.9 GiB, 0.8 GiB free"."""
    memory_bytes: int = 0
    """Resident memory of all jobs of the daemon."""
    budget_bytes: int = 0
    """The memory that all jobs together may use now; 0 if unknown."""


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
    """A remark for the user: "not stored: src/a.cu changed while it was compiled"."""
    kernels: tuple[Kernel, ...] = ()
    steps: tuple[Step, ...] = ()
    """In the order of their ends; empty if one process did everything."""
    node: str = ""
    """Name of the machine of a cluster that it ran on; empty for the daemon's own."""


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
    """Output of a COMPILE request's tool, byte for byte: all of it before `Done`, in order for each stream."""

    stream: str
    data: bytes


class Host(Body, frozen=True, tag="host"):
    """The client that submitted this COMPILE request is to start a program, which runs the request's tools below it.

    Sent only to a client with the capability `host`.
    """

    command: tuple[str, ...]
    """In a session of its own, without variables, in the root folder, with nothing to read or to write to."""
    socket: str
    """Path of a SOCK_SEQPACKET socket; the program finds a connection to it as its descriptor 3."""


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
    """A WATCH request: from now on no change goes unseen. Sent again when a build has found more inputs."""

    files: int
    folders: int
    polled: tuple[str, ...] = ()
    """Folders that give no events: their files are looked at every few seconds."""


class Changed(Body, frozen=True, tag="changed"):
    """Inputs of a WATCH request's targets changed: their content, not only their times."""

    paths: tuple[str, ...]
    """Relative to the project if they are in it."""
    more: int = 0
    """Number of further paths that are not named."""


class Compared(Body, frozen=True, tag="compared"):
    """How the kernels of a good build differ from those of the last one. No daemon sends it: `buildd watch --json`
    writes it after each good build that has kernels."""

    kernels: int
    """Number of kernels; each counts once for each architecture."""
    recoded: int = 0
    """Kernels with changed machine code."""
    moved: int = 0
    """Kernels with changed resource use: registers, memory, spills."""
    came: int = 0
    went: int = 0


class Measured(Body, frozen=True, tag="measured"):
    """A target's kernel ran on a GPU. No daemon sends it: `buildd watch --profile --json` writes it after a build."""

    target: str
    problem: str
    """Its sizes: "4096x4096x4096"; of a call of the target's own "n=4096 BLOCK=512", with the configuration."""
    gpu: str
    outcome: str
    """"measured", or what was wrong: "wrong", "refused", "crashed", "hung"."""
    time_us: float = 0.0
    tflops: float = 0.0
    before_us: float = 0.0
    """The previous time on the same problem; 0 if there was none."""
    spread: float = 0.0
    """Spread of the samples, as a share of the time."""
    error: float = 0.0
    """The largest relative error, against the reference."""
    message: str = ""
    wall_s: float = 0.0
    """How long the GPU was taken for it."""


class Ran(Body, frozen=True, tag="ran"):
    """A run of the command of `buildd watch --json -- COMMAND` has ended. No daemon sends it: the watch writes it."""

    command: tuple[str, ...]
    exit_status: int = 0
    signal: int = 0
    """The signal that ended it; 0 if it exited."""
    wall_s: float = 0.0
    stopped: bool = False
    """The watch ended it, because a newer build was good."""
    message: str = ""
    """Why it could not be started; empty if it was."""


class ProgramStart(Body, frozen=True, tag="program_start"):
    """How a program that uses torch or Triton spent the time of its start. No daemon sends it: it is in the build log's
    row of the `buildd run` above the program."""

    program: str
    """Its command line, shortened."""
    pid: int = 0
    wall_s: float = 0.0
    """From the start of its process to the end of the first call after the last kernel or graph."""
    phases: dict[str, float] = {}
    """Phase -> seconds: "interpreter", "imports", "tracing", "graphs found", "graphs compiled", "kernels found",
    "kernels compiled", "first call", "program". No moment counts twice."""
    counts: dict[str, int] = {}
    """Phase -> how many graphs or kernels."""


class Candidate(Body, frozen=True, tag="candidate"):
    """A PROFILE request built or measured a candidate kernel."""

    target: str
    problem: str
    candidate: str
    outcome: str
    """"measured", "hopeless" (slower than the best), "built", "skipped", "not measured", or what was wrong: "wrong",
    "refused", "crashed", "hung", "unbuilt"."""
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    note: str = ""


class Chosen(Body, frozen=True, tag="chosen"):
    """The kernel that a PROFILE request chose for a problem."""

    target: str
    problem: str
    candidate: str = ""
    """Empty if no candidate is known to work."""
    time_us: float = 0.0
    """0: a guess, not measured."""
    tflops: float = 0.0
    gpu: str = ""
    known: bool = False
    """No candidate had to be measured."""


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
    commands: tuple[tuple[str, ...], ...] = ()
    folder: str = ""
    keeps_going: bool = False


class Unknown(Body, frozen=True, tag="unknown"):
    """A body of an unknown type. Never sent: the decoder puts it in place of a newer daemon's body."""

    name: str = ""
    """The unknown `type`."""


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
    | Host
    | Explained
    | Artifact
    | Notice
    | Watching
    | Changed
    | Compared
    | Measured
    | Ran
    | Candidate
    | Chosen
    | ProgramStart
    | Lagged
    | Done
    | Unknown
)
