"""Outputs that are gone, put back without a plan: all that they were made of is as the last answer's record says.

What a build then needs to know is a list: each action's name, the key of its result, where its outputs go. It is kept
beside the record (`uptodate`), which names it by its content, so that one never belongs to another's inputs. Knows no
key's parts: a result that was flushed or lost sends the request the long way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from buildd import uptodate
from buildd.building import HIT, Building
from buildd.errors import BuilddError
from buildd.store import Result, Store
from codegen.plan import Kept, Output, Plan
from protocol import messages as m


class _Made(msgspec.Struct, frozen=True, array_like=True):
    action: str
    key: bytes
    outputs: tuple[Output, ...]


Found = list[tuple[str, Result]]
"""Names of actions, and what the store has of each."""
_THREADS = 2
"""More would only wait for the interpreter."""
_FEW = 4
"""Outputs that are put in place by one thread."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Made])


def results_of(building: Building) -> bytes:
    """That list for a request that was just built; empty where not all of its results are in the store."""
    made = []
    for action in building.plan.actions:
        key = building.keys.get(action.name)
        if key is None or action.kept is not Kept.FILES:
            return b""
        made.append(_Made(action.name, bytes.fromhex(key), action.outputs))
    try:
        return _encoder.encode(made)
    except UnicodeEncodeError:  # of a name that is no text
        return b""


def keep(building: Building) -> None:
    """Write down what spares the next request its plan or even its look-ups. In a worker thread."""
    results = results_of(building)
    name = blake3(results).hexdigest() if results else ""
    record = uptodate.record_of(building, name)
    if record is None:
        return
    if results:
        building.store.save_record(m.Digest(name), results)
    uptodate.save(building.store, building.request, record)


async def put_back(building: Building, record: uptodate.Record, in_pool: Callable[..., Awaitable[Any]]) -> Found | None:
    """Put every output in place that is not what it should be; None where that takes a plan.

    Args:
        in_pool: runs a function in a worker thread.
    """
    wanted: Sequence[_Made] = await in_pool(_recall, building.store, record)
    size = max(_FEW, -(-len(wanted) // _THREADS))
    batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
    parts: list[Found] = await asyncio.gather(*(in_pool(_put, building, batch) for batch in batches))
    found = [each for part in parts for each in part]
    if len(found) == record.actions:
        return found
    building.products.clear()
    building.renew()
    return None


def _put(building: Building, batch: Iterable[_Made]) -> Found:
    """Put outputs in place, up to the first that cannot be."""
    found: Found = []
    try:
        for made in batch:
            result = building.store.result(m.Digest(made.key.hex()))
            if result is None or not building.put(made.outputs, result):
                break
            found.append((made.action, result))
    except (OSError, BuilddError):
        pass  # said where it happens again: of which action it is
    return found


def _recall(store: Store, record: uptodate.Record) -> Sequence[_Made]:
    encoded = store.record(m.Digest(record.results)) if record.results else None
    if encoded is None or blake3(encoded).hexdigest() != record.results:
        return ()
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError):
        return ()


def tell(record: uptodate.Record, found: Found, building: Building) -> None:
    """Answer a request whose outputs were put back."""
    log, counts = building.log, building.counts
    building.plan = Plan(targets=record.targets, actions=())
    for notice in record.notices:
        log.append(m.Notice(text=notice))
    log.append(m.Planned(targets=record.targets, actions=record.actions))
    for action, result in found:
        saved_s = result.timing.wall_s
        counts.saved_s += saved_s
        log.append(m.CacheHit(job_id=HIT, action=action, reason="same inputs", saved_s=saved_s, kernels=result.kernels))
    counts.done = counts.hits = record.actions
    for artifact in record.artifacts:
        log.append(artifact)
    log.append(m.Progress(done=record.actions, total=record.actions, hits=record.actions))
    building.tell_done(m.Outcome.BUILT)


def keep_again(building: Building, record: uptodate.Record) -> None:
    """Write down how the outputs are now. In a worker thread."""
    renewed = uptodate.with_outputs_of(building, record)
    if renewed is not None:
        uptodate.save(building.store, building.request, renewed)
