"""The record of a whole request: stamps of every file and folder that its answer depended on.

While all stamps are the same there is nothing to do: a no-op build of thousands of actions costs one stat a file,
instead of a plan and a look-up for each action. Knows stamps, not keys: if one does not match, the request is planned,
and its look-ups decide by content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from blake3 import blake3

from buildd.builds.active_build import ActiveBuild
from buildd.files import sweep
from buildd.files.digests import Files
from buildd.files.listings import IGNORE, Above, digest, entries, folders_above, names_in
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import Stamp, moved_since, stamp_of, trustworthy
from buildd.identity import package_digest
from buildd.store.store import Store
from codegen.plan import Plan, Recompile, Unmeasured
from codegen.variables.environment import TOOL_PATH
from codegen.variables.settings import settings_of, user_file
from protocol import messages as m


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What was true when the request ended."""

    paths: list[bytes]
    """Files: inputs, tools and outputs, absolute."""
    stamps: bytes
    """Five 64-bit numbers a file, see `files.Stamp` and `sweep.packed`."""
    folders: list[tuple[bytes, int]]
    """Folders whose listing mattered, with `Snapshot.folder_stamp`, or `_NO_STAMP` where `around` tells changes."""
    young: list[tuple[bytes, str]]
    """Files too young for their stamp to be trusted, with their digest: read once more by the next request."""
    targets: tuple[str, ...]
    actions: int
    notices: tuple[str, ...]
    artifacts: list[m.Artifact]
    unmeasured: tuple[Unmeasured, ...] = ()
    """The plan's unmeasured choices: a client that can measure them is not answered from the record."""
    made: int = 0
    """How many of the files are outputs; they are the last ones."""
    results: str = ""
    """Name of the list of results that the outputs came from, see `output_restore`; empty where there is none."""
    around: dict[int, str] = {}
    """Index in `folders` of a folder above outputs -> its `listings.names_in`: outputs come and go there."""


class Standing(NamedTuple):
    """A record whose inputs are unchanged."""

    record: Record
    complete: bool
    """Its outputs are unchanged, too: there is nothing to do."""


_NO_STAMP = -2
"""In place of a folder's stamp that was too young: no stamp is equal to it."""
_STAMP_BYTES = 8 * sweep.FIELDS
_decoder = msgspec.msgpack.Decoder(Record)


def name_of(request: m.Request) -> m.Digest:
    """Store key of a request's record: everything in the request that can change the answer, and buildd's own code."""
    fields = (
        os.path.realpath(request.project),
        request.file,
        request.targets,
        {name: bytes(raw) for name, raw in request.specs.items()},
        request.arch,
        sorted(request.toolchain.items()),
        sorted(request.environment.items()),
        request.interpreter,
        package_digest(),
    )
    return m.Digest(blake3(repr(fields).encode()).hexdigest())


def may_use(request: m.Request) -> bool:
    """Whether a request can be answered from a record at all."""
    return request.mode is m.Mode.BUILD and not request.recache


def recorded(store: Store, request: m.Request) -> Record | None:
    """The record of a request, whether it still holds or not."""
    encoded = store.record(name_of(request))
    if encoded is None:
        return None
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError):
        return None


def still_true(store: Store, files: Files, request: m.Request) -> Record | None:
    """The record of a request if every stamp in it still holds. In a worker thread."""
    found = standing(store, files, request)
    return found.record if found is not None and found.complete else None


def standing(store: Store, files: Files, request: m.Request) -> Standing | None:
    """The record of a request if all inputs of its outputs are unchanged. In a worker thread."""
    record = recorded(store, request)
    if record is None:
        return None
    inputs = len(record.paths) - record.made
    sweeps = sweep.sweep_of(store.folder)
    if not sweeps.all_equal(record.paths[:inputs], record.stamps[: inputs * _STAMP_BYTES]):
        return None
    stamped = _folders_now(record, Snapshot(files, "/"), record.paths[inputs:])
    if stamped is None:
        return None
    is_news = stamped != record.folders
    record = msgspec.structs.replace(record, folders=stamped) if is_news else record
    complete = sweeps.all_equal(record.paths[inputs:], record.stamps[inputs * _STAMP_BYTES :])
    if record.young:
        looked_ns = files.now_ns()
        outputs = frozenset(record.paths[inputs:])
        if not all(_holds(files, path, digest) for path, digest in record.young if path not in outputs):
            return None
        complete = complete and all(_holds(files, path, digest) for path, digest in record.young if path in outputs)
        still = [(path, digest) for path, digest in record.young if not _trusted(os.fsdecode(path), looked_ns)]
        if len(still) < len(record.young):
            record, is_news = msgspec.structs.replace(record, young=still), True
    if complete and is_news:
        save(store, request, record)
    return Standing(record, complete)


def _folders_now(record: Record, snapshot: Snapshot, outputs: Sequence[bytes]) -> list[tuple[bytes, int]] | None:
    """The folders with their present stamps; None where a name came or went that is no output."""
    found = []
    above: Above | None = None
    for index, (folder, seen) in enumerate(record.folders):
        place = os.fsdecode(folder)
        stamp = snapshot.folder_stamp(place)
        if stamp != seen:
            if index not in record.around:
                return None
            above = above or folders_above(map(os.fsdecode, outputs))
            if names_in(place, above) != record.around[index]:
                return None
        found.append((folder, seen if stamp == -1 else stamp))
    return found


def _holds(files: Files, path: bytes, digest: str) -> bool:
    fact = files.fact(os.fsdecode(path))
    return fact is not None and fact.digest == digest


def _trusted(path: str, now_ns: int) -> bool:
    stamp = stamp_of(path)
    return stamp is not None and trustworthy(stamp, now_ns)


def save(store: Store, request: m.Request, record: Record) -> None:
    """Write a record down. In a worker thread."""
    store.save_record(name_of(request), msgspec.msgpack.encode(record))
    if not store.read_only:
        sweep.sweep_of(store.folder).expect(len(record.paths))


def record_of(build: ActiveBuild, results: str = "") -> Record | None:
    """The record of a request that was just built; None where stamps cannot tell all changes. In a worker thread.

    None comes of results that could not be stored, tool output that a hit has to repeat, or a folder that changed just
    now (then the next request gets a record).

    Args:
        results: see `Record.results`.
    """
    lookup, snapshot = build.inputs.lookup, build.inputs.snapshot
    if build.said_something or not build.outputs.in_project or build.plan.recompile is not Recompile.BY_CONTENT:
        return None
    if build.plan.native:
        return None
    if any(action.uncacheable for action in build.plan.actions):
        return None
    now_ns = build.files.now_ns()
    paths: list[bytes] = []
    stamps = bytearray()
    young: list[tuple[bytes, str]] = []
    moved: dict[str, bool] = {}
    used: dict[str, None] = {}
    for action in build.plan.actions:
        discovered = lookup.used_by(action)
        if discovered is None:
            return None
        used.update(dict.fromkeys((*action.inputs, *discovered)))
    generated = (file.path for file in build.plan.files)
    for path in (*used, *generated, *(file.path for tool in build.plan.tools for file in tool.files)):
        if path in build.products:
            continue
        # The client may have heard the end already, and changed a file that was not looked at yet. Whether it held is
        # asked after its stamp was taken: it may be changed between the two.
        was_seen, fact = snapshot.has_seen(path), snapshot.fact(path)
        if fact is None or not (was_seen or held(snapshot.absolute(path), build.started_ns, moved)):
            return None
        _add(snapshot.absolute(path), fact.stamp, fact.digest, now_ns, paths, stamps, young)
    folders = dict(lookup.folders)
    for path in (*build.plan.read, *searched(build.request)):
        is_file = stamp_of(path) is not None
        fact = snapshot.fact(path) if is_file else None
        folder_stamp = 0 if is_file else snapshot.folder_stamp(path)
        # These were read for the plan, before their stamps were taken.
        if not held(path, build.started_ns, moved):
            return None
        if not is_file:
            folders[path] = folder_stamp
        elif fact is None:
            return None
        else:
            _add(path, fact.stamp, fact.digest, now_ns, paths, stamps, young)
    if not _add_outputs(build, now_ns, paths, stamps, young):
        return None
    around = around_outputs(build, folders)
    if any(stamp == -1 and index not in around for index, stamp in enumerate(folders.values())):
        return None
    return Record(
        paths,
        bytes(stamps),
        [(os.fsencode(snapshot.absolute(f)), _NO_STAMP if stamp == -1 else stamp) for f, stamp in folders.items()],
        young,
        build.plan.targets,
        len(build.plan.actions),
        build.plan.notices,
        build.artifacts(),
        build.plan.unmeasured,
        len(build.products),
        results,
        around,
    )


def around_outputs(build: ActiveBuild, folders: Mapping[str, int]) -> dict[int, str]:
    """Names in the folders above outputs, where these are the names that the build has seen, and its outputs."""
    snapshot = build.inputs.snapshot
    above = folders_above(map(snapshot.absolute, build.products))
    around = {}
    for index, (folder, stamp) in enumerate(folders.items()):
        place = snapshot.absolute(folder)
        mine = above.get(os.path.normpath(place))
        found = entries(place) if mine else None
        if not mine or not found or not mine.keys() <= found.keys():
            continue
        seen = snapshot.listed(folder)
        # Looked at before it is compared: it may be changed at any moment.
        now = Snapshot(build.files, "/").folder_stamp(place) if seen is None else 0
        if now == stamp if seen is None else found.keys() == (seen - {IGNORE}) | mine.keys():
            around[index] = digest(found)
    return around


def with_outputs_of(build: ActiveBuild, record: Record) -> Record | None:
    """A record with outputs that were just put in place; None where one has changed since."""
    inputs = len(record.paths) - record.made
    outputs = frozenset(record.paths[inputs:])
    paths, stamps = record.paths[:inputs], bytearray(record.stamps[: inputs * _STAMP_BYTES])
    young = [(path, digest) for path, digest in record.young if path not in outputs]
    if not _add_outputs(build, build.files.now_ns(), paths, stamps, young):
        return None
    return msgspec.structs.replace(record, paths=paths, stamps=bytes(stamps), young=young, made=len(build.products))


def _add_outputs(
    build: ActiveBuild, now_ns: int, paths: list[bytes], stamps: bytearray, young: list[tuple[bytes, str]]
) -> bool:
    """Add the outputs; False where one has changed since it was put in place."""
    snapshot = build.inputs.snapshot
    for path, product in build.products.items():
        known = snapshot.seen(path)  # as it was put in place, not as it may be by now
        if known is None or known[0] is None or known[0].stamp.size != product.size_bytes:
            return False
        _add(snapshot.absolute(path), known[0].stamp, product.digest, now_ns, paths, stamps, young)
    return True


def held(path: str, since_ns: int, moved: dict[str, bool]) -> bool:
    """Whether a file, or a folder's listing, has not changed since a moment."""
    while not os.path.lexists(path):
        path = os.path.dirname(path) or "/"  # it may have been there: then this folder was changed
    try:
        status = os.stat(path)
    except OSError:
        return False
    changed_ns = status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
    mark = Stamp(status.st_dev, 0, 0, status.st_mtime_ns, changed_ns)
    return trustworthy(mark, since_ns) and not moved_since(path, since_ns, moved)


def _add(
    path: str,
    stamp: Stamp,
    digest: str,
    now_ns: int,
    paths: list[bytes],
    stamps: bytearray,
    young: list[tuple[bytes, str]],
) -> None:
    paths.append(os.fsencode(path))
    stamps += sweep.packed(stamp)
    if not trustworthy(stamp, now_ns):
        young.append((os.fsencode(path), digest))


def searched(request: m.Request) -> tuple[str, ...]:
    """Places where another compiler or setting would be found first."""
    environment = settings_of(request).merged()
    folders = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    folders += TOOL_PATH.split(os.pathsep)
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        if environment.get(name, "").startswith("/"):
            folders += [environment[name], f"{environment[name]}/bin"]
    if (compiler := environment.get("CUDACXX", "")).startswith("/"):
        folders.append(os.path.dirname(compiler))
    settings = user_file(environment)
    folders += [os.path.dirname(settings), settings]
    if request.interpreter:
        prefix = os.path.dirname(os.path.dirname(request.interpreter))
        folders.append(f"{prefix}/pyvenv.cfg")
        for version in sorted(_names(f"{prefix}/lib")):
            if version.startswith("python3"):
                site = f"{prefix}/lib/{version}/site-packages"
                folders += [site, f"{site}/nvidia"]
    return tuple(dict.fromkeys(folders))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def tell(record: Record, build: ActiveBuild) -> None:
    """Answer a request whose record still holds."""
    log, counts = build.log, build.counts
    build.plan = Plan(targets=record.targets, actions=())
    for notice in record.notices:
        log.append(m.Notice(text=notice))
    log.append(m.Planned(targets=record.targets, actions=record.actions))
    counts.done = counts.hits = counts.stood = record.actions
    log.append(m.Progress(done=record.actions, total=record.actions, hits=record.actions))
    for artifact in record.artifacts:
        log.append(artifact)
    build.report.tell_done(m.Outcome.BUILT, message="nothing to do")
