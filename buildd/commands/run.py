"""`buildd run -- COMMAND`: runs a command with its compilers going through the daemon; `buildd install-launchers DIR`.

Knows the environment by which a foreign build finds its compilers; shims and daemon do the rest. If no daemon can be
had, the command runs as it would without buildd.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from argparse import BooleanOptionalAction
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from buildd import caller
from buildd.client import run_relay, run_summary
from buildd.client.foreign_build import (
    NOTHING,
    advice,
    bound_kernels,
    figures_of,
    odd_options,
    offered_jobserver,
    paths_below,
    summary,
    variables,
)
from buildd.client.otel import wants_spans
from buildd.client.run_summary import tier_trouble
from buildd.errors import BuilddError
from buildd.exits import DAEMON, OK, USAGE
from buildd.hooks.proof import FOLDER as PROVE
from buildd.store.found_notes import FoundKernels
from buildd.ui.problems import is_on, parser, print_note, print_problem
from buildd.ui.text import count
from protocol.errors import ProtocolError
from protocol.messages import BuildFigures, BuildId, Done, Explained, Outcome
from protocol.problem import in_one_line

if TYPE_CHECKING:
    from argparse import Namespace

    from buildd.shims.run_log import RunNotes
    from protocol.client import Client

_SHELLS = ("bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh")
_INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def run(arguments: list[str]) -> int:
    """Carry out `buildd run`; exit status of the command, 2 for wrong usage, 127 or 126 if it cannot start."""
    command = parser(
        "run",
        "Run a command and let the daemon cache its compilers (nvcc, hipcc, gcc, clang ...).",
        details="Exit status: that of COMMAND; 127 if it does not exist, 126 if it cannot be run, 2 for wrong usage.",
    )
    command.usage = (
        "buildd run [-j N] [--[no-]map-paths] [--record FILE] [--summary FILE] [--fail-on-miss] [-q] [--] "
        "COMMAND [ARGUMENT...]"
    )
    command.add_argument(
        "-j", "--jobs", type=int, default=None, metavar="N", help="have make, ninja and pip run N jobs at once"
    )
    command.add_argument(
        "--map-paths",
        action=BooleanOptionalAction,
        default=None,
        help="keep the path of this folder out of objects, so that builds in other folders hit too (nvcc, gcc, clang); "
        "in a build folder of CMake, that of the sources above it; without either option only paths of the temporary "
        "folders of pip, uv, build, meson-python and setuptools are kept out",
    )
    command.add_argument(
        "--record",
        type=Path,
        default=None,
        metavar="FILE",
        help="record what the command compiles (compiler calls, Triton kernels), for `buildd warm --manifest FILE`",
    )
    summary_file = (
        "write the figures of the compiles and the command's status to FILE, as one JSON object that has all keys"
    )
    command.add_argument("--summary", type=Path, default=None, metavar="FILE", help=summary_file)
    failing = "end with status 1 if the command succeeded, but a compile had to run; the last line names it"
    command.add_argument("--fail-on-miss", action="store_true", help=failing)
    command.add_argument("-q", "--quiet", action="store_true", help="print no summary at the end, and no status line")
    own, rest = _divided(arguments)
    options = command.parse_args(own)
    if not rest:
        print_problem("no command to run", command="buildd run -- make", next_step="put a command after --")
        return USAGE
    if options.jobs is not None and not 1 <= options.jobs <= 65535:
        print_problem(f"-j {options.jobs} is out of range", next_step="give a whole number from 1 to 65535")
        return USAGE
    environ = dict(os.environ)
    if (options.fail_on_miss or options.summary) and environ.get("BUILDD_BUILD_ID"):
        print_problem(
            "--fail-on-miss and --summary are options of the outermost buildd run, which counts the compiles",
            next_step="give them to the buildd run around this one",
        )
        return USAGE
    if options.record is None:
        return run_command(options, rest, environ)
    from buildd.programs.recording import recording

    with recording(options.record, environ):
        return run_command(options, rest, environ)


def run_command(options: Namespace, rest: list[str], environ: dict[str, str]) -> int:
    """Run a command with its compilers going through the daemon; its exit status.

    Args:
        options: of `buildd run`.
        environ: the command's environment; is changed.
    """
    build = BuildId(os.urandom(6).hex())
    opened = not environ.get("BUILDD_BUILD_ID")
    if is_on(environ, "BUILDD_DISABLE"):
        return _ended(options, _carry_out(rest, environ))
    from buildd.client import run_settings, start_settings
    from buildd.client.run_logs import RunLogs
    from buildd.shims import interposition

    for line in run_settings.complete(environ, says=opened):
        print_note(f"buildd: {line}")
    is_timed = opened and run_settings.takes_times(environ)
    try:
        # Stays connected while the command runs: a daemon neither ends nor restarts itself while a client is connected.
        client = _connected(environ)
        environ.update(variables(environ, environ.get("BUILDD_BUILD_ID") or build, options.jobs))
        environ.update(paths_below(os.getcwd(), options.map_paths))
        _flush_profiles(environ)
        logs = RunLogs(Path(environ["BUILDD_DIR"]), build, rest if opened else None, is_timed=is_timed)
        jobserver = offered_jobserver(environ, options.jobs)
    except (ProtocolError, BuilddError, OSError) as error:
        if PROVE in environ:
            print_problem(f"nothing can be looked up: {in_one_line(error)}", next_step="run `buildd doctor`")
            return DAEMON
        print_note(f"buildd: {in_one_line(error)}; running without the daemon")
        return _ended(options, _carry_out(rest, environ))
    if logs.problem:
        kept = "its results are used, new ones are not kept, and not all hits are counted"
        print_note(f"buildd: {logs.problem}: {kept} ({logs.next_step})")
    if opened:
        for line in start_settings.warning(environ):
            print_note(f"buildd: {line}")
    with client, logs, jobserver:
        started_ns = time.time_ns()
        is_shown = opened and not options.quiet and not _is_shell(rest)
        words, program = interposition.below(rest, environ)
        status = _carry_out(words, environ, program, _line(environ) if is_shown else None)
        bound_kernels(environ)
        if opened:
            run_settings.publish_profiles(environ)
            figures = figures_of(environ, build, logs.notes, logs.run, client)
            # Before anything is printed: the terminal may be closed.
            if logs.run is not None and logs.notes is not None:
                keys = logs.notes.keys()
                traces = run_settings.traces(environ, started_ns)
                _keep(Path(environ["BUILDD_DIR"]), build, rest, started_ns, status, figures, logs.run, keys, traces)
            if logs.run is not None:
                sys.stderr.writelines(f"{line}\n" for line in logs.run.times())
            found = logs.found.found() if logs.found is not None else NOTHING
            if not options.quiet:
                _tell(figures, found, rest, environ)
                for line in odd_options(logs.run.calls() if logs.run is not None else ()):
                    print_note(f"buildd: {line}")
                for line in _tier_lines(client, environ, missed=figures.misses > 0):
                    print_note(f"buildd: {line}")
                if status in _INTERRUPTED and (going_on := _still_open(client, build)):
                    noun = count(going_on, "compile that COMMAND left goes", "compiles that COMMAND left go")
                    print_note(f"buildd: {noun} on; `buildd status` shows them")
            status = _ended(options, status, figures, logs.run.calls() if logs.run is not None else (), found)
    return status


def _ended(
    options: Namespace,
    status: int,
    figures: BuildFigures | None = None,
    calls: Sequence[Explained] = (),
    found: FoundKernels = NOTHING,
) -> int:
    """Obey --summary and --fail-on-miss; the exit status. Raises SummaryError.

    Args:
        figures: None if nothing was looked up.
        found: what the command's programs found in the store.
    """
    if options.summary is not None:
        counted = figures or BuildFigures()
        run_summary.write(options.summary, counted, status, looked_up=figures is not None, from_store=found)
    if options.fail_on_miss:
        status, lines = run_summary.checked(status, figures or BuildFigures(), calls, looked_up=figures is not None)
        for line in lines:
            print_note(f"buildd: {line}")
    return status


def _tier_lines(client: Client, environ: Mapping[str, str], *, missed: bool) -> Iterator[str]:
    """Why the shared cache that the user has named could not help. If nothing was asked of it, only a setting that
    cannot be read is told: it would be wrong for every build."""
    from buildd.client.start_settings import names_tier

    if missed or names_tier(environ):
        try:
            tier = client.status().tier
        except ProtocolError:
            return
        if missed or (tier is not None and not tier.url):
            yield from tier_trouble(tier)


def _still_open(client: Client, build: BuildId) -> int:
    """How many compiles of a build have not ended. A ninja that was killed, as by Python's subprocess, ends none."""
    try:
        return sum(request.build_id == build for request in client.status().work)
    except ProtocolError:
        return 0


def _tell(figures: BuildFigures, found: FoundKernels, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Print the summary of a build whose compiles came to buildd, and ways to more hits."""
    from buildd.shims import interposition
    from buildd.ui.screen import screen_size
    from buildd.ui.text import broken, clean

    if said := summary(figures, found):
        for line in broken(f"buildd: {said}", screen_size(sys.stderr)[0]):
            print(line, file=sys.stderr)
    lines = [f"not cached: {clean(figures.unkept)}"] if figures.unkept else []
    lines += advice(figures, environ.get("BUILDD_MAP_PATHS", ""))
    if not figures.hits and not interposition.folder_of(environ):
        from buildd.trees import configured

        lines += configured.advice(command, os.getcwd(), environ)
    for line in lines:
        print_note(f"buildd: {line}")


def _keep(
    store: Path,
    build: BuildId,
    command: Sequence[str],
    started_ns: int,
    status: int,
    figures: BuildFigures,
    run: RunNotes,
    direct: Sequence[bytes] = (),
    notes: Sequence[str] = (),
) -> None:
    """Add the run to the build log, unless it compiled nothing, started no program with torch or Triton, and there is
    nothing to note; then only `buildd explain --last` speaks of it."""
    from buildd.shims import idle_runs, run_log

    if figures == BuildFigures() and not notes and not run.programs():
        shown = run_log.shown(command)
        idle = run_log.OngoingRun(build_id=build, command=shown, project=run.project, started_ns=started_ns)
        idle_runs.note(store, idle)
        return
    # A program that is interrupted may end with a status of its own; the compiles that it waited for are cancelled.
    was_interrupted = status in _INTERRUPTED or (status != 0 and figures.cancelled > 0)
    outcome = Outcome.CANCELLED if was_interrupted else Outcome.FAILED if status else Outcome.BUILT
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
        run_log.keep(store, build, command, started_ns, summary(figures), done, run, direct, notes)
    except (BuilddError, OSError) as error:
        if not figures.unkept:  # the summary says why
            lost = "the store may not have kept this run's results, and `buildd log` lacks the run"
            print_note(f"buildd: {lost}: {error}")
        return
    if wants_spans(os.environ):
        from buildd.commands.log import events_of
        from buildd.web import spans

        spans.send(events_of(build), os.environ, name=f"buildd run {command[0]}", build=build)


def _connected(environ: Mapping[str, str]) -> Client:
    from buildd.client.connect import GOES_ON_WITHOUT_S, connect

    client = connect(environ, start=True, start_s=GOES_ON_WITHOUT_S)
    assert client.instance  # shakes hands
    return client


def _flush_profiles(environ: Mapping[str, str]) -> None:
    """Obey FLUSH_PROFILE_CACHE=1: empty the stored profiles once for the build, before the command begins."""
    from codegen.variables.settings import read_settings

    settings = read_settings(environ)
    if not settings.is_on("FLUSH_PROFILE_CACHE"):
        return
    from buildd.store.profile_cache import flush_asked
    from buildd.store.store import Store

    with Store.open(Path(environ["BUILDD_DIR"])) as store:
        for line in flush_asked(settings, store, os.getcwd(), environ["BUILDD_BUILD_ID"]):
            print_note(f"buildd: {line}")


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """buildd's own options, and the command, which begins after -- or with the first word that is no option."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        if arguments[index] == "--":
            return arguments[:index], arguments[index + 1 :]
        index += 2 if arguments[index] in ("-j", "--jobs", "--record", "--summary", "--color") else 1
    return arguments[:index], arguments[index:]


def _is_shell(command: Sequence[str]) -> bool:
    """Whether the command is a shell for the user to type into: bash's job control wants the terminal itself."""
    options = command[1:]
    runs_something = any(not word.startswith("-") or (word[1:2] != "-" and "c" in word) for word in options)
    return os.path.basename(command[0]) in _SHELLS and not runs_something


def _line(environ: Mapping[str, str]) -> str | None:
    """The style of a status line below the command, as parameters of an SGR sequence; None where there is none."""
    from buildd.ui.screen import has_colour, is_animated
    from buildd.ui.text import Style

    if not is_animated(sys.stdout, environ):
        return None
    return Style.FAINT.value if has_colour(sys.stdout, environ) else ""


def _carry_out(
    command: list[str], environ: Mapping[str, str], program: str | None = None, line: str | None = None
) -> int:
    """Have the process that the user called run a command; its exit status as a shell reports it.

    Args:
        program: the file to run, if it is not the one that the command's first word names.
        line: style of the status line below it; None for no line.
    """
    try:
        if caller.there is not None:
            return caller.there(command, environ, program, line)
        with run_relay.shown(environ, line) as relay:
            return caller.carry_out(command, environ, program, relay)
    except caller.NotStarted as error:
        print_problem(f"cannot run {command[0]}: {error}", next_step="check the command's name and PATH")
        return 127 if error.number == errno.ENOENT else 126


def install(arguments: list[str]) -> int:
    """Carry out `buildd install-launchers DIR`."""
    command = parser(
        "install-launchers",
        "Put compiler shims into DIR; with DIR first on PATH, the daemon caches the compiles of every build.",
    )
    command.add_argument("folder", metavar="DIR", type=Path, help="the folder, made if it is missing")
    options = command.parse_args(arguments)
    from buildd.shims import shim_folders
    from buildd.store.location import locate

    folder: Path = options.folder.absolute()
    names = shim_folders.install(folder, locate(os.environ).folder, os.environ)
    print(f"{folder}: {', '.join(names)}")
    print("put this folder first on your PATH; its compilers start the daemon when they need it")
    print("after you have installed another compiler, run this command again")
    return OK
