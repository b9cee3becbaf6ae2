"""Makes a `Request` from the command line and the environment.

Knows neither the daemon nor the scheduler; `perform` takes a request to one of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from buildd.exits import DAEMON, FAILED, INTERRUPTED, OK, USAGE
from buildd.ui.problems import is_on, print_note
from codegen.errors import RequestError
from protocol.messages import BuildId, Mode, OnDisconnect, Outcome, Priority, Request, RequestId

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

PROJECT_FILE = "buildd.toml"

EXIT_STATUS = {
    Outcome.BUILT: OK,
    Outcome.FAILED: FAILED,
    Outcome.REFUSED: USAGE,
    Outcome.DAEMON_ERROR: DAEMON,
    Outcome.CANCELLED: INTERRUPTED,
}


_IN_PROCESS = "build in this process instead of the daemon: same results, same cache"


def add_request_arguments(
    parser: ArgumentParser,
    *,
    jobs: str = "run at most N jobs of this build at once",
    in_process: str = _IN_PROCESS,
    json: str = "print events as JSON lines on stdout, text on stderr",
) -> None:
    """Add the options of every command with targets.

    Args:
        jobs: help text of -j; argparse.SUPPRESS for a command that runs no job.
        in_process: help text of --no-daemon; argparse.SUPPRESS for a command that needs the daemon.
        json: help text of --json; argparse.SUPPRESS for a command that prints no events.
    """
    here = "the project's folder (default: the nearest one from here upwards with a buildd.toml)"
    arch = "replace the project file's architectures, as in sm_90a,gfx90a; may be repeated"
    parser.add_argument("-C", "--directory", metavar="DIR", default="", help=here)
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        default="",
        help="project file, relative to the project's folder (default: buildd.toml)",
    )
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=None, help=jobs)
    parser.add_argument("--arch", metavar="A", action="append", default=[], help=arch)
    parser.add_argument("--cuda", metavar="DIR", default="", help="the CUDA toolkit's folder, which holds bin/nvcc")
    parser.add_argument("--rocm", metavar="DIR", default="", help="ROCm's folder, which holds bin/hipcc")
    parser.add_argument(
        "--host-compiler", metavar="PROGRAM", default="", help="nvcc's host compiler: a path, or a name on the PATH"
    )
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--no-daemon", action="store_true", help=in_process)


def add_output_arguments(parser: ArgumentParser) -> None:
    """Add the options of the commands that show a build."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-v", "--verbose", action="store_true", help="print the command line of every action that runs")
    which.add_argument("-q", "--quiet", action="store_true", help="print only warnings, errors and the summary")


def with_loudness(environ: Mapping[str, str], options: Namespace) -> dict[str, str]:
    """`environ` with the level that -v or -q asks for."""
    verbose, quiet = getattr(options, "verbose", False), getattr(options, "quiet", False)
    return {**environ, **({"LOGLEVEL": "DEBUG" if verbose else "WARNING"} if verbose or quiet else {})}


def project_of(directory: str, file: str) -> tuple[str, str]:
    """The project's folder (absolute) and its file (relative to it).

    Raises: RequestError if there is no such folder or file.
    """
    start = os.path.abspath(directory or ".")
    if not os.path.isdir(start):
        raise RequestError("bad-project", f"no folder {start}", next_step="check the argument of -C")
    if file:
        if not os.path.isfile(os.path.join(start, file)):
            raise RequestError("bad-project", f"no file {file} in {start}", next_step="check the argument of -f")
        return start, file
    folder = start
    while not os.path.isfile(os.path.join(folder, PROJECT_FILE)):
        above = os.path.dirname(folder)
        if directory or above == folder:
            where = start if directory else f"{start} or any folder above it"
            raise RequestError(
                "bad-project",
                f"no {PROJECT_FILE} in {where}",
                next_step="go to the project's folder, name it with -C, or let `buildd init` write one",
            )
        folder = above
    return folder, PROJECT_FILE


def request_from(options: Namespace, targets: tuple[str, ...], mode: Mode, environ: Mapping[str, str]) -> Request:
    """The request that parsed options describe.

    Raises: RequestError for an invalid project, number or variable.
    """
    project, file = project_of(options.directory, options.file)
    from codegen.variables.environment import misspelt

    for name, near in misspelt(environ):
        print_note(f"buildd: {name} is not a variable that buildd knows; did you mean {near}?")
    # One name for both if this command opens the build, so that the ids of `buildd log` can be followed.
    request_id = RequestId(os.urandom(6).hex())  # Not `secrets`: it costs 6 ms to import.
    return Request(
        request_id=request_id,
        build_id=BuildId(environ.get("BUILDD_BUILD_ID") or request_id),
        project=project,
        file=file,
        targets=targets,
        arch=tuple(arch for given in options.arch for arch in re.split(r"[,;\s]+", given) if arch),
        toolchain=chosen_toolchain(options, environ),
        environment=selected_environment(environ),
        store=store_of(environ),
        mode=mode,
        jobs=chosen_jobs(options.jobs, with_files(environ, project, file)),
        priority=Priority.WARM if mode is Mode.WARM else Priority.BUILD,
        # As with make: ending the command ends the build. Finished results are in the store.
        on_disconnect=OnDisconnect.CANCEL,
        interpreter=sys.executable or "",
        keep_going=getattr(options, "keep_going", False),
        recache=getattr(options, "recache", False) or is_on(environ, "BUILDD_RECACHE"),
        umask=_umask(),
    )


def _umask() -> int:
    """This process's umask, which it can only read by setting it."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def selected_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The client's variables that matter to a build, and PATH, which the search for toolchains needs."""
    from buildd.shims.framework_environment import without_hooks
    from codegen.variables import environment

    return environment.select(without_hooks(environ))


def chosen_toolchain(options: Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of [toolchain] that options replace, with absolute folders.

    Raises: RequestError if a tool is not there.
    """
    found: dict[str, str] = {}
    for option, key, program in (("cuda", "cuda", "nvcc"), ("rocm", "hip", "hipcc")):
        if folder := getattr(options, option, ""):
            found[key] = os.path.abspath(os.path.expanduser(folder))
            path = os.path.join(found[key], "bin", program)
            if not os.access(path, os.X_OK):
                raise RequestError(
                    "compiler-not-found",
                    f"--{option} {folder}: there is no program {path}",
                    next_step=f"name the folder that holds bin/{program}",
                )
    if host := getattr(options, "host_compiler", ""):
        import shutil

        path = shutil.which(host, path=environ.get("PATH", os.defpath)) or ""
        if not path:
            raise RequestError(
                "compiler-not-found", f"--host-compiler {host}: there is no such program", next_step="check its name"
            )
        found["host_compiler"] = os.path.abspath(path) if os.sep in host else host
    return found


def with_files(environ: Mapping[str, str], project: str = "", file: str = "") -> dict[str, str]:
    """`environ`, and below it what [environment] of the project's and of the user's file says."""
    from codegen.variables.settings import read_settings

    return read_settings(environ, os.path.join(project, file) if file else "").merged()


def store_of(environ: Mapping[str, str]) -> str:
    """The folder of this user's store; says so on stderr if it is not the usual one.

    Raises: StoreError if no folder can be used.
    """
    from buildd.store.location import locate

    found = locate(environ)
    if found.notice:
        print_note(f"buildd: {found.notice}")
    return found.place


def chosen_jobs(option: int | None, environ: Mapping[str, str]) -> int:
    if option is not None:
        if not 1 <= option <= 65535:
            raise RequestError(
                "bad-value", f"-j {option} is out of range", next_step="give a whole number from 1 to 65535"
            )
        return option
    value = environ.get("BUILDD_JOBS", "").strip()
    if not value:
        return 0
    if not value.isdecimal() or not 1 <= int(value) <= 65535:
        raise RequestError(
            "bad-variable",
            f"BUILDD_JOBS={value!r} is not a number of jobs",
            next_step="set it to a whole number from 1 on, or unset it",
        )
    return int(value)
