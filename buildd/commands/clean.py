"""`buildd clean [TARGET...]`: removes the outputs of targets from the project's build folder.

The store keeps its results, so the next build puts the outputs back. Knows the plan, and no daemon: a build that runs
meanwhile writes its outputs again.
"""

from __future__ import annotations

import os
import shutil
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from pathlib import Path

from buildd.builds.project_outputs import IGNORED
from buildd.client.request import add_request_arguments, project_of, request_from
from buildd.exits import DAEMON, OK
from buildd.files.listings import IGNORE
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.text import Line, clean, size
from codegen.plan import Plan
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "clean",
        "Remove the outputs of targets from the build folder.",
        details="The store keeps the results, and the next build finds them there; `buildd cache flush` removes them.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="targets (default: all targets of the project)")
    add_request_arguments(command, jobs=SUPPRESS, in_process=SUPPRESS, json=SUPPRESS)
    command.add_argument("-n", "--dry-run", action="store_true", help="remove nothing; say what would be removed")
    options = command.parse_args(arguments)
    from buildd.client.in_process import plan_here
    from buildd.client.machine_checks import folder_bytes
    from buildd.commands.explain import target_names
    from codegen.project.project_file import load_project

    targets = tuple(options.targets) or target_names(os.path.join(*project_of(options.directory, options.file)))
    request = request_from(options, targets, Mode.EXPLAIN, dict(os.environ))
    project, build_dir = Path(os.path.realpath(request.project)), load_project(request).settings.build_dir
    found = list(removable(plan_here(request), project, build_dir, targets, every=not options.targets))
    for path in found:
        is_folder = path.is_dir() and not path.is_symlink()
        count_bytes = folder_bytes(path) if is_folder else path.lstat().st_size
        name = f"{clean(str(path))} ({size(count_bytes)})"
        if options.dry_run:
            print_lines([Line(f"would remove {name}")])
            continue
        try:
            shutil.rmtree(path) if is_folder else path.unlink()
        except OSError as error:
            print_problem(f"cannot remove {path}: {error.strerror}", next_step="remove it by hand")
            return DAEMON
        print_lines([Line(f"removed {name}")])
    if not found:
        print_lines([Line("nothing to remove")])
    if not options.dry_run:
        _leave(project / build_dir)
    return OK


def removable(plan: Plan, project: Path, build_dir: str, targets: Sequence[str], *, every: bool) -> Iterator[Path]:
    """Yield the outputs of targets that are there: each folder whole, unless it holds a source.

    Args:
        build_dir: the folder of all outputs, relative to the project.
        every: these are all targets of the project, so folders that several of them share go too.
    """
    outputs = {output.path for action in plan.actions for output in action.outputs} | {file.path for file in plan.files}
    made = [path for path in sorted(outputs) if path.startswith(f"{build_dir}/")]
    sources = {
        os.path.normpath(project / path) for action in plan.actions for path in action.inputs if path not in outputs
    }
    names = {path.removeprefix(f"{build_dir}/").partition("/")[0] for path in made}
    if not every:
        names = {name for target in targets for name in (target, f"{target}-test") if name in names}
    for name in sorted(names):
        folder = project / build_dir / name
        if not os.path.lexists(folder):
            continue
        if any(source.startswith(f"{folder}/") for source in sources):
            mine = (project / path for path in made if path.startswith(f"{build_dir}/{name}/"))
            yield from (path for path in mine if path.is_file())
        else:
            yield folder


def _leave(build: Path) -> None:
    """Remove the folder of all outputs if nothing is in it but buildd's own .gitignore."""
    try:
        if os.listdir(build) == [IGNORE] and (build / IGNORE).read_text(encoding="utf-8") == IGNORED:
            (build / IGNORE).unlink()
        build.rmdir()
    except (OSError, UnicodeDecodeError):
        pass
