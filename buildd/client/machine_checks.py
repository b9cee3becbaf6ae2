"""The checks of `buildd doctor`: one function a subject, each yields findings.

Knows where things are and how to ask them; `doctor` prints the findings and chooses the exit status. A check must work
on a broken machine: a question that it cannot answer is a finding too.
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
from buildd.client import start_settings
from buildd.client.run_settings import EASYDEL, EASYDEL_FAULT, EASYDEL_STEP
from buildd.errors import BuilddError
from buildd.ui.text import count, duration, size
from codegen.errors import RequestError
from codegen.plan import Answer, Knowledge, Probe, ProbesNeeded
from codegen.variables.environment import find
from protocol.errors import NoDaemon, ProtocolError

T = TypeVar("T")

PACKAGES = (
    *("msgspec", "pyzmq", "uvloop", "blake3", "zstandard", "pynacl"),
    *("psutil", "sqlite-utils", "watchdog", "jinja2", "rich"),
)
"""What buildd cannot run without."""
OPTIONAL_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cutlass", "triton", "torch", "jax")
AITEMPLATE_CACHE_VARIABLES = (
    "AIT_BUILD_CACHE_DIR",
    "AIT_BUILD_CACHE_SKIP_PERCENTAGE",
    "AIT_BUILD_CACHE_SKIP_PROFILER",
    "AIT_BUILD_CACHE_MAX_MB",
)
_LITTLE_SPACE_BYTES = 2 << 30
_MOST_REASONS = 6
_TIER_S = 5.0


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of the report; `next_step` says what the user can do about it."""

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
        yield Finding(Level.FAIL, "packages", f"not installed: {', '.join(missing)}", "install buildd again")
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
        why = "from BUILDD_RUNTIME_DIR"
    elif session and base == Path(session) / "buildd":
        why = "from XDG_RUNTIME_DIR, which is this user's own and survives logout"
    elif session:
        why = f"not from XDG_RUNTIME_DIR={session}: it is too long, not this user's own, or removed at logout"
    else:
        why = "XDG_RUNTIME_DIR is not set"
    yield Finding(Level.OK, "runtime folder", f"{folder} ({why})")


def daemon(environ: Mapping[str, str]) -> Iterator[Finding]:
    from buildd.client.connect import connect

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
        if names := list(start_settings.ignored(environ)):
            text = f"it was started with other settings and does not obey yours: {', '.join(names)}"
            yield Finding(Level.WARN, "daemon", text, start_settings.NEXT_STEP)


def store(environ: Mapping[str, str]) -> Iterator[Finding]:
    from buildd.files.sweep import Sweep
    from buildd.native.programs import NATIVE
    from buildd.store import ownership
    from buildd.store.location import file_system_of, locate, network_file_system
    from buildd.store.store import Store, default_limit
    from buildd.store.tally import Reasoned

    try:
        found = locate(environ)
        ownership.check(found.folder)
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
    if not looks.load() and looks.problem:
        yield Finding(Level.WARN, "store", f"looks at files are slower than they could be: {looks.problem}")
    if network_file_system(folder):
        yield Finding(Level.WARN, "store", f"{kind} is a network file system", "set BUILDD_DIR to a local folder")
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding(Level.FAIL, "store", f"cannot write to {place}", "set BUILDD_DIR to a folder of your own")
    if free_bytes < _LITTLE_SPACE_BYTES:
        yield Finding(Level.WARN, "store", f"only {size(free_bytes)} free there", "free some space, or set BUILDD_DIR")
    if not (folder / "index.db").exists():
        yield Finding(Level.OK, "store", "empty: nothing has been built yet")
        return
    try:
        with Store.open(folder, read_only=True) as opened:
            builds = opened.builds(1000)
            passed_through = opened.tally.reasons(Reasoned.PASSED_THROUGH)
    except BuilddError as error:
        yield Finding(Level.FAIL, "store", error.message, error.next_step)
        return
    yield Finding(
        Level.OK,
        "stored",
        f"{size(folder_bytes(folder))} used of {size(default_limit(folder))}, {count(len(builds), 'build')} in the log",
    )
    if passed_through:
        listed = sorted(passed_through.items(), key=lambda pair: (-pair[1], pair[0]))
        text = ", ".join(f"{why} {number}" for why, number in listed[:_MOST_REASONS])
        number = count(sum(passed_through.values()), "command")
        yield Finding(Level.OK, "passed through", f"{number}: {text}")


def shims(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether buildd's own programs and libraries (shims, preloads) are undamaged."""
    from buildd.native.programs import has_no_digest, is_sound
    from buildd.shims.shim_folders import programs
    from buildd.store.location import locate

    try:
        found = list(programs(locate(environ).folder, environ))
    except (BuilddError, RequestError):
        return  # `store` reports it
    unsound = [place for place in found if not is_sound(place)]
    older = [place for place in unsound if has_no_digest(place)]
    damaged = [place for place in unsound if place not in older]
    if older:
        text = f"{len(older)} of {len(found)} are an older buildd's, which kept no digest to check them by: {older[0]}"
        yield Finding(Level.WARN, "shims", text, "buildd run makes those that it uses again, buildd cache verify all")
    if damaged:
        text = f"{len(damaged)} of {len(found)} are damaged, for example {damaged[0]}"
        yield Finding(Level.FAIL, "shims", text, "buildd cache verify makes them again")
    elif not older:
        text = "all intact" if found else "made when first needed"
        yield Finding(Level.OK, "shims", f"{count(len(found), 'program')} that stand in for compilers, {text}")


def toolchains(environ: Mapping[str, str]) -> Iterator[Finding]:
    from codegen.compilers.compiler import Compiler
    from codegen.compilers.toolchain import Toolchains
    from codegen.project.project_file import ProjectSettings
    from codegen.variables.environment import select
    from codegen.variables.settings import read_settings
    from protocol.messages import BuildId, Request, RequestId

    request = Request(
        request_id=RequestId("doctor"),
        build_id=BuildId("doctor"),
        project=os.getcwd(),
        environment=select(read_settings(environ).merged()),
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
    has_nvcc = False
    for name, look in looks:
        if name == "CUTLASS" and not has_nvcc:
            continue  # it is of use to nvcc alone
        try:
            text = answered(lambda look=look: look(Toolchains(request, ProjectSettings(), knowledge)), knowledge)  # type: ignore[misc]
        except RequestError as error:
            yield Finding(Level.WARN, name, error.message, error.next_step)
        except (OSError, subprocess.SubprocessError) as error:
            yield Finding(Level.WARN, name, f"cannot be run: {error}")
        else:
            has_nvcc = has_nvcc or name == "nvcc"
            yield Finding(Level.OK, name, text)


def answered(ask: Callable[[], T], knowledge: Knowledge) -> T:
    """The result of `ask`, after running here every probe that it needs."""
    for _ in range(30):
        try:
            return ask()
        except ProbesNeeded as needed:
            for probe in needed.probes:
                knowledge.learn(probe, _run(probe))
    raise RequestError("probes", "the search still needs probes after 30 rounds", next_step="report this as a bug")


def _run(probe: Probe) -> Answer:
    done = subprocess.run(
        probe.argv, env=dict(probe.environment), input=probe.payload, capture_output=True, timeout=probe.timeout_s
    )
    stdout, stderr = (data.decode("utf-8", "surrogateescape") for data in (done.stdout, done.stderr))
    return Answer(status=done.returncode, stdout=stdout, stderr=stderr)


def keys(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whose bundles `buildd cache import` accepts, and whose kernels and graphs programs load."""
    from buildd.store import signing

    file = signing.key_file(environ)
    try:
        others = signing.listed(environ)
        own = signing.own(environ).public.hex() if file.exists() else "no key yet (the first use makes one)"
    except BuilddError as error:
        yield Finding(Level.FAIL, "keys", f"{error.file}: {error.message}", error.next_step)
        return
    names = [name or key.hex() for key, name in others.items()]
    yield Finding(Level.OK, "keys", f"signs with: {own}; also trusts: {', '.join(names) or 'nobody'}")


def tier(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The shared tier, asked once; nothing where the user has named none."""
    from buildd.tier.carrier import CarrierError, for_up_to
    from buildd.tier.opening import open_users_tier

    opened = open_users_tier(environ)
    if opened.problem:
        yield Finding(Level.WARN, "tier", opened.problem, f"correct {opened.place}" if opened.place else "")
    found = opened.tier
    if found is None:
        return
    began = time.monotonic()
    try:
        # No object has this name. Whatever the answer, it shows whether the place can be read.
        found.get("0" * 64, for_up_to(_TIER_S, _TIER_S))
        took = duration(time.monotonic() - began)
        said = found.describe(for_up_to(_TIER_S, _TIER_S))
    except CarrierError as error:
        yield Finding(
            Level.WARN, "tier", f"{found.shown}: {error}", "builds go on without it; check its URL and rights"
        )
    else:
        names = [name or key.hex() for key, name in found.settings.believed]
        use = "written to" if found.settings.signer is not None else "only read"
        kind = f"{found.kind}: {said}" if said else found.kind
        text = f"{found.shown} ({kind}) answered in {took}; {use}; trusts {', '.join(names) or 'nobody'}"
        yield Finding(Level.OK, "tier", text)
    finally:
        found.close()


def memory() -> Iterator[Finding]:
    from buildd.host.memory import read

    host = read()
    text = f"{size(host.available_bytes)} of {size(host.total_bytes)} available, limited by {host.limited_by}"
    cpus = len(os.sched_getaffinity(0))
    yield Finding(Level.OK, "memory", f"{text}; pressure {host.pressure:.1f} %")
    yield Finding(Level.OK, "processors", f"{cpus} of {os.cpu_count()} available")
    if host.available_bytes < 2 << 30:
        yield Finding(
            Level.WARN, "memory", "less than 2 GiB left: a single CUTLASS compile needs that", "close other programs"
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
    if environ.get("AIT_TRACE_MAKE"):
        yield Finding(
            Level.WARN,
            "AIT_TRACE_MAKE",
            "AITemplate does not see compiles that fail",
            "unset AIT_TRACE_MAKE; buildd build --trace FILE writes a trace",
        )
    row = find(EASYDEL)
    if row is not None and row.read(environ.get(EASYDEL, "")):
        yield Finding(Level.WARN, EASYDEL, EASYDEL_FAULT, EASYDEL_STEP)
    for name in ("BUILDD_DISABLE", "BUILDD_RECACHE"):
        if environ.get(name, "0") not in ("", "0"):
            yield Finding(
                Level.WARN, name, f"is set to {environ[name]!r}: builds are slower than necessary", f"unset {name}"
            )


def nearest_existing(path: Path) -> Path:
    """`path`, or the first folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; a file that disappears meanwhile counts nothing."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
            except OSError:
                pass
    return total
