"""Every message of the protocol, as typed structs. SPEC.md is the document; this is its Python spelling.

Knows no socket and no framing (see `wire`). Unknown fields are ignored and absent ones take their default, so that
two sides of different minor versions understand each other; an unknown message type is an error reply.

Units are in the names: `_s` seconds, `_ns` nanoseconds, `_bytes` bytes. Times of day are nanoseconds since the epoch.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NewType

import msgspec

PROTOCOL_VERSION = 1

RequestId = NewType("RequestId", str)
BuildId = NewType("BuildId", str)
JobId = NewType("JobId", int)
Digest = NewType("Digest", str)
"""A BLAKE3 digest, 64 hexadecimal characters."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of everything that travels; the map's `type` says which struct it is."""


class Mode(Enum):
    """What a request wants done."""

    BUILD = "build"
    WARM = "warm"
    """Fill the store, write no outputs."""
    PROVE = "prove"
    """Run nothing; fail and name each action that would run."""
    EXPLAIN = "explain"
    """Run nothing; say for each action why it would hit or miss."""
    COMPILE = "compile"
    """Do what `command` (with the tool's absolute path) does in `project`, for a stand-in in somebody else's build."""


class Priority(Enum):
    """Order of ready jobs: editor before build before warm."""

    EDITOR = "editor"
    BUILD = "build"
    WARM = "warm"


class OnDisconnect(Enum):
    DETACH = "detach"
    """The build goes on; the client may follow again."""
    CANCEL = "cancel"


class Namespaces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the client lives, so that the daemon can tell whether a tool that it runs sees the same machine.

    Inode numbers of /proc/self/ns/*; 0 where unknown.
    """

    mount: int = 0
    pid: int = 0
    user: int = 0


# ---------------------------------------------------------------- client -> daemon, work socket


class Hello(Message, frozen=True, tag="hello"):
    """First message of a client. Answered by `Welcome` or `Refused`."""

    version: int
    client: str
    """Name and version for the audit line, "buildd-cli/0.1"."""
    pid: int = 0
    """Process id on this host; 0 from elsewhere. Lets the daemon notice the client's death at once."""
    start_ticks: int = 0
    """Field 22 of /proc/PID/stat, so that a reused pid is not taken for the client."""
    user: str = ""
    namespaces: Namespaces = Namespaces()
    capabilities: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client asks to have built."""

    request_id: RequestId
    build_id: BuildId
    project: str
    """Absolute path of the project's folder: relative paths are under it."""
    file: str = "buildd.toml"
    """Project file, relative to `project`; empty when only `specs` are used."""
    targets: tuple[str, ...] = ()
    """Names of targets; empty means the project's default ones."""
    specs: dict[str, msgspec.Raw] = {}
    """Inline targets: name -> the table that would stand under [target.NAME]."""
    arch: tuple[str, ...] = ()
    """Overrides every target's architectures."""
    environment: dict[str, str] = {}
    """The client's variables that reach a build (see the environment table); the daemon's own are never used."""
    store: str = ""
    """Folder of the store; empty means the daemon's default."""
    mode: Mode = Mode.BUILD
    jobs: int = 0
    """Most jobs of this request at once; 0 means no cap of its own."""
    priority: Priority = Priority.BUILD
    on_disconnect: OnDisconnect = OnDisconnect.DETACH
    interpreter: str = ""
    """The client's Python, for kinds that need a library of the client."""
    keep_going: bool = False
    """After a failure, go on with what does not depend on it."""
    recache: bool = False
    """Run every action again and overwrite its entry."""
    command: tuple[str, ...] = ()
    umask: int = 0o022


class Submit(Message, frozen=True, tag="submit"):
    """Start a build and follow it from its first event."""

    request: Request


class Follow(Message, frozen=True, tag="follow"):
    """Events of a request from `after_sequence` + 1 on; also after a reconnect."""

    request_id: RequestId
    after_sequence: int = 0


class Unfollow(Message, frozen=True, tag="unfollow"):
    request_id: RequestId


class Fetch(Message, frozen=True, tag="fetch"):
    """Ask for a blob's bytes. Answered by `BlobChunk`s in order or by `Error`."""

    digest: Digest
    store: str = ""


class Ping(Message, frozen=True, tag="ping"):
    """Heartbeat. A client from another host that is silent for 30 s counts as gone."""


class Bye(Message, frozen=True, tag="bye"):
    """The client leaves on purpose."""


# ---------------------------------------------------------------- daemon -> client


class Welcome(Message, frozen=True, tag="welcome"):
    version: int
    daemon: str
    """Name and version, "buildd/0.1"."""
    pid: int
    instance: str
    """Random id of this daemon process: sequence numbers hold within one instance."""
    scopes: tuple[str, ...] = ("submit", "follow", "fetch", "control")
    max_message_bytes: int = 0
    capabilities: tuple[str, ...] = ()


class Refused(Message, frozen=True, tag="refused"):
    """The handshake failed; the daemon keeps no state of this client."""

    code: str
    message: str
    next_step: str = ""
    versions: tuple[int, ...] = (PROTOCOL_VERSION,)


class Error(Message, frozen=True, tag="error"):
    """A message could not be served. `code` is stable (SPEC.md lists them); the rest is for people."""

    code: str
    message: str
    file: str = ""
    command: str = ""
    next_step: str = ""
    request_id: RequestId = RequestId("")
    digest: Digest = Digest("")
    """Of the `Fetch` that could not be served."""


class BlobChunk(Message, frozen=True, tag="blob_chunk"):
    digest: Digest
    offset: int
    total_bytes: int
    data: bytes


class Pong(Message, frozen=True, tag="pong"):
    pass


# ---------------------------------------------------------------- events (bodies of `Event`)


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


class Finished(Body, frozen=True, tag="finished"):
    job_id: JobId
    action: str
    timing: Timing
    outputs: tuple[Output, ...] = ()
    note: str = ""
    """Set where something is worth saying: "not stored: src/a.cu changed while it was compiled"."""


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
    | Lagged
    | Done
    | Unknown
)


class Event(Message, frozen=True, tag="event"):
    """One thing that happened in a request. `sequence` counts from 1 without gaps within a request."""

    request_id: RequestId
    sequence: int
    time_ns: int
    body: EventBody


# ---------------------------------------------------------------- control socket


class StatusRequest(Message, frozen=True, tag="status_request"):
    pass


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: JobId
    action: str
    elapsed_s: float
    expected_s: float = 0.0
    memory_bytes: int = 0


class BuildFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a build's COMPILE requests came to; `handed_through` counts by reason what stand-ins ran themselves."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    handed_through: dict[str, int] = {}


class Status(Message, frozen=True, tag="status"):
    pid: int
    daemon: str
    instance: str
    state: str
    """"serving" or "draining"."""
    uptime_s: float
    rss_bytes: int
    requests: int
    running: tuple[JobStatus, ...] = ()
    queued: int = 0
    waiting_for: str = ""
    stores: tuple[str, ...] = ()
    clients: int = 0
    counters: dict[str, int] = {}
    """Monotonic counts: malformed frames, dropped messages, lagged followers, bad blobs, hits, misses ..."""
    active: tuple[RequestId, ...] = ()
    """Requests that have not ended, in the order in which they came."""
    builds: dict[BuildId, BuildFigures] = {}


class CancelRequest(Message, frozen=True, tag="cancel"):
    request_id: RequestId


class DrainRequest(Message, frozen=True, tag="drain"):
    """Finish what runs, take nothing new, then exit. With `now` jobs are ended too."""

    now: bool = False


class Accepted(Message, frozen=True, tag="ok"):
    """A control request was carried out."""

    text: str = ""


FromClient = Hello | Submit | Follow | Unfollow | Fetch | Ping | Bye
FromDaemon = Welcome | Refused | Error | BlobChunk | Pong | Event
ToControl = Hello | StatusRequest | CancelRequest | DrainRequest | Ping
FromControl = Welcome | Refused | Error | Status | Accepted | Pong


def spec_from(table: dict[str, Any]) -> msgspec.Raw:
    """An inline target for `Request.specs` from a plain table (strings, numbers, lists, tables)."""
    return msgspec.Raw(msgspec.msgpack.encode(table))
