"""`buildd doctor`: checks of this machine as ok / warn / fail lines, and a redacted report for a bug tracker."""

from __future__ import annotations

import getpass
import io
import os
import platform
import socket
import tarfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from buildd.client import machine_checks as checks
from buildd.client import python_checks
from buildd.client.machine_checks import Finding, Level
from buildd.exits import DAEMON, OK, USAGE
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.redact import Redactor
from buildd.ui.text import Line, Style, clean

if TYPE_CHECKING:
    from buildd.store.build_log import Build

_LOG_TAIL_BYTES = 64 << 10
_BUILDS = 20
_STYLES = {Level.OK: Style.PLAIN, Level.WARN: Style.WARNING, Level.FAIL: Style.ERROR}


def run(arguments: list[str]) -> int:
    command = parser("doctor", "Check this machine. Exit status 3 if a check fails.")
    command.add_argument(
        "--bundle",
        metavar="FILE",
        default="",
        help="also write a report for a bug tracker: a .tar.gz without your name and secrets",
    )
    options = command.parse_args(arguments)
    findings: list[Finding] = []
    for finding in examine(os.environ):
        findings.append(finding)
        print_lines(finding_lines(finding))
    if options.bundle:
        try:
            write_bundle(options.bundle, findings, os.environ)
        except OSError as error:
            print_problem(
                f"cannot write the report: {error.strerror}", file=options.bundle, next_step="name another file"
            )
            return USAGE
        print(f"report: {options.bundle} (look through it before you send it)")
    return DAEMON if any(finding.level is Level.FAIL for finding in findings) else OK


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All findings, as they are made."""
    subjects: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("python", checks.python),
        ("runtime folder", lambda: checks.runtime_folder(environ)),
        ("daemon", lambda: checks.daemon(environ)),
        ("store", lambda: checks.store(environ)),
        ("shims", lambda: checks.shims(environ)),
        ("keys", lambda: checks.keys(environ)),
        ("tier", lambda: checks.tier(environ)),
        ("toolchains", lambda: checks.toolchains(environ)),
        ("programs", lambda: python_checks.programs(environ)),
        ("memory", checks.memory),
        ("variables", lambda: checks.variables(environ)),
    )
    for name, check in subjects:
        try:
            yield from check()
        except Exception as error:  # One check that breaks must not hide the others: this is the tool for such days.
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            yield Finding(Level.FAIL, name, f"the check itself failed: {error!r} at {place}", "report this as a bug")


def finding_lines(finding: Finding) -> list[Line]:
    lines = [Line(f"{finding.level.value:<4}  {finding.subject}: {clean(finding.text)}", _STYLES[finding.level])]
    if finding.next_step:
        lines.append(Line(f"      next: {clean(finding.next_step)}"))
    return lines


def write_bundle(path: str, findings: Iterable[Finding], environ: Mapping[str, str]) -> None:
    """A .tar.gz of redacted texts; its members carry no owner and no time."""
    redact = redactor(environ)
    texts = {
        "doctor.txt": "".join(line.text + "\n" for finding in findings for line in finding_lines(finding)),
        "system.txt": _system(),
        "daemon.log": _log_tail(environ),
        "builds.txt": _builds(),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            data = redact(text).encode("utf-8", "backslashreplace")
            member = tarfile.TarInfo(f"buildd-report/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def redactor(environ: Mapping[str, str]) -> Redactor:
    """A redactor for this user and this machine."""
    users = {environ.get("USER", ""), environ.get("LOGNAME", "")}
    try:
        users.add(getpass.getuser())
    except (KeyError, OSError):  # A container's user may have no name. (OSError from Python 3.13 on.)
        pass
    host = socket.gethostname()
    homes = {environ.get("HOME", ""), os.path.expanduser("~")}
    return Redactor(homes=homes, users=users, hosts={host, host.partition(".")[0]})


def _system() -> str:
    name = platform.uname()
    libc = " ".join(platform.libc_ver())
    return f"{name.system} {name.release} {name.machine}\nPython {platform.python_version()} {libc}\n"


def _log_tail(environ: Mapping[str, str]) -> str:
    from protocol.endpoint import runtime_folder
    from protocol.errors import ProtocolError

    try:
        with open(runtime_folder(environ).log_file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "backslashreplace")
    except (OSError, ProtocolError) as error:
        return f"no daemon log: {error}\n"


def _without_arguments(build: Build) -> Build:
    """The build with only the program name of a `buildd run`: its arguments are private."""
    summary = build.summary
    return structs.replace(build, summary=structs.replace(summary, command=summary.command.partition(" ")[0]))


def _builds() -> str:
    from buildd.commands.log import open_store
    from buildd.errors import BuilddError
    from buildd.ui.build_table import build_lines

    try:
        store = open_store()
        if store is None:
            return "no store\n"
        with store:
            return "".join(line.text + "\n" for line in build_lines(map(_without_arguments, store.builds(_BUILDS))))
    except BuilddError as error:
        return f"cannot read the builds: {error.message}\n"
