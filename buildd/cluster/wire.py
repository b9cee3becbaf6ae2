"""The messages between the daemon and the bridge, and their frames. Data only.

A frame is the message's length in four bytes and the message in MessagePack. `ray_bridge` writes the same messages
without msgspec: it runs under another Python.
"""

from __future__ import annotations

import msgspec

LENGTH_BYTES = 4


class InputFile(msgspec.Struct, frozen=True):
    """A file that a job reads."""

    path: str
    """Absolute; no link is on the way to it, other than those of the errand."""
    sha256: str
    size_bytes: int = 0
    mtime_ns: int = 0
    same_as: str = ""
    """The first of the job's paths that lead to the same inode: the tool may see that they are one file."""
    top: str = ""
    """The folder in whose place a node may put what it was given; empty where there is none."""


class Errand(msgspec.Struct, frozen=True, kw_only=True, tag="errand"):
    """A job for a node."""

    job: int
    argv: tuple[bytes, ...]
    cwd: bytes
    environment: tuple[tuple[bytes, bytes], ...]
    payload: bytes
    timeout_s: float
    umask: int
    folder: str
    """Made on the node for this job: outputs and temporary files are there."""
    outputs: tuple[str, ...]
    """Files that come back, as paths in the folder."""
    depfiles: tuple[str, ...]
    """Likewise; the files that they list are digested there."""
    files: dict[str, str]
    """Path -> SHA-256 of each file that the node must have, those of the tool."""
    search: tuple[str, ...]
    """Folders that the tool searches."""
    cpus: int
    memory_bytes: int
    avoided: tuple[str, ...] = ()
    """Ids of nodes that do not get it."""
    node: str = ""
    """Id of the only node that may have it; empty for any."""
    inputs: tuple[InputFile, ...] = ()
    """Files that it reads."""
    listed: bool = False
    """These are all of them. Then a node that lacks some can lay them out."""
    links: dict[str, str] = {}
    """Path -> target of each link on the way to a file."""
    folders: tuple[str, ...] = ()
    """Folders that the tool may look into (absolute)."""
    tops: dict[str, str] = {}
    """Path -> top of what else must be there: links, and the folder that the tool runs in."""
    blobs: dict[str, bytes] = {}
    """SHA-256 -> content of files that the node has said it lacks."""
    gpus: int = 0
    """How many GPUs it has alone. Such a job is a bench: its blobs lie in its folder by their digests, its process
    takes words as long as it runs (`Feed`), and nothing comes back but what it prints."""


class Recall(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """A job is not wanted any more."""

    job: int
    force: bool
    """End the worker process too: it does not react."""


class Feed(msgspec.Struct, frozen=True, kw_only=True, tag="feed"):
    """Words for the process of a bench."""

    job: int
    number: int
    blobs: dict[str, bytes]
    """SHA-256 -> content of files that lie in the bench's folder before the process gets the words."""
    data: bytes
    takes: bool
    """Lock the GPU first, among all processes of its machine that measure."""
    leaves: bool
    """Unlock it at last."""


class Connected(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The bridge is connected to the cluster."""

    ray: str


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node other than the daemon's own."""

    id: str
    name: str
    cpus: int
    memory_bytes: int
    gpus: int = 0


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """The nodes that are alive; comes once a second."""

    nodes: tuple[ClusterNode, ...]


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """The cluster does not answer; the bridge ends."""

    reason: str


class At(msgspec.Struct, frozen=True, kw_only=True, tag="at"):
    """A node has taken a job."""

    job: int
    node: str
    """Its id."""


class OnGpu(msgspec.Struct, frozen=True, kw_only=True, tag="gpu"):
    """A bench has a GPU."""

    job: int
    line: str
    """What nvidia-smi says of it on its node."""


class Fed(msgspec.Struct, frozen=True, kw_only=True, tag="fed"):
    """A bench has taken words."""

    job: int
    number: int


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """The tool runs."""

    job: int


class Unfit(msgspec.Struct, frozen=True, kw_only=True, tag="unfit"):
    """The node cannot run a job: a file of it is another one there."""

    job: int
    reason: str


class Lacks(msgspec.Struct, frozen=True, kw_only=True, tag="lacks"):
    """The node has not begun a job: it lacks files."""

    job: int
    digests: tuple[str, ...]
    """SHA-256 of each content that it needs; none where it was not told of all files of the job."""


class Printed(msgspec.Struct, frozen=True, kw_only=True, tag="output"):
    """The tool has printed something."""

    job: int
    stream: str
    data: bytes


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A job goes on."""

    job: int
    memory_bytes: int


class Late(msgspec.Struct, frozen=True, kw_only=True, tag="late"):
    """A job's time is over; its tool is being ended."""

    job: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A tool has ended."""

    job: int
    status: int
    """Negative: a signal."""
    figures: tuple[float, float, float, int]
    """Wall, user and system time (s), and the peak of one process's memory (bytes)."""
    outputs: dict[str, bytes] = {}
    """Path in the folder -> content, depfiles included."""
    read: dict[str, str] = {}
    """Path, as the tool spelled it -> SHA-256 of what the node has there."""
    rivals: tuple[str, ...] = ()
    """Files on the node that the tool's search could have found as well."""
    too_large: bool = False
    """The outputs did not come back for that."""
    steps: tuple[tuple[str, float, float, int], ...] = ()
    """The processes that the tool started, as far as they were seen: name, start (s after the tool's), wall time (s),
    most memory (bytes)."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The cluster has lost a job: its worker or its node is gone."""

    job: int
    reason: str


ToBridge = Errand | Feed | Recall
FromBridge = Connected | Nodes | Gone | At | OnGpu | Fed | Begun | Unfit | Lacks | Printed | Beat | Late | Ended | Lost

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromBridge] = msgspec.msgpack.Decoder(FromBridge)


def frame(message: ToBridge) -> bytes:
    """A message as it is sent."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def message_of(body: bytes) -> FromBridge:
    """A message without its length. Raises msgspec.DecodeError and ValidationError."""
    return _decoder.decode(body)
