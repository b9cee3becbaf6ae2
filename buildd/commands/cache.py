"""`buildd cache`: figures of the store, collection, verification, flushing, bundles and who is trusted with them.

Works on the store itself, with or without a daemon: the store takes several writers. Knows no target: which results
some targets need is told by who calls `run`.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildd.commands.common import parser, print_note, print_problem

if TYPE_CHECKING:
    from buildd import bundle
    from buildd.profiles import Profile
    from buildd.store import Store
    from protocol.messages import Digest

"""The result keys that targets need, by their names."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OK, _USAGE, _FAILED = 0, 2, 3
_SETTLE_S = 5.0


def run(arguments: list[str], *, environ: Mapping[str, str] | None = None) -> int:
    """Carry out `buildd cache ...`; the exit status: 0 done, 2 wrong usage, 3 the store failed.

    Args:
        environ: os.environ when None.
    """
    environ = os.environ if environ is None else environ
    options = _parser().parse_args(arguments)
    options.environ = environ
    if options.action == "export" and bool(options.targets) == options.all:
        print_problem("export needs targets or --all, and not both", command="buildd cache export FILE --all")
        return _USAGE
    from buildd import location
    from buildd.errors import BuilddError
    from buildd.store import Store
    from codegen.plan import RequestError

    try:
        if options.action in _KEYS:
            return _KEYS[options.action](options)
        limit_bytes = bound_of(environ)
        place = location.locate(environ, option=options.store)
        if place.notice:
            print_note(place.notice)
        if options.action == "stats":
            _settle(environ)
        with Store.open(place.folder, limit_bytes=limit_bytes) as store:
            for notice in store.take_notices():
                print_note(notice)
            return _ACTIONS[options.action](store, options)
    except BuilddError as error:
        print_problem(error.message, file=error.file, command=error.command, next_step=error.next_step)
        return _FAILED
    except RequestError as error:
        print_problem(error.message, file=error.file, next_step=error.next_step)
        return _USAGE
    except ArgumentTypeError as error:
        print_problem(str(error), next_step="set it to a size such as 20G, or unset it")
        return _USAGE


def size_of(text: str) -> int:
    """Bytes of "512M", "20G", "1.5T", "1000" (units are powers of 1024; iB and B may follow)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def bound_of(environ: Mapping[str, str]) -> int | None:
    """The store's bound that the user has set, in bytes. Raises ArgumentTypeError."""
    text = environ.get("BUILDD_CACHE_SIZE", "").strip()
    try:
        return size_of(text) if text else None
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"BUILDD_CACHE_SIZE: {error}") from error


def _parser() -> Any:
    command = parser("cache", "The store of results: what is in it, how large it may be, taking it elsewhere.")
    command.add_argument("--store", default="", metavar="DIR", help="the store's folder (default: BUILDD_DIR)")
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, summary: str) -> Any:
        added = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="figures for programs")
        return added

    add("stats", "hits, misses, sizes")
    add("gc", "remove what was not used for longest, down to the bound").add_argument(
        "--limit", type=size_of, metavar="SIZE", help="this bound instead of the store's own, for once"
    )
    add("verify", "read everything, check it, remove what is bad")
    add("flush", "remove results").add_argument(
        "pattern", nargs="?", help="of the actions whose names match, such as 'saxpy/*'; everything without one"
    )
    export = add("export", "write what targets need into one file")
    export.add_argument("file", type=Path)
    export.add_argument("targets", nargs="*", metavar="TARGET")
    export.add_argument("--all", action="store_true", help="every result, and Triton's kernels")
    export.add_argument("-C", "--directory", metavar="DIR", default="", help="the project's folder")
    export.add_argument("-f", "--file", dest="project_file", metavar="FILE", default="", help="the project file")
    export.add_argument("--arch", metavar="A", action="append", default=[], help="as for `buildd warm`")
    imports = add("import", "take in a file that `export` wrote, or AITemplate's profiles")
    imports.add_argument("file", type=Path)
    imports.add_argument("--aitemplate", action="store_true", help="the file is AITemplate's cuda.db")
    add("key", "this user's public key: what they export is signed with it")
    trusted = add("trust", "take in what another key has signed; without a key: which ones are trusted")
    trusted.add_argument("key", nargs="?", default="", help="as `buildd cache key` tells it there")
    trusted.add_argument("name", nargs="?", default="", help="whose it is, for people")
    trusted.add_argument("--remove", action="store_true", help="trust it no more; what was imported stays")
    return command


def _key(options: Namespace) -> int:
    from buildd import signing

    public = signing.own(options.environ).public.hex()
    return _say(options, {"key": public}, [public])


def _trust(options: Namespace) -> int:
    from buildd import signing

    if options.key:
        key = signing.public_of(options.key)
        signing.trust(options.environ, key, options.name, remove=options.remove)
    keys = {key.hex(): name for key, name in signing.trusted(options.environ).items()}
    return _say(options, keys, [f"{key} {name}".strip() for key, name in keys.items()])


_KEYS: dict[str, Callable[[Namespace], int]] = {"key": _key, "trust": _trust}
"""What needs no store."""


def _stats(store: Store, options: Namespace) -> int:
    from buildd import collect

    found = collect.stats(store)
    counts = found.counters
    asked = counts["hits"] + counts["misses"]
    lines = [
        f"store       {found.folder}",
        f"size        {_bytes(found.held_bytes)} of {_bytes(found.limit_bytes)}",
        f"results     {found.results} of {found.actions} actions",
        f"blobs       {found.blobs}, {_bytes(found.blob_bytes)} kept as {_bytes(found.stored_bytes)}",
        f"answers     {found.answers} known to stand-ins, {_bytes(found.answer_bytes)}",
        *(
            [f"kernels     {found.kernels} of Triton's, and graphs of Inductor's, {_bytes(found.kernel_bytes)}"]
            if found.kernels
            else []
        ),
        f"index       {_bytes(found.index_bytes)}",
        f"hits        {counts['hits']} of {asked}" + (f" ({100 * counts['hits'] / asked:.0f} %)" if asked else ""),
        f"misses      {counts['misses']}",
        *_by_reason("handed", "through to the tool", found.handed_through),
        *_by_reason("whole", "compiles not in steps", found.whole),
        f"profiles    {found.profiles} of {found.profiled_problems} problems",
        f"time saved  {counts['saved_ms'] / 1000:.1f} s",
        f"evicted     {counts['evicted_results']} results, {_bytes(counts['evicted_bytes'])}",
        f"bad blobs   {counts['bad_blobs']}",
        f"in use by   {found.sessions} processes, {found.leased} results leased",
    ]
    return _say(options, found, lines)


def _settle(environ: Mapping[str, str]) -> None:
    """Have a daemon that lives write its counters down: what was built a moment ago counts too."""
    from buildd.commands.connect import connect
    from protocol.errors import ProtocolError

    try:
        with connect(environ, start=False, timeout_s=_SETTLE_S) as client:
            client.status(settle=True)
    except ProtocolError:
        pass


def _by_reason(name: str, what: str, reasons: Mapping[str, int]) -> list[str]:
    """How many, and why; nothing where there was none."""
    if not reasons:
        return []
    listed = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"{name:<11} {sum(reasons.values())} {what}", *(f"  {n:<9} {why}" for why, n in listed)]


def _gc(store: Store, options: Namespace) -> int:
    from buildd import collect

    found = collect.gc(store, limit_bytes=options.limit)
    line = f"removed {found.results} results and {found.blobs} blobs, freed {_bytes(found.freed_bytes)}"
    lines = [f"{line}; the store holds {_bytes(found.held_bytes)}"]
    limit = store.limit_bytes if options.limit is None else options.limit
    if found.held_bytes > limit:
        lines.append(f"over the bound of {_bytes(limit)}: {found.in_use} results are in use by running builds")
    return _say(options, found, lines)


def _verify(store: Store, options: Namespace) -> int:
    from buildd import collect

    found = collect.verify(store)
    lines = [f"{found.blobs} blobs, {found.results} results and {found.answers} answers checked"]
    if found.kernels:
        lines.append(f"{found.kernels} kernels of Triton's and graphs of Inductor's checked")
    if found.is_sound:
        lines.append("everything is sound")
    else:
        others = found.bad_values + found.bad_answers + found.bad_kernels
        bad = f"{found.bad_blobs} blobs, {found.bad_results} results, {others} other entries"
        lines.append(f"removed because they were bad: {bad}; they will be built again")
    lines += [f"index: {problem}" for problem in found.index_problems]
    if found.orphans:
        lines.append(f"removed {found.orphans} files that nothing knew of")
    lines += [f"not ours, left alone: {path}" for path in found.foreign]
    return _say(options, found, lines)


def _flush(store: Store, options: Namespace) -> int:
    from buildd import collect

    found = collect.flush(store, options.pattern)
    lines = [f"removed {found.results} results and {found.blobs} blobs, freed {_bytes(found.freed_bytes)}"]
    if found.in_use:
        lines.append(f"{found.in_use} results are in use by running builds and stay")
    return _say(options, found, lines)


def _export(store: Store, options: Namespace) -> int:
    from buildd import bundle, signing
    from buildd.profile_cache import open_profiles

    keys = None if options.all else _keys_of(options, store)
    # A plan takes the kernels that are known to be best: without the profiles another machine would make other plans.
    with open_profiles(os.environ, store, options.directory or os.getcwd()) as cache:
        found = bundle.export(store, keys, options.file, signing.own(options.environ), cache.everything())
    size = _bytes(options.file.stat().st_size)
    return _say(options, found, [f"{options.file}: {_held(found)}, {size}"])


def _held(found: bundle.Contents) -> str:
    said = [f"{found.results} results", f"{found.blobs} blobs"]
    if found.profiles:
        said.append(f"{found.profiles} profiles")
    if found.kernels:
        said.append(f"{found.kernels} kernels of Triton's")
    return ", ".join(said)


def _keys_of(options: Namespace, store: Store) -> list[Digest]:
    """Of all results that the targets need. They must be there: warm them first."""
    from buildd.commands.request import request_from
    from buildd.here import keys_here
    from protocol.messages import Mode

    wanted = Namespace(directory=options.directory, file=options.project_file, arch=options.arch, jobs=None)
    environ = {**os.environ, "BUILDD_DIR": str(store.folder)}
    return list(keys_here(request_from(wanted, tuple(options.targets), Mode.EXPLAIN, environ)))


def _import(store: Store, options: Namespace) -> int:
    if options.aitemplate:
        return _import_profiles(store, options)
    from buildd import bundle, signing

    trusted = signing.trusted(options.environ)
    found = bundle.import_(store, options.file, trusted, lambda profiles: _keep_profiles(store, profiles))
    return _say(options, found, [f"{_held(found)} imported"])


def _keep_profiles(store: Store, profiles: list[Profile], *, older: bool = False) -> None:
    from buildd.errors import StoreError
    from buildd.profile_cache import open_profiles

    with open_profiles(os.environ, store, os.getcwd()) as cache:
        for notice in cache.notices:
            print_note(notice)
        if not cache.save(profiles, older=older):
            raise StoreError("the store may not be written", file=str(store.folder))


def _import_profiles(store: Store, options: Namespace) -> int:
    from buildd import aitemplate_cache

    profiles = aitemplate_cache.read(options.file)
    _keep_profiles(store, profiles, older=True)
    found = aitemplate_cache.figures(profiles)
    return _say(
        options, found, [f"{found.rows} profiles imported, {found.usable} of kernels that buildd makes as well"]
    )


_ACTIONS: dict[str, Callable[[Store, Namespace], int]] = {
    "stats": _stats,
    "gc": _gc,
    "verify": _verify,
    "flush": _flush,
    "export": _export,
    "import": _import,
}


def _say(options: Namespace, figures: object, lines: list[str]) -> int:
    if options.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    return _OK


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
