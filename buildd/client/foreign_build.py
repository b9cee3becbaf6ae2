"""A build run by another tool, with its compilers going through the daemon: its environment and its figures.

`buildd run` and watches of other tools' trees use this. Knows the daemon's client and the shims' environment; starts no
command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buildd.errors import BuilddError
from buildd.files.cmake_cache import source_folder
from buildd.store.found_notes import FoundKernels
from buildd.ui.problems import told_if_slow
from buildd.ui.text import clean, count, duration
from protocol.errors import ProtocolError
from protocol.messages import BuildFigures, BuildId, Explained

if TYPE_CHECKING:
    from buildd.client.budget_share import BudgetShare
    from buildd.shims.jobserver import Jobserver
    from buildd.shims.run_log import RunNotes
    from buildd.store.hit_notes import Notes
    from protocol.client import Client

NOTHING = FoundKernels()
_STATUS_S = 5.0
_PASSED = "passed through: "
_MOST_NAMED = 3
_WIDTHS = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")


def variables(environ: Mapping[str, str], build: str, jobs: int | None = None) -> dict[str, str]:
    """The variables to change in the command's environment. Makes the shims.

    Raises: ProtocolError, BuilddError, OSError.
    """
    from buildd.shims import environment

    with told_if_slow("buildd is compiling its shims, which later commands use again"):
        found = environment.variables(environ, build)
    if jobs is not None:
        found |= dict.fromkeys(_WIDTHS, str(jobs))
        found["MAKEFLAGS"] = f"{environ.get('MAKEFLAGS', '')} -j{jobs}".strip()
    return found


def offered_jobserver(environ: dict[str, str], jobs: int | None) -> AbstractContextManager[object]:
    """Offer a build a jobserver with this many jobs; changes `environ`. A build that has a jobserver keeps it.

    Args:
        jobs: None where the user named no number: this build's share of what the daemon runs at once, for tools that
            would choose a number by themselves.
    """
    from buildd.client.budget_share import BudgetShare
    from buildd.shims.interposition import folder_of
    from buildd.shims.jobserver import Jobserver, find_builders, takes_fifo
    from buildd.shims.jobserver import variables as telling
    from buildd.shims.shim_folders import mark_tools, stand_for
    from codegen.variables.settings import read_settings
    from protocol.endpoint import runtime_folder

    if "--jobserver" in environ.get("MAKEFLAGS", "") or environ.get("BUILDD_JOBSERVER"):
        return nullcontext()
    tools = find_builders(environ)
    unasked = jobs is None
    if unasked and not takes_fifo(tools):
        return nullcontext()
    share = BudgetShare(environ, read_settings(environ).number("BUILDD_JOBS")) if unasked else None
    now = jobs or (share() if share is not None else 1)
    jobs = jobs or (share.most if share is not None else 1)
    if unasked and jobs < 2:
        return nullcontext()
    try:
        server = Jobserver(runtime_folder(environ).path, now, share)
    except BuilddError:
        return nullcontext()  # each tool still gets the number of jobs as an option
    environ.update(telling(server, jobs, tools, unasked=unasked))
    if folder := folder_of(environ):
        mark_tools(Path(folder), tools)
    else:
        place = stand_for(Path(environ["BUILDD_DIR"]), tools, environ)
        environ["PATH"] = f"{place.programs}{os.pathsep}{environ['PATH']}"
    return server if share is None else _sharing(server, share)


@contextmanager
def _sharing(server: Jobserver, share: BudgetShare) -> Iterator[None]:
    with closing(share), server:
        yield


def bound_kernels(environ: Mapping[str, str]) -> None:
    """Trim the kernels and graphs that programs keep beside the store to their share of its bound.

    The programs that write them know no bound.
    """
    from buildd.store import shared_kernels

    store = Path(environ["BUILDD_DIR"])
    if shared_kernels.held(store)[0] > 0:
        from buildd.store.store import default_limit
        from codegen.variables.settings import read_settings

        limit_bytes = read_settings(environ).number("BUILDD_CACHE_SIZE")
        shared_kernels.trim(store, (limit_bytes or default_limit(store)) // shared_kernels.SHARE)


def figures_of(
    environ: Mapping[str, str],
    build: BuildId,
    notes: Notes | None,
    calls: RunNotes | None = None,
    client: Client | None = None,
) -> BuildFigures:
    """Figures of a build's compiles so far: of the calls that daemons have noted, plus the hits that shims noted.

    Args:
        notes, calls: None where the store may not be written. Then shims note nothing, and the daemon that runs is
            asked: it knows nothing of the calls that came to an earlier one. It is asked too if something may have run:
            a full disk has no room for notes.
        client: a connection from the build's beginning, if there is one. Its daemon may have ended: shims start another
            one.
    """
    found = calls.figures() if calls is not None else None
    hits, saved_s = notes.figures() if notes is not None else (0, 0.0)
    if found is None or found.misses or not (found.hits or hits):
        told = _daemons_figures(environ, build, client)
        found = told if found is None or told.unkept else found
    return msgspec.structs.replace(found, hits=found.hits + hits, saved_s=found.saved_s + saved_s)


def _daemons_figures(environ: Mapping[str, str], build: BuildId, client: Client | None) -> BuildFigures:
    from buildd.client.connect import connect
    from protocol.client import find
    from protocol.endpoint import runtime_folder

    try:
        if client is not None and client.route.endpoint == find(runtime_folder(environ)):
            return client.status().builds.get(build, BuildFigures())
        with connect(environ, start=False, timeout_s=_STATUS_S) as another:
            return another.status().builds.get(build, BuildFigures())
    except ProtocolError:
        return BuildFigures()


def paths_below(folder: str, map_paths: bool | None) -> dict[str, str]:
    """The variables that say how paths count in the keys of a build.

    Args:
        folder: where the build was called.
        map_paths: --map-paths or --no-map-paths; None for neither.
    """
    folder = os.path.realpath(folder)
    mapped = {} if map_paths is None else {"BUILDD_MAP_PATHS": _checkout_of(folder) if map_paths else "no"}
    return {"BUILDD_RUN_FOLDER": folder, **mapped}


def _checkout_of(folder: str) -> str:
    """The folder of the sources if a build is called in CMake's build folder below it, else the folder itself."""
    sources = source_folder(folder)
    return sources if sources and folder.startswith(f"{sources}/") else folder


def summary(figures: BuildFigures, found: FoundKernels = NOTHING) -> str:
    """The result of a build's compiles, in one line; empty if no compiler was called and nothing found.

    Args:
        found: traces, graphs and kernels that its programs found in the store.
    """
    from buildd.ui.pass_through_hints import hint_for, is_check

    checks = sum(number for reason, number in figures.passed_through.items() if is_check(reason))
    others = {reason: number for reason, number in figures.passed_through.items() if not is_check(reason)}
    passed = sum(others.values())
    compiled = figures.hits + figures.misses + figures.failures
    misses = count(max(0, figures.misses - figures.failures), "miss", "misses")
    misses += f" ({_most(figures.missed)})" if figures.missed else ""
    parts = [count(figures.hits, "hit"), misses] if compiled else []
    if figures.failures:
        parts.append(f"{figures.failures} failed")
    if figures.cancelled:
        parts.append(f"{figures.cancelled} cancelled")
    asked = [count(checks, "compiler check")] if checks else []
    if (passed or checks) and not (compiled or figures.cancelled or any(map(hint_for, others))):
        # Only such calls: the cache could do nothing, and nothing was slow.
        calls = [f"{count(passed, 'compiler call')} ({_most(others)})"] if passed else []
        parts.append(f"nothing to compile in {' and '.join([*calls, *asked])}")
    else:
        parts += [f"{passed} passed through ({_most(others)})"] if passed else []
        parts += asked
    kinds = [
        (found.traces, "Dynamo trace"),
        (found.graphs, "graph"),
        (found.kernels, "Triton kernel"),
        (found.programs, "JAX program"),
    ]
    if kept := [count(number, noun) for number, noun in kinds if number]:
        parts.append(f"{' and '.join([*filter(None, [', '.join(kept[:-1])]), kept[-1]])} from the store")
    if figures.hits:
        parts.append(f"{duration(figures.saved_s)} saved")
    return ", ".join(parts)


def _most(counts: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts."""
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:4]
    return ", ".join(f"{name} {number}" for name, number in most)


def odd_options(calls: Iterable[Explained]) -> Iterator[str]:
    """Which options kept calls out of the cache, in one line; nothing if none did."""
    from codegen.compilers.command_parser import Reason

    of_options = (Reason.UNKNOWN_OPTION.value, Reason.UNSUPPORTED_OPTION.value)
    reasons = [why.removeprefix(_PASSED) for call in calls for why in call.reasons if why.startswith(_PASSED)]
    parts = [why.partition(": ") for why in reasons]
    named = [clean(detail) for detail in dict.fromkeys(detail for name, _, detail in parts if name in of_options)]
    if named:
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        shown = ", ".join(named[:_MOST_NAMED])
        # A detail may be a sentence: "-fstack-usage writes a report".
        yield f"options keep calls out of the cache: {shown}{more} (`buildd explain --last` names the calls)"


def advice(figures: BuildFigures, mapped: str = "") -> Iterator[str]:
    """Ways to more hits in later builds of this kind.

    Args:
        mapped: BUILDD_MAP_PATHS: the folder that --map-paths names, "no" for --no-map-paths, empty for neither.
    """
    by_folder = mapped not in ("", "no")
    for folder, number in sorted(figures.elsewhere.items(), key=lambda pair: -pair[1])[:1]:
        same = "1 miss has" if number == 1 else f"{number} misses have"
        way = "" if by_folder else f"; {_WITH_MAPPED}"
        yield f"{same} the same inputs as results made in {folder}, but the objects may contain the folder's path{way}"
    if figures.holding_paths and not by_folder:
        some = f"{count(figures.holding_paths, 'miss', 'misses')} made an object with the path of a folder whose name"
        way = "without --no-map-paths later builds hit" if mapped else f"(__FILE__ or -g): {_WITH_MAPPED}"
        yield f"{some} changes with each build{':' if mapped else ''} {way}"
    if figures.unmappable:
        alone = count(figures.unmappable, "object")
        yield f"{alone} cannot be shared between checkouts, even with --map-paths: `buildd explain --last` says why"


_WITH_MAPPED = (
    "builds with --map-paths, called in a folder above the sources, find each other's results; the first of them"
    " compiles every source once more"
)
