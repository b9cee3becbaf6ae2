"""Restores outputs that are gone, without a plan, if all their inputs are as the record of the last answer says.

This needs one list: each action's name, the key of its result, the places of its outputs. The list is stored beside
the record (`up_to_date`). The record names the list by its content, so the list always belongs to the record's inputs.
Knows no parts of keys: if a result was flushed or lost, the request is planned and looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from buildd.builds import up_to_date
from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import HIT
from buildd.errors import BuilddError
from buildd.store.store import Result, Store
from codegen.plan import Kept, Output, Plan
from protocol import messages as m


class _Made(msgspec.Struct, frozen=True, array_like=True):
    action: str
    key: bytes
    outputs: tuple[Output, ...]


Found = list[tuple[str, Result, float]]
"""Names of actions, the result of each, and the time that it spared."""
_THREADS = 2
"""More would only wait for the interpreter."""
_FEW = 4
"""Outputs that are put in place by one thread."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Made])


def results_of(build: ActiveBuild) -> bytes:
    """The encoded list for a request that was just built; empty where not all of its results are in the store."""
    made = []
    for action in build.plan.actions:
        key = build.keys.get(action.name)
        if key is None or action.kept is not Kept.FILES:
            return b""
        made.append(_Made(action.name, bytes.fromhex(key), action.outputs))
    try:
        return _encoder.encode(made)
    except UnicodeEncodeError:  # a name that is no text
        return b""


def keep(build: ActiveBuild) -> None:
    """Write down the record and the list, which spare the next request its plan and look-ups. In a worker thread."""
    results = results_of(build)
    name = blake3(results).hexdigest() if results else ""
    record = up_to_date.record_of(build, name)
    if record is None:
        return
    if results:
        build.store.save_record(m.Digest(name), results)
    up_to_date.save(build.store, build.request, record)


async def put_back(
    build: ActiveBuild, record: up_to_date.Record, in_pool: Callable[..., Awaitable[Any]]
) -> Found | None:
    """Put every output in place that is not as it should be; None where that takes a plan.

    Args:
        in_pool: runs a function in a worker thread.
    """
    wanted: Sequence[_Made] = await in_pool(_recall, build.store, record)
    size = max(_FEW, -(-len(wanted) // _THREADS))
    batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
    parts: list[Found] = await asyncio.gather(*(in_pool(_put, build, batch) for batch in batches))
    found = [each for part in parts for each in part]
    if len(found) == record.actions:
        return found
    build.products.clear()
    build.inputs.renew()
    return None


def _put(build: ActiveBuild, batch: Iterable[_Made]) -> Found:
    """Put outputs in place, up to the first that cannot be."""
    found: Found = []
    try:
        for made in batch:
            result = build.store.result(m.Digest(made.key.hex()))
            if result is None or not build.results.put(made.outputs, result):
                break
            found.append((made.action, result, build.outputs.spared_s(made.outputs, result)))
    except (OSError, BuilddError):
        pass  # the look-up meets it again, and knows the action
    return found


def _recall(store: Store, record: up_to_date.Record) -> Sequence[_Made]:
    encoded = store.record(m.Digest(record.results)) if record.results else None
    if encoded is None or blake3(encoded).hexdigest() != record.results:
        return ()
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError):
        return ()


def tell(record: up_to_date.Record, found: Found, build: ActiveBuild) -> None:
    """Answer a request whose outputs were put back."""
    log, counts = build.log, build.counts
    build.plan = Plan(targets=record.targets, actions=())
    for notice in record.notices:
        log.append(m.Notice(text=notice))
    log.append(m.Planned(targets=record.targets, actions=record.actions))
    for action, result, saved_s in found:
        counts.saved_s += saved_s
        log.append(m.CacheHit(job_id=HIT, action=action, reason="same inputs", saved_s=saved_s, kernels=result.kernels))
    counts.done = counts.hits = record.actions
    for artifact in record.artifacts:
        log.append(artifact)
    log.append(m.Progress(done=record.actions, total=record.actions, hits=record.actions))
    build.report.tell_done(m.Outcome.BUILT)


def keep_again(build: ActiveBuild, record: up_to_date.Record) -> None:
    """Write a record with the outputs as they are now. In a worker thread."""
    renewed = up_to_date.with_outputs_of(build, record)
    if renewed is not None:
        up_to_date.save(build.store, build.request, renewed)
