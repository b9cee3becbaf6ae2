"""`buildd explain TARGET|FILE`: per action "hit", or why it would run; with `--last` why it ran. Runs nothing."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable

import msgspec

from buildd.cli import OK
from buildd.commands.common import parser, print_lines
from buildd.commands.log import SEARCHED, build_lines, events_of, open_store
from buildd.commands.perform import carry_out, status_of
from buildd.commands.request import add_request_arguments, project_of, request_from
from buildd.ui.narrator import Telling, reason_lines
from buildd.ui.screen import view_for
from buildd.ui.text import Line, clean, count
from buildd.ui.view import JsonView, Writer
from codegen.plan import RequestError
from protocol.messages import CacheHit, Event, Explained, Failed, Mode, Outcome, Planned, Queued


def run(arguments: list[str]) -> int:
    command = parser(
        "explain",
        "Say for each action whether it would hit, or which inputs, flags, variables and tools make it run.",
        details="A FILE restricts the answer to the actions that name it.",
    )
    command.add_argument("what", metavar="TARGET|FILE", nargs="?", default="", help="default: all default targets")
    add_request_arguments(command)
    last = "of the last build here: what ran and why, and what did not; each save under `buildd watch` is a build"
    command.add_argument("--last", action="store_true", help=last)
    kernels = "why Triton and Inductor compiled what programs below `buildd run` needed; a word is part of a name"
    command.add_argument("--kernels", action="store_true", help=kernels)
    options = command.parse_args(arguments)
    if options.kernels:
        from buildd.commands.explain_kernels import explain

        return explain(options.what, json=options.json)
    environ = dict(os.environ)
    project, file = project_of(options.directory, options.file)
    names = target_names(os.path.join(project, file))
    only = ""
    if options.last:
        target = options.what if options.what in names else ""
        if options.what and not target:
            only = relative_to(project, options.what) if os.path.lexists(options.what) else options.what
        return tell_last(project, target, only, json=options.json)
    targets: tuple[str, ...] = (options.what,) if options.what else ()
    if options.what and options.what not in names and os.path.lexists(options.what):
        only, targets = relative_to(project, options.what), names
    request = request_from(options, targets, Mode.EXPLAIN, environ)
    telling = Telling(mode=Mode.EXPLAIN, only=only, build=request.build_id)
    view = view_for(sys.stdout, sys.stderr, json=options.json, telling=telling, environ=environ)
    return status_of(carry_out(request, view, no_daemon=options.no_daemon, environ=environ))


def tell_last(project: str, target: str = "", only: str = "", *, json: bool = False) -> int:
    """Say of the last build of a project why each action ran or did not.

    Args:
        project: absolute.
        target: restrict the answer to its actions; empty for all.
        only: restrict the answer to actions that name this; empty for all.

    Raises: RequestError where none is kept.
    """
    store = open_store()
    builds = []
    if store is not None:
        with store:
            place = os.path.realpath(project)
            builds = [each for each in store.builds(SEARCHED) if each.project == place and not each.summary.command]
    if not builds:
        raise RequestError("unknown-build", f"no build of {project} is kept", next_step="buildd build makes one")
    build = builds[0]
    events = events_of(build.request_id)
    found = [
        each
        for each in why(events)
        if (not target or each.action.startswith(f"{target}/"))
        and (not only or any(only in part for part in (each.action, *each.reasons)))
    ]
    if json:
        view = JsonView(Writer(sys.stdout))
        for number, body in enumerate(found, 1):
            view.event(Event(request_id=build.request_id, sequence=number, time_ns=build.finished_ns, body=body))
        return OK
    lines = build_lines([build])
    for each in found:
        title = f"{'ran' if each.would_run else 'hit'} {clean(each.action)}"
        lines += reason_lines(title, tuple(reason.removeprefix("hit: ") for reason in each.reasons))
    planned = max((event.body.actions for event in events if isinstance(event.body, Planned)), default=0)
    if not found and not (target or only) and build.outcome is Outcome.BUILT:
        lines.append(Line(f"{count(planned, 'action')}: nothing that they are built of had changed"))
    elif not found and (target or only):
        lines.append(Line(f"no action of that build that ran or was looked up names {clean(target or only)}"))
    elif (left := planned - len(found)) > 0 and not (target or only):
        why_not = "nothing that they are built of had changed since the build before"
        if build.outcome is not Outcome.BUILT:
            why_not = "the build ended before, or nothing that they are built of had changed"
        lines.append(Line(f"{count(left, 'other action')} had no turn: {why_not}"))
    print_lines(lines)
    return OK


def why(events: Iterable[Event]) -> list[Explained]:
    """Of each action of a past build whether it ran, and why; in the order in which they came up."""
    found: dict[str, Explained] = {}
    for event in events:
        match event.body:
            case Queued(action=action, reasons=reasons):
                found[action] = Explained(action=action, would_run=True, reasons=reasons or ("its inputs are new",))
            case CacheHit(action=action, reason=reason):
                found[action] = Explained(action=action, would_run=False, reasons=(reason,))
            case Failed(action=action, message=message) if action in found:
                found[action] = msgspec.structs.replace(
                    found[action], reasons=(*found[action].reasons, f"failed: {message}")
                )
            case _:
                pass
    return list(found.values())


def target_names(path: str) -> tuple[str, ...]:
    """The names of all targets in a project file; none where it cannot be read (the answer then says why)."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ()
    targets = table.get("target", {})
    return tuple(targets) if isinstance(targets, dict) else ()


def relative_to(project: str, path: str) -> str:
    """How plans name a file: relative inside the project, absolute outside."""
    absolute = os.path.abspath(path)
    inside = os.path.relpath(absolute, project)
    return absolute if inside.startswith("..") else inside
