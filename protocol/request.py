"""What a client asks for: a request, its mode, its priority and its options. SPEC.md is the document.

Knows no socket and no event; `messages` exports these names too.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec

from protocol.events import BuildId, RequestId

# Numbers outside these ranges make a message a bad one.
Count = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]
Umask = Annotated[int, msgspec.Meta(ge=0, le=0o777)]
USUAL_UMASK = 0o022
"""Of a compile whose client names none."""


class Mode(Enum):
    """The purpose of a request."""

    BUILD = "build"
    WARM = "warm"
    """Fill the store, write no outputs."""
    PROVE = "prove"
    """Run nothing; fail and name each action that would run."""
    EXPLAIN = "explain"
    """Run nothing; say for each action why it would hit or miss."""
    COMPILE = "compile"
    """Do what `command` (with the tool's absolute path) does in `project`, for a shim in another tool's build."""
    WATCH = "watch"
    """Build nothing; until it is cancelled, report changes of the targets' inputs."""
    PROFILE = "profile"
    """Measure candidate kernels of the targets on this host's GPUs, and keep the times: see `Request.profile`."""


class Priority(Enum):
    """Order of ready jobs: editor before build before warm."""

    EDITOR = "editor"
    BUILD = "build"
    WARM = "warm"


class OnDisconnect(Enum):
    DETACH = "detach"
    """The build goes on; the client may follow again."""
    CANCEL = "cancel"


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a PROFILE request."""

    problems: tuple[str, ...] = ()
    """Sizes that targets leave open, "4096x4096x4096"; of a convolution its input, "16x56x56x64"."""
    top: Count = 0
    """Number of candidates to try for each problem; 0: the daemon chooses."""
    exhaustive: bool = False
    """Try every candidate, and measure each in full."""
    measure: bool = True
    """False: only compile the likely candidates."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's request for a build."""

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
    """Replaces every target's architectures."""
    toolchain: dict[str, str] = {}
    """Replaces keys of the project's [toolchain] table; folders are absolute."""
    environment: dict[str, str] = {}
    """The client's variables that reach a build (see the environment table); the daemon's own are never used."""
    store: str = ""
    """Folder of the store; empty means the daemon's default."""
    mode: Mode = Mode.BUILD
    jobs: Count = 0
    """Most jobs of this request at once; 0 means no cap of its own."""
    priority: Priority = Priority.BUILD
    on_disconnect: OnDisconnect = OnDisconnect.DETACH
    interpreter: str = ""
    """The client's Python, for kinds that need a library of the client."""
    keep_going: bool = False
    """After a failure, go on with everything that does not depend on it."""
    recache: bool = False
    """Run every action again and overwrite its entry."""
    command: tuple[str, ...] = ()
    umask: Umask | None = None
    """The client's, for the files that it gets. None: the daemon's own; of COMPILE: 0o022."""
    colours: str | None = None
    """COMPILE: the client's standard error shows colours: those of GCC_COLORS, or empty for the compiler's own.
    None: it shows none."""
    inputs: tuple[str, ...] = ()
    """WATCH: files, and folders in which new names count, instead of the targets' inputs. EXPLAIN: names of actions,
    and of files that they read or make, to which the answer is restricted."""
    replaces: RequestId = RequestId("")
    """A request to cancel, once it is known which of its jobs this one needs as well: those go on. Until then it starts
    nothing more."""
    known: RequestId | None = None
    """An earlier, equal request that ended with `built`, and of which the client has every event: actions unchanged
    since then send no events and count as hits. Empty: send events of every action. None: the client does not mind;
    then an unchanged tree sends none."""
    measures: tuple[str, ...] = ()
    """BUILD: compute capabilities, "9.0", of the GPUs on which the client can measure kernels; "" if it has not
    asked. If targets want something measured there first, the request is refused with "not-measured"."""
    profile: ProfileOptions = ProfileOptions()


def spec_from(table: dict[str, Any]) -> msgspec.Raw:
    """An inline target for `Request.specs` from a plain table (strings, numbers, lists, tables)."""
    return msgspec.Raw(msgspec.msgpack.encode(table))
