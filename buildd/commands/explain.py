"""`buildd explain TARGET|FILE|ACTION`: says why each action would hit or run; `--last` or a BUILD: why it did.

Runs nothing. The last `buildd run` of a folder is explained like a build, without a buildd.toml.
"""

from __future__ import annotations

import os
import re
import sys
import time
import tomllib
from argparse import SUPPRESS
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buildd.client.perform import carry_out, status_of
from buildd.client.request import add_request_arguments, project_of, request_from, store_of, with_files
from buildd.commands.log import SEARCHED, events_of, open_store
from buildd.exits import OK
from buildd.shims import idle_runs
from buildd.ui.build_table import build_lines
from buildd.ui.layout import reason_lines
from buildd.ui.narrator import Telling
from buildd.ui.pass_through_hints import hint_for, is_check
from buildd.ui.problems import parser, print_lines
from buildd.ui.screen import view_for
from buildd.ui.text import Line, clean, count
from buildd.ui.view import JsonView, Writer
from codegen.errors import RequestError
from protocol.messages import CacheHit, Event, Explained, Failed, Mode, Outcome, Planned, Queued

if TYPE_CHECKING:
    from buildd.shims.run_log import OngoingRun
    from buildd.store.build_log import Build

_PASSED, _FAILED = "passed through: ", "it failed: "
_FEW_ALIKE = 4
"""Actions with the same reasons are told one by one up to so many. A run of torch.compile has hundreds of others."""
_NAMED = 3
_BUILD = re.compile(r"[0-9a-f]{4,32}")


def run(arguments: list[str]) -> int:
    command = parser(
        "explain",
        "Say for each action whether it would hit, or which input, flag, variable or tool makes it run.",
        details="A FILE (a source, a header or an output) or an ACTION, as this command names them, restricts the "
        "answer to the actions that use or make it. A BUILD is the id of a past build or of a "
        "`buildd run`, as `buildd log` lists it. Nothing is run.",
    )
    command.add_argument(
        "what",
        metavar="TARGET|FILE|ACTION|BUILD",
        nargs="?",
        default="",
        help="a target, a file, an action or a build (default: the targets in `default` of `[project]`; without that "
        "key, all)",
    )
    add_request_arguments(command, jobs=SUPPRESS, in_process="answer in this process instead of the daemon")
    last = (
        "explain the last build of this project, or the last `buildd run` of this folder; under `buildd watch` each "
        "save is a build"
    )
    command.add_argument("--last", action="store_true", help=last)
    command.add_argument("--all", action="store_true", help="of a past build, list also actions with the same reasons")
    kernels = (
        "explain what Triton, Inductor and JAX compiled under `buildd run`: kernels, graphs and programs whose name"
        " contains TARGET"
    )
    command.add_argument("--kernels", action="store_true", help=kernels)
    options = command.parse_args(arguments)
    if options.kernels:
        from buildd.commands.explain_kernels import explain

        return explain(options.what, json=options.json)
    environ = dict(os.environ)
    here = os.path.abspath(options.directory or ".")
    if _BUILD.fullmatch(options.what) and not os.path.lexists(os.path.join(here, options.what)):
        build = build_named(options.what)
        if build is not None:
            return tell(build, every=options.all, json=options.json)
    try:
        project, file = project_of(options.directory, options.file)
    except RequestError as error:
        if options.last and not options.file and os.path.isdir(here):
            return tell_last(here, only=options.what, every=options.all, json=options.json)
        if not options.file:
            error.next_step += "; a `buildd run` is explained by buildd explain --last"
            if options.what:
                error.message = f"{options.what} is no build that buildd log lists, and {error.message}"
        raise
    names = target_names(os.path.join(project, file))
    only = ""
    if options.last:
        target = options.what if options.what in names else ""
        if options.what and not target:
            only = relative_to(project, options.what) if os.path.lexists(options.what) else options.what
        return tell_last(project, target, only, every=options.all, json=options.json)
    targets, inputs = asked_of(options.what, names, project)
    only = inputs[0] if inputs else ""
    request = msgspec.structs.replace(request_from(options, targets, Mode.EXPLAIN, environ), inputs=inputs)
    told = with_files(environ, request.project, request.file)
    telling = Telling(mode=Mode.EXPLAIN, only=only, build=request.build_id)
    view = view_for(sys.stdout, sys.stderr, json=options.json, telling=telling, environ=told)
    return status_of(carry_out(request, view, no_daemon=options.no_daemon, environ=environ))


def asked_of(what: str, names: tuple[str, ...], project: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets to plan for the command's argument, and the names to which the answer is restricted.

    Args:
        what: a target; a path of a source, header or output; or an action. Empty for the default targets.
        names: of all targets.
    """
    if not what or what in names:
        return ((what,) if what else ()), ()
    if os.path.lexists(what):
        return names, tuple(dict.fromkeys((relative_to(project, what), what)))
    if os.path.lexists(os.path.join(project, what)):
        return names, (what,)
    within = tuple(name for name in names if what.startswith((f"{name}/", f"{name}.")))
    if within or "/" in what or "." in what:
        return within or names, (what,)  # an action, or an output that is not there
    return (what,), ()  # no action and no path is called so: the answer says which targets there are


def tell_last(project: str, target: str = "", only: str = "", *, every: bool = False, json: bool = False) -> int:
    """Say why each action of a project's last build ran or did not.

    Args:
        project: absolute.
        target: restrict the answer to its actions; empty for all.
        every: list each action, also where many have the same reasons.
        only: restrict the answer to actions whose names or reasons have this, or whose output it is; empty for all.

    Raises: RequestError if the log has no build.
    """
    place = os.path.realpath(project)
    folders = (place, os.path.realpath(os.getcwd()))

    def is_above(called: str) -> bool:
        """A run counts where it was called, or in any folder below."""
        return any(f"{folder}/".startswith(f"{called}/") for folder in folders)

    for build in _builds():
        if is_above(build.project) if build.summary.command else build.project == place:
            runs = idle_runs.noted(Path(store_of(os.environ)))
            idle = [run for run in runs if is_above(run.project) and run.started_ns > build.started_ns]
            return tell(build, target, only, later=idle[-1:], every=every, json=json)
    step = "run buildd build or buildd run first; buildd log lists the builds, and buildd explain BUILD explains one"
    raise RequestError("unknown-build", f"the log has no build of {project}", next_step=step)


def build_named(prefix: str) -> Build | None:
    """The newest build whose id begins so. Raises StoreError."""
    return next((build for build in _builds() if build.build_id.startswith(prefix)), None)


def _builds() -> list[Build]:
    """The last builds, newest first."""
    store = open_store()
    if store is None:
        return []
    with store:
        return list(store.builds(SEARCHED))


def tell(
    build: Build,
    target: str = "",
    only: str = "",
    *,
    later: Sequence[OngoingRun] = (),
    every: bool = False,
    json: bool = False,
) -> int:
    """As `tell_last`, for a build of the log.

    Args:
        later: runs after it that called no compiler.
    """
    events = events_of(build.request_id)
    place = f"{build.project}/"
    found = [
        msgspec.structs.replace(each, action=each.action.removeprefix(place))
        for each in why(events)
        if (not target or each.action.startswith(f"{target}/"))
        and (not only or only.endswith(f"/{each.action}") or any(only in part for part in (each.action, *each.reasons)))
    ]
    if json:
        view = JsonView(Writer(sys.stdout))
        for number, body in enumerate(found, 1):
            view.event(Event(request_id=build.request_id, sequence=number, time_ns=build.finished_ns, body=body))
        return OK
    lines = [*map(_idle_line, later), *build_lines([build])]
    if build.summary.command:
        found.sort(key=_rank)
    alike: dict[tuple[bool, tuple[str, ...], int], list[str]] = {}
    for number, each in enumerate(found):
        # With --all no two are alike.
        alike.setdefault((each.would_run, each.reasons, number if every else 0), []).append(each.action)
    more = f"buildd explain {build.build_id} --all lists all"
    for (ran, reasons, _), actions in alike.items():
        lines += _told("ran" if ran else "hit", actions, reasons, more)
    silent = max(0, build.summary.hits - sum(not each.would_run for each in found)) if not build.summary.command else 0
    planned = max((event.body.actions for event in events if isinstance(event.body, Planned)), default=0)
    if not found and not (target or only) and build.outcome is Outcome.BUILT:
        lines.append(Line(f"{count(planned, 'action')}: no input had changed"))
    elif not found and target:
        lines.append(Line(f"this build ran and looked up no action of {clean(target)}"))
    elif not found and only:
        words = "no action that this build ran or looked up, and no reason, names"
        lines.append(Line(f"{words} {clean(only)}; buildd explain {clean(only)} says which actions use it"))
    elif not (target or only):
        left = max(0, planned - len(found))
        if stood := left if build.outcome is Outcome.BUILT else min(left, silent):
            words = f"hit {count(stood, 'other action')}: no input had changed since the previous build"
            lines.append(Line(words))
        if left > stood:
            lines.append(Line(f"{count(left - stood, 'other action')} not looked up: the build ended first"))
    print_lines(lines)
    return OK


def _idle_line(run: OngoingRun) -> Line:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_ns / 1e9))
    return Line(f"{when}  run -- {clean(run.command)} called no compiler; before it:")


def _told(verb: str, actions: list[str], reasons: tuple[str, ...], more: str) -> list[Line]:
    """Actions of the same reasons: each with its reasons if they are few, otherwise the reasons once."""
    reasons = tuple(reason.removeprefix("hit: ") for reason in reasons)
    hints = (hint_for(reason.removeprefix(_PASSED)) for reason in reasons if reason.startswith(_PASSED))
    reasons = (*reasons, *(f"next: {hint}" for hint in hints if hint))
    if len(actions) <= _FEW_ALIKE:
        return [line for action in actions for line in reason_lines(f"{verb} {clean(action)}", reasons)]
    lines = reason_lines(f"{verb} {count(len(actions), 'action')}", reasons)
    lines += [Line(f"      {clean(action)}") for action in actions[:_NAMED]]
    return [*lines, Line(f"      and {len(actions) - _NAMED} more; {more}")]


def _rank(call: Explained) -> int:
    """A call's place in a list: failures, misses, hits, what was passed through, and last the calls that only asked the
    compiler something, or tried it out. Nothing about those could be better."""
    passed = [reason.removeprefix(_PASSED) for reason in call.reasons if reason.startswith(_PASSED)]
    if passed:
        return 4 if any(map(is_check, passed)) else 3
    if not call.would_run:
        return 2
    return 0 if any(reason.startswith(_FAILED) for reason in call.reasons) else 1


def why(events: Iterable[Event]) -> list[Explained]:
    """Whether and why each action of a past build ran, in the order of the events."""
    found: dict[str, Explained] = {}
    calls: list[Explained] = []
    for event in events:
        match event.body:
            case Explained() as call:
                calls.append(call)  # a run may compile one source several times
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
    return calls or list(found.values())


def target_names(path: str) -> tuple[str, ...]:
    """The names of all targets in a project file; empty if it cannot be read (the answer then says why)."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ()
    targets = table.get("target", {})
    return tuple(targets) if isinstance(targets, dict) else ()


def relative_to(project: str, path: str) -> str:
    """The name of a file in plans: relative inside the project, absolute outside."""
    absolute = os.path.abspath(path)
    inside = os.path.relpath(absolute, project)
    return absolute if inside.startswith("..") else inside
