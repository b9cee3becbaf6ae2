"""From the command line and the environment to a `Request`, and from its outcome to an exit status.

Knows neither the daemon nor the scheduler; `perform` brings a request to one of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from buildd.cli import DAEMON, FAILED, INTERRUPTED, OK, USAGE
from buildd.commands.common import is_on, print_note
from codegen.plan import RequestError
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


def add_request_arguments(parser: ArgumentParser) -> None:
    """The options that every command with targets takes."""
    here = "the project's folder (default: the first one from here upwards that has a buildd.toml)"
    arch = "architectures instead of the project file's: sm_90a, gfx90a; may be repeated or a comma-separated list"
    parser.add_argument("-C", "--directory", metavar="DIR", default="", help=here)
    parser.add_argument("-f", "--file", metavar="FILE", default="", help="project file, relative to its folder")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=None, help="most jobs of this build at once")
    parser.add_argument("--arch", metavar="A", action="append", default=[], help=arch)
    parser.add_argument("--json", action="store_true", help="events as JSON lines on stdout, text on stderr")
    parser.add_argument("--no-daemon", action="store_true", help="build in this process: same results, same cache")


def project_of(directory: str, file: str) -> tuple[str, str]:
    """The project's folder (absolute) and its file (relative to it).

    Raises: RequestError where there is no such folder or file.
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
                next_step=f"go to the project's folder, name it with -C, or write a {PROJECT_FILE}",
            )
        folder = above
    return folder, PROJECT_FILE


def request_from(options: Namespace, targets: tuple[str, ...], mode: Mode, environ: Mapping[str, str]) -> Request:
    """The request that parsed options ask for.

    Raises: RequestError for a project, a number or a variable that makes no sense.
    """
    project, file = project_of(options.directory, options.file)
    # One name for both where this command opens the build: what `buildd log` lists can be followed.
    request_id = RequestId(os.urandom(6).hex())  # Not `secrets`: it costs 6 ms to import.
    return Request(
        request_id=request_id,
        build_id=BuildId(environ.get("BUILDD_BUILD_ID") or request_id),
        project=project,
        file=file,
        targets=targets,
        arch=tuple(arch for given in options.arch for arch in re.split(r"[,;\s]+", given) if arch),
        environment=selected_environment(environ),
        store=store_of(environ),
        mode=mode,
        jobs=chosen_jobs(options.jobs, environ),
        priority=Priority.WARM if mode is Mode.WARM else Priority.BUILD,
        # As with make: who ends the command ends the build. What was finished is in the store.
        on_disconnect=OnDisconnect.CANCEL,
        interpreter=sys.executable or "",
        keep_going=getattr(options, "keep_going", False),
        recache=getattr(options, "recache", False) or is_on(environ, "BUILDD_RECACHE"),
    )


def selected_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The client's variables that reach a build, and PATH, which the search for toolchains needs."""
    from buildd.frameworks import without_hooks
    from codegen import environment

    return environment.select(without_hooks(environ))


def store_of(environ: Mapping[str, str]) -> str:
    """The folder of this user's store; says on stderr where it had to move.

    Raises: StoreError where no folder can be had.
    """
    from buildd.location import locate

    found = locate(environ)
    if found.notice:
        print_note(f"buildd: {found.notice}")
    return found.place


def chosen_jobs(option: int | None, environ: Mapping[str, str]) -> int:
    if option is not None:
        if not 1 <= option <= 65535:
            raise RequestError(
                "bad-value", f"-j {option} makes no sense", next_step="give a whole number from 1 to 65535"
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
