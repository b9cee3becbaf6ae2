"""`buildd cache`: figures of the store, garbage collection, verification, flushing, bundles and the keys to trust.

Works on the store itself, with or without a daemon: the store takes several writers. Knows no area of the store by
name, apart from the programs that shims give it from above.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildd.client.request import PROJECT_FILE, with_files
from buildd.ui.problems import parser, print_note, print_problem
from buildd.ui.text import count, size

if TYPE_CHECKING:
    from buildd.store.areas import Held
    from buildd.store.figures import Stats
    from buildd.store.store import Store

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OK, _MISSING, _USAGE, _FAILED = 0, 1, 2, 3
_SETTLE_S = 5.0


def run(arguments: list[str], *, environ: Mapping[str, str] | None = None) -> int:
    """Carry out `buildd cache ...`; the exit status: 0 done, 1 the tier lacks something that is to be
    pulled, 2 wrong usage, 3 the store or the tier failed.

    Args:
        environ: the environment; os.environ when None.
    """
    environ = os.environ if environ is None else environ
    options = _parser().parse_args(arguments)
    options.environ = environ
    if options.action == "export" and options.targets and options.all:
        print_problem("export takes targets or --all, and not both", command="buildd cache export FILE --all")
        return _USAGE
    from buildd.errors import BuilddError
    from buildd.shims.program_area import ProgramArea
    from buildd.store import location
    from buildd.store.store import Store
    from codegen.errors import RequestError

    try:
        if options.action in _KEYS:
            return _KEYS[options.action](options)
        if options.action == "pull" and options.manifest is not None:
            from buildd.commands.cache_pull import pull_recording

            return pull_recording(options)
        limit_bytes = bound_of(environ)
        place = location.locate(environ, option=options.store)
        if place.notice:
            print_note(place.notice)
        if options.action in ("stats", "query"):
            _settle(environ)
        if options.action == "query":
            from buildd.commands.cache_query import query

            return query(place.folder, options.asked, "json" if options.json else options.format, options.limit)
        areas = (ProgramArea(place.folder, environ),)
        with Store.open(place.folder, limit_bytes=limit_bytes, areas=areas) as store:
            for notice in store.take_notices():
                print_note(notice)
            return _ACTIONS[options.action](store, options)
    except BuilddError as error:
        from buildd.tier.carriers import TierError  # only after an error: it costs time

        print_problem(error.message, file=error.file, command=error.command, next_step=error.next_step)
        return _USAGE if error.is_usage or isinstance(error, TierError) else _FAILED
    except RequestError as error:
        print_problem(error.message, file=error.file, next_step=error.next_step)
        return _USAGE
    except ArgumentTypeError as error:
        print_problem(str(error), next_step="set it to a size such as 20G, or unset it")
        return _USAGE


def size_of(text: str) -> int:
    """The number of bytes in "512M", "20G", "1.5T", "1000" (units are powers of 1024; iB and B may follow)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def bound_of(environ: Mapping[str, str]) -> int | None:
    """The store's bound that the user has set, in bytes; None where there is none. Raises ArgumentTypeError."""
    text = with_files(environ).get("BUILDD_CACHE_SIZE", "").strip()
    try:
        return size_of(text) if text else None
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"BUILDD_CACHE_SIZE: {error}") from error


def _parser() -> Any:
    command = parser("cache", "Inspect, check, trim and empty the store of results; export and import results.")
    command.add_argument(
        "--store", default="", metavar="DIR", help="the store's folder (default: $BUILDD_DIR, else ~/.cache/buildd)"
    )
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, summary: str) -> Any:
        added = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="print figures as JSON")
        return added

    stats = add("stats", "print hits, misses and sizes")
    stats.add_argument(
        "--as", dest="words_of", choices=("ccache", "sccache"), default="", help="print them in the words of that tool"
    )
    stats.add_argument("--zero", action="store_true", help="set all counters to 0, and keep the results")
    add(
        "gc", "remove the least recently used results until the store is within its size limit (BUILDD_CACHE_SIZE)"
    ).add_argument("--limit", type=size_of, metavar="SIZE", help="use this size limit, this time")
    add("verify", "check everything in the store and remove what is damaged")
    add("flush", "remove all results, or those that match PATTERN, without asking").add_argument(
        "pattern", metavar="PATTERN", nargs="?", help="names of actions whose results are removed, such as 'saxpy/*'"
    )
    export = add("export", "write the results that targets need into one file")
    export.add_argument("file", type=Path)
    export.add_argument(
        "targets", nargs="*", metavar="TARGET", help="targets (default: those that `buildd build` builds)"
    )
    export.add_argument("--oci", action="store_true", help="write an OCI image layout: FILE is a folder")
    export.add_argument(
        "--all", action="store_true", help="export every result, and what Triton, torch.compile, JAX and ccache keep"
    )
    export.add_argument("--xla", action="store_true", help="write XLA's timings of a GPU, for `autotune` of kind jax")
    export.add_argument("--gpu", metavar="NAME", default="", help="with --xla: the GPU's name, or a part of it")
    export.add_argument("-C", "--directory", metavar="DIR", default="", help="the project's folder")
    export.add_argument("-f", "--file", dest="project_file", metavar="FILE", default="", help="the project file")
    export.add_argument("--arch", metavar="A", action="append", default=[], help="as for `buildd warm`")
    imports = add(
        "import", "add the results of a file or folder that `export` wrote, or profiles of AITemplate and XLA"
    )
    imports.add_argument("file", type=Path)
    imports.add_argument("--aitemplate", action="store_true", help="the file is AITemplate's cuda.db")
    imports.add_argument("--xla", action="store_true", help="the file has XLA's timings: NAME.autotune of kind jax")
    asking = add("query", "print rows of the store's index; changes nothing")
    asking.add_argument(
        "asked",
        nargs="?",
        default="",
        metavar="SQL|TABLE",
        help="a table (artifacts, builds, history, profiles ...) or an SQL statement; without it, the list of tables",
    )
    asking.add_argument("--format", choices=("table", "csv", "json"), default="table", help="default: table")
    asking.add_argument("--limit", type=int, default=100, metavar="N", help="most rows, 0 for all (default: 100)")
    pull = add("pull", "fetch what targets need from the shared tier into the store, before a build asks for it")
    pull.add_argument(
        "targets", nargs="*", metavar="TARGET", help="targets (default: those that `buildd build` builds)"
    )
    pull.add_argument("-C", "--directory", metavar="DIR", default="", help="the project's folder")
    pull.add_argument("-f", "--file", dest="project_file", metavar="FILE", default="", help="the project file")
    pull.add_argument("--arch", metavar="A", action="append", default=[], help="as for `buildd warm`")
    pull.add_argument(
        "--manifest", metavar="FILE", type=Path, default=None, help="what `buildd run --record FILE` recorded"
    )
    pull.add_argument("--python", metavar="PATH", default="", help="with --manifest: as for `buildd warm`")
    add("push", "sign everything in the store and write it to the shared tier")
    add("key", "print your public key, with which your exports are signed")
    trusted = add("trust", "allow imports that another key has signed; without a key, list the trusted keys")
    trusted.add_argument("key", nargs="?", default="", help="the key that `buildd cache key` prints for its owner")
    trusted.add_argument("name", nargs="?", default="", help="a name for the key's owner")
    trusted.add_argument("--remove", action="store_true", help="stop trusting the key; earlier imports stay")
    return command


def _key(options: Namespace) -> int:
    from buildd.store import signing

    public = signing.own(options.environ).public.hex()
    return _say(options, {"key": public}, [public])


def _trust(options: Namespace) -> int:
    from buildd.store import signing
    from codegen.errors import RequestError

    if options.key:
        try:
            key = signing.public_of(options.key)
        except signing.SigningError as error:
            raise RequestError("bad-value", error.message, next_step=error.next_step) from error
        signing.trust(options.environ, key, options.name, remove=options.remove)
    keys = {key.hex(): name for key, name in signing.trusted(options.environ).items()}
    return _say(options, keys, [f"{key} {name}".strip() for key, name in keys.items()])


_KEYS: dict[str, Callable[[Namespace], int]] = {"key": _key, "trust": _trust}
"""The actions that need no store."""


def _stats(store: Store, options: Namespace) -> int:
    from buildd.store import figures

    if options.zero:
        figures.zero(store)
    found = figures.stats(store)
    if options.zero and not options.json:
        return _say(options, found, ["hits, misses and all other counters are 0 now; the results stay"])
    if options.words_of:
        from buildd.commands.other_caches import figures_as

        return _say(options, found, figures_as(options.words_of, found))
    counts = found.counters
    lookups = counts["hits"] + counts["misses"]
    lines = [
        f"store       {found.folder}",
        f"size        {size(found.held_bytes)} of {size(found.limit_bytes)}",
        f"results     {found.results}",
        f"blobs       {found.blobs}, {size(found.blob_bytes)} kept as {size(found.stored_bytes)}",
        *(_area(name, held) for name, held in found.areas.items() if held.entries),
        f"index       {size(found.index_bytes)}",
        f"hits        {counts['hits']} of {lookups}"
        + (f" ({100 * counts['hits'] / lookups:.0f} %)" if lookups else ""),
        *_listed(_with_rest(_where(found), counts["hits"] - sum(found.hit.values()))),
        f"misses      {counts['misses']}",
        *_listed(_with_rest(found.missed, counts["misses"] - sum(found.missed.values()))),
        *_by_reason("tier", "answers and writes", found.tier),
        *_by_reason("passed", "through to the tool", found.passed_through),
        *_by_reason("whole", "compiles not in steps", found.whole),
        f"time saved  {counts['saved_ms'] / 1000:.1f} s",
        f"evicted     {count(counts['evicted_results'], 'result')}, {size(counts['evicted_bytes'])}",
        f"bad blobs   {counts['bad_blobs']}",
        f"in use by   {count(found.sessions, 'process', 'processes')}, {count(found.leased, 'result')} leased",
    ]
    return _say(options, found, lines)


def _where(found: Stats) -> dict[str, int]:
    """How the hits were found. Those from the tier became hits of the store."""
    remote = found.tier.get("hits", 0)
    return {**found.hit, "of all, fetched from the tier": remote} if remote else found.hit


def _with_rest(kinds: dict[str, int], rest: int) -> dict[str, int]:
    """The kinds, and what was counted by a version that knew no kinds: the rows then add up."""
    return {**kinds, "of builds that an earlier buildd counted": rest} if rest > 0 else kinds


def _area(name: str, held: Held) -> str:
    bytes_held = f", {size(held.bytes)}" if held.bytes else ""
    return f"{name:<11} {held.entries} ({held.note}){bytes_held}"  # a description, so that it suits 1 too


def _settle(environ: Mapping[str, str]) -> None:
    """Let a running daemon write its counters, so that the figures include the latest builds."""
    from buildd.client.connect import connect
    from protocol.errors import ProtocolError

    try:
        with connect(environ, start=False, timeout_s=_SETTLE_S) as client:
            client.status(settle=True)
    except ProtocolError:
        pass


def _by_reason(name: str, what: str, reasons: Mapping[str, int]) -> list[str]:
    """Lines with a count and its reasons; none where the count is 0."""
    if not reasons:
        return []
    return [f"{name:<11} {sum(reasons.values())} {what}", *_listed(reasons)]


def _listed(reasons: Mapping[str, int]) -> list[str]:
    listed = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"  {n:<9} {why}" for why, n in listed]


def _gc(store: Store, options: Namespace) -> int:
    from buildd.store import garbage_collection

    found = garbage_collection.gc(store, limit_bytes=options.limit)
    line = f"removed {count(found.results, 'result')} and {count(found.blobs, 'blob')}, freed {size(found.freed_bytes)}"
    lines = [f"{line}; the store holds {size(found.held_bytes)}"]
    limit = store.limit_bytes if options.limit is None else options.limit
    if found.held_bytes > limit:
        lines.append(
            f"over the size limit of {size(limit)}, because running builds use {count(found.in_use, 'result')}"
        )
    return _say(options, found, lines)


def _verify(store: Store, options: Namespace) -> int:
    from buildd.store import verification

    found = verification.verify(store)
    checked = {"blobs": found.blobs, "results": found.results}
    checked |= {name: area.entries for name, area in found.areas.items()}
    lines = [f"{_counts(checked)} checked"]
    if found.is_sound:
        lines.append("everything is sound")
    damaged = found.removed | found.repaired
    if damaged and found.read_only:
        lines.append(f"damaged: {_counts(damaged)}; nothing was repaired, because the store may not be written")
    elif found.repaired:
        lines.append(f"damaged, made again: {_counts(found.repaired)}")
    if found.removed and not found.read_only:
        lines.append(f"damaged, removed: {_counts(found.removed)}; buildd makes them again when they are needed")
    lines += [f"index: {problem}" for problem in found.index_problems]
    if found.orphans:
        lines.append(f"removed {count(found.orphans, 'file')} that the index did not list")
    lines += [f"not buildd's own, left alone: {path}" for path in found.foreign]
    return _say(options, found, lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(count(number, name.removesuffix("s"), name) for name, number in counts.items())


def _flush(store: Store, options: Namespace) -> int:
    from buildd.store import garbage_collection

    found = garbage_collection.flush(store, options.pattern)
    lines = [
        f"removed {count(found.results, 'result')} and {count(found.blobs, 'blob')}, freed {size(found.freed_bytes)}"
    ]
    if options.pattern and not (found.results or found.in_use):
        lines[0] = f"no action's name matches {options.pattern}: no result was removed"
    if found.in_use:
        lines.append(f"kept {count(found.in_use, 'result')} that running builds use")
    return _say(options, found, lines)


def _export(store: Store, options: Namespace) -> int:
    from buildd.commands import cache_transfer

    return _say(options, *cache_transfer.exported(store, options))


def _push(store: Store, options: Namespace) -> int:
    from buildd.profiling import xla_timings
    from buildd.store.profile_cache import open_profiles
    from buildd.tier.pushing import push

    environ = with_files(options.environ, os.getcwd(), PROJECT_FILE)
    with open_profiles(environ, store, os.getcwd()) as cache:
        xla_timings.take_in(store.folder, cache)
        done = push(store, options.environ, cache.everything())
    entries = f" and {count(done.entries, 'kernel, graph or program', 'kernels, graphs and programs')}"
    lines = [f"{count(done.results, 'result')}{entries if done.entries else ''} written to the tier"]
    if done.profiles:
        lines.append(f"{count(done.profiles, 'profile')} written to the tier")
    if done.left:
        waits = "1 result waits" if done.left == 1 else f"{done.left} results wait"
        lines.append(f"{waits}: the tier {done.problem}. Run `buildd cache push` again")
    figures = {"written": done.results, "entries": done.entries, "profiles": done.profiles}
    _say(options, {**figures, "waiting": done.left, "problem": done.problem}, lines)
    return _FAILED if done.left else _OK


def _pull(store: Store, options: Namespace) -> int:
    from buildd.commands.cache_pull import pull

    done = pull(store, options)
    _say(options, done, done.lines)
    if done.problem:
        print_problem(f"the tier {done.problem}", next_step="run `buildd doctor`, then pull again")
        return _FAILED
    return _MISSING if done.missing else _OK


def _import(store: Store, options: Namespace) -> int:
    from buildd.commands import cache_transfer

    return _say(options, *cache_transfer.imported(store, options))


_ACTIONS: dict[str, Callable[[Store, Namespace], int]] = {
    "stats": _stats,
    "gc": _gc,
    "verify": _verify,
    "flush": _flush,
    "export": _export,
    "push": _push,
    "pull": _pull,
    "import": _import,
}


def _say(options: Namespace, figures: object, lines: list[str]) -> int:
    if options.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    return _OK
