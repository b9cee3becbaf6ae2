"""Every message of the protocol, as typed structs. SPEC.md is the document; this is its Python spelling.

Knows no socket and no framing (see `wire`). Unknown fields are ignored and absent ones take their default, so that
two sides of different minor versions understand each other; an unknown message type is an error reply.

Units are in the names: `_s` seconds, `_ns` nanoseconds, `_bytes` bytes. Times of day are nanoseconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.base import Message as Message
from protocol.event_parts import Diagnostic as Diagnostic
from protocol.event_parts import Digest as Digest
from protocol.event_parts import FailureKind as FailureKind
from protocol.event_parts import Kernel as Kernel
from protocol.event_parts import Output as Output
from protocol.event_parts import Severity as Severity
from protocol.event_parts import Step as Step
from protocol.event_parts import Timing as Timing
from protocol.events import Artifact as Artifact
from protocol.events import Body as Body
from protocol.events import BuildId as BuildId
from protocol.events import CacheHit as CacheHit
from protocol.events import Candidate as Candidate
from protocol.events import Changed as Changed
from protocol.events import Chosen as Chosen
from protocol.events import Compared as Compared
from protocol.events import Done as Done
from protocol.events import EventBody as EventBody
from protocol.events import Explained as Explained
from protocol.events import Failed as Failed
from protocol.events import Finished as Finished
from protocol.events import Host as Host
from protocol.events import JobId as JobId
from protocol.events import Lagged as Lagged
from protocol.events import LogLine as LogLine
from protocol.events import Measured as Measured
from protocol.events import Notice as Notice
from protocol.events import Outcome as Outcome
from protocol.events import Planned as Planned
from protocol.events import ProgramStart as ProgramStart
from protocol.events import Progress as Progress
from protocol.events import Queued as Queued
from protocol.events import Ran as Ran
from protocol.events import RequestId as RequestId
from protocol.events import Started as Started
from protocol.events import ToolOutput as ToolOutput
from protocol.events import Unknown as Unknown
from protocol.events import Watching as Watching
from protocol.leases import GiveBack as GiveBack
from protocol.leases import GpuProcess as GpuProcess
from protocol.leases import GpuStatus as GpuStatus
from protocol.leases import Lease as Lease
from protocol.leases import Leased as Leased
from protocol.leases import LeaseEnd as LeaseEnd
from protocol.leases import LeaseEnded as LeaseEnded
from protocol.leases import LeaseId as LeaseId
from protocol.leases import LeaseWaits as LeaseWaits
from protocol.request import Mode as Mode
from protocol.request import OnDisconnect as OnDisconnect
from protocol.request import Priority as Priority
from protocol.request import ProfileOptions as ProfileOptions
from protocol.request import Request as Request
from protocol.request import spec_from as spec_from

PROTOCOL_VERSION = 1

# Numbers outside these ranges make a message a bad one.
Pid = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]
Sequence = Annotated[int, msgspec.Meta(ge=0)]


class Namespaces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's namespaces, so that the daemon can tell whether a tool that it runs sees the same machine.

    Inode numbers of /proc/self/ns/*; 0 if unknown.
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
    pid: Pid = 0
    """Process id on this host; 0 from elsewhere. Lets the daemon notice the client's death at once."""
    start_ticks: int = 0
    """Field 22 of /proc/PID/stat, so that a reused pid is not taken for the client."""
    user: str = ""
    namespaces: Namespaces = Namespaces()
    capabilities: tuple[str, ...] = ()


class Submit(Message, frozen=True, tag="submit"):
    """Start a build and follow it from its first event."""

    request: Request


class Follow(Message, frozen=True, tag="follow"):
    """Events of a request from `after_sequence` + 1 on; also after a reconnect."""

    request_id: RequestId
    after_sequence: Sequence = 0
    observe: bool = False
    """Only look on: the request is cancelled all the same once nobody else follows it."""


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
    """The digest of the `Fetch` that could not be served."""
    lease_id: LeaseId = LeaseId("")
    """The id of the `Lease` that could not be granted."""


class BlobChunk(Message, frozen=True, tag="blob_chunk"):
    digest: Digest
    offset: int
    total_bytes: int
    data: bytes


class Pong(Message, frozen=True, tag="pong"):
    pass


# ---------------------------------------------------------------- events


class Event(Message, frozen=True, tag="event"):
    """One thing that happened in a request. `sequence` counts from 1 without gaps within a request."""

    request_id: RequestId
    sequence: int
    time_ns: int
    body: EventBody


# ---------------------------------------------------------------- control socket


class StatusRequest(Message, frozen=True, tag="status_request"):
    settle: bool = False
    """Write the counters to the store first, for its readers."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: JobId
    action: str
    elapsed_s: float
    expected_s: float = 0.0
    memory_bytes: int = 0


class RequestStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that is being built now."""

    request_id: RequestId
    build_id: BuildId
    mode: Mode
    project: str
    what: str = ""
    """The source of a compile, as its command names it; else the targets."""
    elapsed_s: float = 0.0
    """Since the first of its running jobs began, for a compile; else since it came."""
    expected_s: float = 0.0
    jobs_running: int = 0
    jobs_waiting: int = 0


class BuildFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of a build's COMPILE requests; `passed_through` counts, by reason, the commands that shims ran as the
    plain tool, `holding_paths` the misses whose object holds the path of a folder with another name in each build,
    `missed` the misses that did not fail by the kind of their reason, `elsewhere` by folder the misses for which that
    folder has a result of the same content, `unmappable` the misses of both kinds for which --map-paths does nothing
    (the other two do not count them), `cancelled` the compiles that ended because their caller went away; `unkept` says
    why the store could not keep results, and what to do."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    passed_through: dict[str, int] = {}
    holding_paths: int = 0
    missed: dict[str, int] = {}
    elsewhere: dict[str, int] = {}
    unmappable: int = 0
    cancelled: int = 0
    unkept: str = ""


class TierStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shared tier, since the daemon's start."""

    url: str
    """Without passwords; empty if the tier that was asked for cannot be used."""
    kind: str = ""
    """What kind of place it is, in words: "a bucket"."""
    believed: tuple[str, ...] = ()
    """Whose entries are taken."""
    writes: bool = False
    usual_s: float = 0.0
    """How long it takes to answer."""
    counts: dict[str, int] = {}
    """Hits, refused entries, failures ..."""
    waiting: int = 0
    """Results that are still to be written, or to be looked at once more."""
    unread_for_s: float = 0.0
    """It failed, so it is not asked for this long."""
    unwritten_for_s: float = 0.0
    problem: str = ""
    """The last problem."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of a cluster."""

    name: str
    cpus: int
    jobs: int = 0
    """How many jobs of the daemon it has."""
    avoided: bool = False
    """It has other files than this machine and cannot be given these, and gets no jobs for a while."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cluster, since the daemon's start."""

    address: str
    """Empty if what the user has said about it is wrong."""
    nodes: tuple[NodeStatus, ...] = ()
    """Those that are alive, without the daemon's own; empty as long as there is no connection."""
    waiting: int = 0
    """Jobs that no node has taken yet."""
    done: int = 0
    """Jobs that came back."""
    losses: int = 0
    """Jobs that were lost, and ran here."""
    second_starts: int = 0
    """Jobs that took too long on their node, and were begun on a second one."""
    unused_for_s: float = 0.0
    """It failed, so it is left alone for this long."""
    problem: str = ""
    """The last problem."""


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
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    """Monotonic counts: malformed frames, dropped messages, lagged followers, bad blobs, hits, misses ..."""
    active: tuple[RequestId, ...] = ()
    """Requests that have not ended, in order of arrival."""
    builds: dict[BuildId, BuildFigures] = msgspec.field(default_factory=dict)
    work: tuple[RequestStatus, ...] = ()
    """The requests that are being built, in order of arrival."""
    gpus: tuple[GpuStatus, ...] = ()
    cpus: int = 0
    """CPU tokens: most jobs at once."""
    budget_bytes: int = 0
    """The memory that all jobs together may use, as it was when one last ran; 0 if none has run."""
    unlogged: int = 0
    """Builds whose `done` was sent, and which the build log does not hold yet."""
    tier: TierStatus | None = None
    """None if the user has named none."""
    cluster: ClusterStatus | None = None
    """Likewise."""


class CancelRequest(Message, frozen=True, tag="cancel"):
    request_id: RequestId


class DrainRequest(Message, frozen=True, tag="drain"):
    """Finish running jobs (with `now`: cancel them), take nothing new, then exit."""

    now: bool = False


class Accepted(Message, frozen=True, tag="ok"):
    """A control request was carried out."""

    text: str = ""


FromClient = Hello | Submit | Follow | Unfollow | Fetch | Lease | GiveBack | Ping | Bye
FromDaemon = Welcome | Refused | Error | BlobChunk | Pong | Event | LeaseWaits | Leased | LeaseEnded
ToControl = Hello | StatusRequest | CancelRequest | DrainRequest | Ping
FromControl = Welcome | Refused | Error | Status | Accepted | Pong
