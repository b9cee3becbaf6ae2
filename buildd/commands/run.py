"""`buildd run -- COMMAND`: any command, with its compilers going through the daemon; `buildd install-launchers DIR`.

Knows what a foreign build finds its compilers by; everything else is the stand-ins' and the daemon's. Where there is no
daemon to be had the command runs as it would without us.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from buildd.cli import OK, USAGE
from buildd.commands.common import is_on, parser, print_note, print_problem
from buildd.errors import BuilddError
from protocol.errors import ProtocolError
from protocol.messages import BuildFigures, BuildId, Done, Outcome

if TYPE_CHECKING:
    from argparse import Namespace

    from buildd.notes import Notes
    from buildd.runlog import FailedCompiles
    from protocol.client import Client

_STATUS_S = 5.0
_INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
_WIDTHS = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")


def run(arguments: list[str]) -> int:
    """Carry out `buildd run`; the exit status of its command, 2 for wrong usage, 127 or 126 where it cannot start."""
    command = parser("run", "Run a command, with its compilers (nvcc, hipcc, gcc, clang ...) going through the daemon.")
    command.usage = "buildd run [-j N] [--map-paths] [--record FILE] [--] COMMAND [ARGUMENT...]"
    command.add_argument(
        "-j", "--jobs", type=int, default=None, metavar="N", help="tell make, ninja and pip this width"
    )
    command.add_argument(
        "--map-paths",
        action="store_true",
        help="objects hold no path of this folder or of pip's temporary ones, so that others hit too (gcc, clang)",
    )
    command.add_argument(
        "--record",
        type=Path,
        default=None,
        metavar="FILE",
        help="write down every Triton kernel that the command compiles, for `buildd warm --manifest FILE`",
    )
    command.add_argument("--quiet", action="store_true", help="no summary at the end")
    own, rest = _divided(arguments)
    options = command.parse_args(own)
    if not rest:
        print_problem("no command to run", command="buildd run -- make", next_step="name one after --")
        return USAGE
    if options.jobs is not None and not 1 <= options.jobs <= 65535:
        print_problem(f"-j {options.jobs} makes no sense", next_step="give a whole number from 1 to 65535")
        return USAGE
    environ = dict(os.environ)
    if options.record is None:
        return _run(options, rest, environ)
    from buildd.recording import recording

    with recording(options.record, environ):
        return _run(options, rest, environ)


def _run(options: Namespace, rest: list[str], environ: dict[str, str]) -> int:
    build = BuildId(os.urandom(6).hex())
    opened = not environ.get("BUILDD_BUILD_ID")
    if is_on(environ, "BUILDD_DISABLE"):
        return _carry_out(rest, environ)
    try:
        # Connected for as long as the command runs: a daemon does not end, nor start itself anew, while somebody is.
        client = _connected(environ)
        environ.update(variables(environ, environ.get("BUILDD_BUILD_ID") or build, options.jobs))
        if options.map_paths:
            environ["BUILDD_MAP_PATHS"] = os.path.realpath(os.getcwd())
        _flush_profiles(environ)
        notes = _notes(environ, build)
        failed = _failed(environ, build) if opened else nullcontext()
        jobserver = offered_jobserver(environ, options.jobs)
    except (ProtocolError, BuilddError, OSError) as error:
        print_note(f"buildd: {getattr(error, 'message', error)}; running without the daemon")
        return _carry_out(rest, environ)
    with client, notes, jobserver, failed as failures:
        started_ns = time.time_ns()
        status = _carry_out(rest, environ)
        bound_kernels(environ)
        if failures is not None:
            figures = figures_of(environ, build, notes)
            if not options.quiet:
                print(f"buildd: {summary(figures)}", file=sys.stderr)
                for line in () if options.map_paths else advice(figures):
                    print_note(f"buildd: {line}")
            _keep(Path(environ["BUILDD_DIR"]), build, rest, started_ns, status, figures, failures)
    return status


def _keep(
    store: Path,
    build: BuildId,
    command: Sequence[str],
    started_ns: int,
    status: int,
    figures: BuildFigures,
    failures: FailedCompiles,
) -> None:
    """Have `buildd log` know of it; what compiled nothing was no build."""
    if figures == BuildFigures():
        return
    from buildd import runlog

    outcome = Outcome.BUILT if status == 0 else Outcome.CANCELLED if status in _INTERRUPTED else Outcome.FAILED
    done = Done(
        outcome=outcome,
        message=f"{command[0]} ended with status {status}" if outcome is Outcome.FAILED else "",
        hits=figures.hits,
        misses=figures.misses,
        failures=figures.failures,
        wall_s=max(0, time.time_ns() - started_ns) / 1e9,
        saved_s=figures.saved_s,
    )
    try:
        runlog.keep(store, build, command, started_ns, summary(figures), done, failures.told())
    except (BuilddError, OSError) as error:
        print_note(f"`buildd log` does not know of this run: {error}")


def _connected(environ: Mapping[str, str]) -> Client:
    from buildd.commands.connect import connect

    client = connect(environ, start=True)
    assert client.instance  # shakes hands
    return client


def _flush_profiles(environ: Mapping[str, str]) -> None:
    """FLUSH_PROFILE_CACHE=1: profiles that buildd keeps are emptied once for the build, before the command begins."""
    if environ.get("FLUSH_PROFILE_CACHE") != "1":
        return
    from buildd.profile_cache import flush_asked
    from buildd.store import Store

    with Store.open(Path(environ["BUILDD_DIR"])) as store:
        for line in flush_asked(environ, store, os.getcwd(), environ["BUILDD_BUILD_ID"]):
            print_note(f"buildd: {line}")


def _notes(environ: Mapping[str, str], build: BuildId) -> Notes:
    from buildd.notes import Notes

    return Notes(Path(environ["BUILDD_DIR"]), build)


def _failed(environ: Mapping[str, str], build: BuildId) -> FailedCompiles:
    from buildd.runlog import FailedCompiles

    return FailedCompiles(Path(environ["BUILDD_DIR"]), build)


def offered_jobserver(environ: dict[str, str], jobs: int | None) -> AbstractContextManager[object]:
    """Offers a build of this width as a jobserver; `environ` is changed. A build that has one keeps it."""
    from buildd.jobserver import Jobserver, find_builders
    from buildd.jobserver import variables as telling
    from buildd.standins import stand_for
    from protocol.endpoint import runtime_folder

    if jobs is None or "--jobserver" in environ.get("MAKEFLAGS", "") or environ.get("BUILDD_JOBSERVER"):
        return nullcontext()
    tools = find_builders(environ)
    place = stand_for(Path(environ["BUILDD_DIR"]), tools, environ)
    try:
        server = Jobserver(runtime_folder(environ).path, jobs)
    except BuilddError:
        return nullcontext()  # the width is told in words, each tool keeps to it by itself
    environ.update(telling(server, jobs, tools))
    environ["PATH"] = f"{place.programs}{os.pathsep}{environ['PATH']}"
    return server


def bound_kernels(environ: Mapping[str, str]) -> None:
    """Keep Triton's kernels within their part of the store's bound: the programs that put them there know none."""
    from buildd import kept_kernels

    store = Path(environ["BUILDD_DIR"])
    if kept_kernels.held(store)[0] > 0:
        from buildd.commands.cache import bound_of
        from buildd.store import default_limit

        try:
            limit_bytes = bound_of(environ)
        except ArgumentTypeError:
            limit_bytes = None  # the daemon has said so
        kept_kernels.trim(store, (limit_bytes or default_limit(store)) // kept_kernels.SHARE)


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our options and the command, which begins after -- or with the first word that is no option."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        if arguments[index] == "--":
            return arguments[:index], arguments[index + 1 :]
        index += 2 if arguments[index] in ("-j", "--jobs", "--record") else 1
    return arguments[:index], arguments[index:]


def variables(environ: Mapping[str, str], build: str, jobs: int | None = None) -> dict[str, str]:
    """What is different in the environment of the command. Makes the stand-ins.

    Raises: ProtocolError, BuilddError, OSError.
    """
    from buildd import served

    found = served.variables(environ, build)
    if jobs is not None:
        found |= dict.fromkeys(_WIDTHS, str(jobs))
        found["MAKEFLAGS"] = f"{environ.get('MAKEFLAGS', '')} -j{jobs}".strip()
    return found


def _carry_out(command: list[str], environ: Mapping[str, str]) -> int:
    """Run a command in our place: our terminal, our signals; its exit status as a shell tells it."""
    with _passing_signals() as started:
        try:
            process = subprocess.Popen(command, env=environ)
        except OSError as error:
            print_problem(f"cannot run {command[0]}: {error.strerror}", next_step="check its name and PATH")
            return 127 if isinstance(error, FileNotFoundError) else 126
        started(process)
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Ctrl-C reaches the command by itself; what was sent to us alone is passed on. We end when it has ended.

    Begins before the command does, and is told of it: a signal in between is passed on too. What the command is to
    ignore (nohup) stays ignored; what we handle it does not inherit.
    """
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            return
        early.append(number)
        if running:
            running[0].send_signal(early.pop())

    def started(process: subprocess.Popen[bytes]) -> None:
        running.append(process)
        while early:
            process.send_signal(early.pop())

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    taken = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in taken}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def figures_of(environ: Mapping[str, str], build: BuildId, notes: Notes) -> BuildFigures:
    """What the compiles of a build came to so far: what the daemon says, if there is one, with what stand-ins noted."""
    from buildd.commands.connect import connect

    try:
        with connect(environ, start=False, timeout_s=_STATUS_S) as client:
            found = client.status().builds.get(build, BuildFigures())
    except ProtocolError:
        found = BuildFigures()
    hits, saved_s = notes.figures()
    return BuildFigures(
        hits=found.hits + hits,
        misses=found.misses,
        failures=found.failures,
        saved_s=found.saved_s + saved_s,
        handed_through=found.handed_through,
        holding_paths=found.holding_paths,
    )


def summary(figures: BuildFigures) -> str:
    """What became of a build's compiles, in one line."""
    from buildd.ui.text import duration

    handed = sum(figures.handed_through.values())
    reasons = sorted(figures.handed_through.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{figures.hits} hits", f"{figures.misses} misses"]
    if figures.failures:
        parts.append(f"{figures.failures} failed")
    if handed:
        parts.append(f"{handed} handed through ({', '.join(f'{name} {count}' for name, count in reasons[:4])})")
    return ", ".join([*parts, f"{duration(figures.saved_s)} saved"])


def advice(figures: BuildFigures) -> Iterator[str]:
    """What would have a later build of this kind find more."""
    if figures.holding_paths:
        yield (
            f"{figures.holding_paths} of the misses made objects that hold the path of a folder with another name each"
            " time, by __FILE__ or -g: `buildd run --map-paths` makes such that a later build finds (but for nvcc's"
            " with debug or line information)"
        )


def install(arguments: list[str]) -> int:
    """Carry out `buildd install-launchers DIR`."""
    command = parser("install-launchers", "Put stand-ins of the compilers into a folder, for your PATH.")
    command.add_argument("folder", metavar="DIR", type=Path)
    options = command.parse_args(arguments)
    from buildd import standins
    from buildd.location import locate

    folder: Path = options.folder.absolute()
    binary = standins.program(locate(os.environ).folder, os.environ.get("PATH", os.defpath))
    names = standins.install(folder, binary, standins.find_tools(os.environ))
    print(f"{folder}: {', '.join(names)}")
    print("put it first on your PATH; without a running daemon (buildd up) they are the plain tools")
    return OK
