"""Nothing to do? One record for a whole request: every file and folder that its answer stood on, with their stamps.

A no-op build of thousands of actions then costs one stat a file, instead of a plan and a look-up for each action.
Knows stamps, not keys: whatever does not match sends the request the long way, which decides by content.
"""

from __future__ import annotations

import os
import stat

import msgspec
from blake3 import blake3

from buildd import sweep
from buildd.building import Building
from buildd.files import Files, Snapshot, Stamp, moved_since, stamp_of, trustworthy
from buildd.identity import package_digest
from buildd.store import Store
from codegen.environment import TOOL_PATH, user_file
from codegen.plan import Recompile, Unmeasured
from protocol import messages as m


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What was true when the request ended."""

    paths: list[bytes]
    """Files: inputs, tools and outputs, absolute."""
    stamps: bytes
    """Five 64-bit numbers a file, see `files.Stamp` and `sweep.packed`."""
    folders: list[tuple[bytes, int]]
    """Folders whose listing mattered, with `Snapshot.folder_stamp`."""
    young: list[tuple[bytes, str]]
    """Files too young for their stamp to be trusted, with their digest: read once more by the next request."""
    targets: tuple[str, ...]
    actions: int
    saved_s: float
    notices: tuple[str, ...]
    artifacts: list[m.Artifact]
    unmeasured: tuple[Unmeasured, ...] = ()
    """Of the plan: whoever can measure that is not answered from here."""


_decoder = msgspec.msgpack.Decoder(Record)


def name_of(request: m.Request) -> m.Digest:
    """What a request's record is kept under: everything in it that can change the answer, and our own code."""
    fields = (
        os.path.realpath(request.project),
        request.file,
        request.targets,
        {name: bytes(raw) for name, raw in request.specs.items()},
        request.arch,
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
    record = recorded(store, request)
    if record is None:
        return None
    if not sweep.sweep_of(store.folder).all_equal(record.paths, record.stamps):
        return None
    snapshot = Snapshot(files, "/")
    for folder, seen in record.folders:
        if snapshot.folder_stamp(os.fsdecode(folder)) != seen:
            return None
    if record.young:
        for path, digest in record.young:
            fact = files.fact(os.fsdecode(path))
            if fact is None or fact.digest != digest:
                return None
        now_ns = files.now_ns()
        still = [(p, d) for p, d in record.young if not _trusted(os.fsdecode(p), now_ns)]
        if len(still) < len(record.young):
            store.save_record(name_of(request), msgspec.msgpack.encode(msgspec.structs.replace(record, young=still)))
    return record


def _trusted(path: str, now_ns: int) -> bool:
    stamp = stamp_of(path)
    return stamp is not None and trustworthy(stamp, now_ns)


def keep(building: Building) -> None:
    """Write the record of a request that was just built, if all of it can be told from stamps. In a worker thread.

    Not kept: results that could not be stored, output of tools that a hit has to say again, a folder that changed just
    now (the next request keeps it then).
    """
    lookup, snapshot = building.lookup, building.snapshot
    if building.said_something or not building.writes_outputs or building.plan.recompile is not Recompile.BY_CONTENT:
        return
    if any(action.uncacheable for action in building.plan.actions):
        return
    now_ns = building.files.now_ns()
    paths: list[bytes] = []
    stamps = bytearray()
    young: list[tuple[bytes, str]] = []
    used: dict[str, None] = {}
    for action in building.plan.actions:
        discovered = lookup.used_by(action)
        if discovered is None:
            return
        used.update(dict.fromkeys((*action.inputs, *discovered)))
    for path in (*used, *(file.path for tool in building.plan.tools for file in tool.files)):
        if path in building.products:
            continue
        fact = snapshot.fact(path)
        if fact is None:
            return
        _add(snapshot.absolute(path), fact.stamp, fact.digest, now_ns, paths, stamps, young)
    for path, product in building.products.items():
        known = snapshot.seen(path)  # as it was put there, not as it may have become
        if known is None or known[0] is None or known[0].stamp.size != product.size_bytes:
            return
        _add(snapshot.absolute(path), known[0].stamp, product.digest, now_ns, paths, stamps, young)
    folders = dict(lookup.folders)
    moved: dict[str, bool] = {}
    for path in (*building.plan.read, *searched(building.request)):
        # These were read for the plan, before anybody took their stamps.
        if not held(path, building.started_ns, moved):
            return
        stamp = stamp_of(path)
        if stamp is not None:
            fact = snapshot.fact(path)
            if fact is None:
                return
            _add(path, fact.stamp, fact.digest, now_ns, paths, stamps, young)
        else:
            folders[path] = snapshot.folder_stamp(path)
    if -1 in folders.values():
        return
    record = Record(
        paths,
        bytes(stamps),
        [(os.fsencode(snapshot.absolute(folder)), stamp) for folder, stamp in folders.items()],
        young,
        building.plan.targets,
        len(building.plan.actions),
        building.counts.saved_s,
        building.plan.notices,
        building.artifacts(),
        building.plan.unmeasured,
    )
    building.store.save_record(name_of(building.request), msgspec.msgpack.encode(record))
    if not building.store.read_only:
        sweep.sweep_of(building.store.folder).expect(len(paths))


def held(path: str, since_ns: int, moved: dict[str, bool]) -> bool:
    """Whether a file or a folder's listing is what it was at a moment."""
    while not os.path.lexists(path):
        path = os.path.dirname(path) or "/"  # it may have been there: then this folder was changed
    try:
        status = os.stat(path)
    except OSError:
        return False
    changed_ns = status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
    mark = Stamp(0, 0, 0, status.st_mtime_ns, changed_ns)
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
    environment = request.environment
    folders = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    folders += TOOL_PATH.split(os.pathsep)
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH"):
        if environment.get(name, "").startswith("/"):
            folders += [environment[name], f"{environment[name]}/bin"]
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


def tell(record: Record, building: Building) -> None:
    """Answer a request whose record still holds."""
    log, counts = building.log, building.counts
    for notice in record.notices:
        log.append(m.Notice(text=notice))
    log.append(m.Planned(targets=record.targets, actions=record.actions))
    counts.done = counts.hits = record.actions
    counts.saved_s = record.saved_s
    log.append(m.Progress(done=record.actions, total=record.actions, hits=record.actions))
    for artifact in record.artifacts:
        log.append(artifact)
    building.tell_done(m.Outcome.BUILT, message="nothing to do")
