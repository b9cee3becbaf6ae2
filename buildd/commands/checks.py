"""What `buildd doctor` looks at, one function a subject, each giving findings.

Knows where things are and asks them; words and exit status are `doctor`'s. A check must work on a broken machine: what
it cannot find out is a finding too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeVar

from buildd import __version__
from buildd.errors import BuilddError
from buildd.ui.text import duration, size
from codegen.plan import Answer, Knowledge, Probe, ProbesNeeded, RequestError
from protocol.errors import NoDaemon, ProtocolError

T = TypeVar("T")

PACKAGES = ("msgspec", "pyzmq", "blake3", "zstandard", "psutil", "sqlite-utils", "jinja2", "rich")
OPTIONAL_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cutlass", "triton", "torch", "jax")
AITEMPLATE_CACHE_VARIABLES = (
    "AIT_BUILD_CACHE_DIR",
    "AIT_BUILD_CACHE_SKIP_PERCENTAGE",
    "AIT_BUILD_CACHE_SKIP_PROFILER",
    "AIT_BUILD_CACHE_MAX_MB",
)
_LITTLE_SPACE_BYTES = 2 << 30
_MOST_REASONS = 6
_REASONED = {"HANDED_THROUGH": "run by the caller itself", "WHOLE": "not compiled in steps"}


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of the report; `next_step` where something is to be done."""

    level: Level
    subject: str
    text: str
    next_step: str = ""


def python() -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding(Level.OK, "buildd", f"{__version__} on Python {version}, {sys.executable}")
    missing = []
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Finding(Level.OK, "packages", ", ".join(found))
    if missing:
        yield Finding(Level.FAIL, "packages", f"not installed: {', '.join(missing)}", "pip install buildd again")
    extras = []
    for name in OPTIONAL_PACKAGES:
        try:
            extras.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            pass
    yield Finding(Level.OK, "extras", ", ".join(extras) or "none installed")


def runtime_folder(environ: Mapping[str, str]) -> Iterator[Finding]:
    from protocol.endpoint import runtime_folder as folder_of
    from protocol.places import choose_base

    try:
        folder = folder_of(environ).path
    except ProtocolError as error:
        yield Finding(Level.FAIL, "runtime folder", error.message, error.next_step)
        return
    base = choose_base(environ)
    session = environ.get("XDG_RUNTIME_DIR", "")
    if environ.get("BUILDD_RUNTIME_DIR"):
        why = "BUILDD_RUNTIME_DIR says so"
    elif session and base == Path(session) / "buildd":
        why = "XDG_RUNTIME_DIR is this user's own and stays"
    elif session:
        why = f"XDG_RUNTIME_DIR={session} is too long, not this user's own, or removed at logout"
    else:
        why = "XDG_RUNTIME_DIR is not set"
    yield Finding(Level.OK, "runtime folder", f"{folder} ({why})")


def daemon(environ: Mapping[str, str]) -> Iterator[Finding]:
    from buildd.commands.connect import connect

    began = time.monotonic()
    try:
        with connect(environ, start=False, timeout_s=5.0) as client:
            status = client.status()
    except NoDaemon:
        yield Finding(Level.OK, "daemon", "none is running; the next command starts one")
    except ProtocolError as error:
        yield Finding(Level.FAIL, "daemon", error.message, error.next_step or "buildd down --now")
    else:
        took = duration(time.monotonic() - began)
        text = f"{status.daemon}, {status.state}, pid {status.pid}, up {duration(status.uptime_s)}, answered in {took}"
        ours = status.daemon.rpartition("/")[2] == __version__
        yield Finding(
            Level.OK if ours else Level.WARN,
            "daemon",
            text if ours else f"{text}; this is {__version__}",
            "" if ours else "buildd down; the next command starts the right one",
        )


def store(environ: Mapping[str, str]) -> Iterator[Finding]:
    from buildd.location import NETWORK_FILE_SYSTEMS, file_system_of, locate
    from buildd.native import NATIVE
    from buildd.store import Store, default_limit
    from buildd.sweep import Sweep
    from buildd.tally import Reasoned

    try:
        found = locate(environ)
    except (BuilddError, RequestError) as error:
        yield Finding(Level.FAIL, "store", error.message, error.next_step)
        return
    folder = found.folder
    if found.notice:
        yield Finding(Level.WARN, "store", found.notice)
    place = nearest_existing(folder)
    kind = file_system_of(folder)
    disk = os.statvfs(place)
    free_bytes = disk.f_bavail * disk.f_frsize
    yield Finding(Level.OK, "store", f"{folder} on {kind or 'an unknown file system'}, {size(free_bytes)} free")
    looks = Sweep(folder / NATIVE)
    how = "in C" if looks.load() else f"by Python ({looks.problem or 'compiled after the first large build'})"
    yield Finding(Level.OK, "file stamps", f"looked at {how}")
    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(Level.WARN, "store", f"{kind} is a network file system", "set BUILDD_DIR to a local folder")
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding(Level.FAIL, "store", f"{place} may not be written", "set BUILDD_DIR to a folder of your own")
    if free_bytes < _LITTLE_SPACE_BYTES:
        yield Finding(Level.WARN, "store", f"only {size(free_bytes)} are free there", "free some, or set BUILDD_DIR")
    if not (folder / "index.db").exists():
        yield Finding(Level.OK, "store", "empty: nothing was built yet")
        return
    try:
        with Store.open(folder, read_only=True) as opened:
            builds = opened.builds(1000)
            reasons = {what: opened.tally.reasons(what) for what in Reasoned}
    except BuilddError as error:
        yield Finding(Level.FAIL, "store", error.message, error.next_step)
        return
    yield Finding(
        Level.OK, "store", f"{size(folder_bytes(folder))} of {size(default_limit(folder))}, {len(builds)} builds kept"
    )
    for what, found_for in reasons.items():
        if found_for:
            listed = sorted(found_for.items(), key=lambda pair: (-pair[1], pair[0]))
            text = ", ".join(f"{why} {count}" for why, count in listed[:_MOST_REASONS])
            yield Finding(Level.OK, _REASONED[what.name], f"{sum(found_for.values())}: {text}")


def toolchains(environ: Mapping[str, str]) -> Iterator[Finding]:
    from codegen.environment import select
    from codegen.project import Settings
    from codegen.toolchain import Compiler, Toolchains
    from protocol.messages import BuildId, Request, RequestId

    request = Request(
        request_id=RequestId("doctor"),
        build_id=BuildId("doctor"),
        project=os.getcwd(),
        environment=select(environ),
        interpreter=sys.executable or "",
    )

    def found(compiler: Compiler) -> str:
        return f"{compiler.version} from {compiler.source}, {len(compiler.archs)} architectures"

    looks: tuple[tuple[str, Callable[[Toolchains], str]], ...] = (
        ("nvcc", lambda tools: found(tools.cuda())),
        ("hipcc", lambda tools: found(tools.hip())),
        ("CUTLASS", lambda tools: tools.cutlass()),
        ("host compiler", lambda tools: tools.program("g++")),
    )
    knowledge = Knowledge()
    for name, look in looks:
        try:
            text = answered(lambda look=look: look(Toolchains(request, Settings(), knowledge)), knowledge)  # type: ignore[misc]
        except RequestError as error:
            yield Finding(Level.WARN, name, error.message, error.next_step)
        except (OSError, subprocess.SubprocessError) as error:
            yield Finding(Level.WARN, name, f"could not be asked: {error}")
        else:
            yield Finding(Level.OK, name, text)


def answered(ask: Callable[[], T], knowledge: Knowledge) -> T:
    """What `ask` returns once every probe that it needs was run here."""
    for _ in range(30):
        try:
            return ask()
        except ProbesNeeded as needed:
            for probe in needed.probes:
                knowledge.learn(probe, _run(probe))
    raise RequestError("probes", "it still asks questions after 30 rounds", next_step="report this as a bug")


def _run(probe: Probe) -> Answer:
    done = subprocess.run(
        probe.argv, env=dict(probe.environment), input=probe.payload, capture_output=True, timeout=probe.timeout_s
    )
    stdout, stderr = (data.decode("utf-8", "surrogateescape") for data in (done.stdout, done.stderr))
    return Answer(status=done.returncode, stdout=stdout, stderr=stderr)


def keys(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whose bundles `buildd cache import` takes in, and whose kernels and graphs programs do."""
    from buildd import signing

    file = signing.key_file(environ)
    try:
        others = signing.listed(environ)
        own = signing.own(environ).public.hex() if file.exists() else "none yet, the first use makes one"
    except BuilddError as error:
        yield Finding(Level.FAIL, "keys", f"{error.file}: {error.message}", error.next_step)
        return
    names = [name or key.hex() for key, name in others.items()]
    yield Finding(Level.OK, "keys", f"signs with: {own}; trusts besides itself: {', '.join(names) or 'nobody'}")


def memory() -> Iterator[Finding]:
    from buildd.memory import read

    host = read()
    text = f"{size(host.available_bytes)} of {size(host.total_bytes)} can be used, limited by {host.limited_by}"
    cpus = len(os.sched_getaffinity(0))
    yield Finding(Level.OK, "memory", f"{text}; pressure {host.pressure:.1f} %")
    yield Finding(Level.OK, "processors", f"{cpus} of {os.cpu_count()} may be used")
    if host.available_bytes < 2 << 30:
        yield Finding(
            Level.WARN, "memory", "under 2 GiB are left: a CUTLASS compile needs that alone", "end other programs"
        )


def variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in AITEMPLATE_CACHE_VARIABLES:
        if environ.get(name):
            yield Finding(
                Level.WARN,
                name,
                "AITemplate's own cache is on; buildd does not need it and cannot check it",
                f"unset {name}",
            )
    for name in ("BUILDD_DISABLE", "BUILDD_RECACHE"):
        if environ.get(name, "0") not in ("", "0"):
            yield Finding(
                Level.WARN, name, f"is {environ[name]!r}: builds are slower than they need be", f"unset {name}"
            )


def nearest_existing(path: Path) -> Path:
    """`path`, or the first folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files that go away meanwhile count nothing."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
            except OSError:
                pass
    return total
