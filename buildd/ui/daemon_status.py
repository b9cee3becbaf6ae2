"""A daemon's status for people: each build with its command and folder, what it compiles now and since when.

Knows no socket, and nothing of how a build is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from buildd.ui.progress_words import timed
from buildd.ui.text import clean, count, duration, shortened, size
from protocol.messages import (
    BuildFigures,
    BuildId,
    ClusterStatus,
    GpuProcess,
    GpuStatus,
    Mode,
    RequestStatus,
    Status,
    TierStatus,
)

if TYPE_CHECKING:
    from buildd.shims.run_log import OngoingRun

_MOST_NAME = 80
_MOST_SHOWN = 20


def status_lines(
    answer: Status, runs: Sequence[OngoingRun] = (), *, verbose: bool = False, now_ns: int | None = None
) -> list[str]:
    """The lines.

    Args:
        runs: the `buildd run`s that go on.
        verbose: with the daemon's counters.
        now_ns: time of day; the clock's if None.
    """
    lines = [
        f"{answer.daemon} is {answer.state}, pid {answer.pid}, "
        f"up {duration(answer.uptime_s)}, {size(answer.rss_bytes)}",
    ]
    now_ns = time.time_ns() if now_ns is None else now_ns
    ours: dict[BuildId, list[RequestStatus]] = {}
    for each in answer.work:
        ours.setdefault(each.build_id, []).append(each)
    for run in runs:
        head = f"{clean(run.command)}  in {clean(run.project)}, for {duration((now_ns - run.started_ns) / 1e9)}"
        lines += _build_lines(head, ours.pop(run.build_id, []), answer.builds)
    for works in ours.values():
        first = works[0]
        if first.mode is Mode.COMPILE:
            lines += _build_lines(f"compilers in {clean(first.project)}", works, answer.builds)
        else:
            lines += [
                f"buildd {each.mode.value} {clean(each.what)}".rstrip()
                + f"  in {clean(each.project)}, for {duration(each.elapsed_s)}{_waits(each.jobs_waiting)}"
                for each in works
            ]
    if not lines[1:]:
        lines.append("nothing is being built" if not answer.running else f"{count(len(answer.running), 'job')} running")
    elif answer.running:
        lines.append(f"{count(len(answer.running), 'job')} running, {answer.queued} waiting")
    for job in answer.running[:_MOST_SHOWN] if verbose else ():
        memory = f"  {size(job.memory_bytes)}" if job.memory_bytes else ""
        lines.append(f"  {_timed(job.action, job.elapsed_s, job.expected_s)}{memory}")
    if answer.waiting_for:
        lines.append(f"waiting for {clean(answer.waiting_for)}")
    for gpu in answer.gpus:
        lines += _gpu_lines(gpu)
    lines += [f"store {clean(store)}" for store in answer.stores]
    lines += tier_lines(answer.tier)
    lines += cluster_lines(answer.cluster)
    counters = [f"{name} {value}" for name, value in sorted(answer.counters.items()) if value]
    if verbose and counters:
        lines.append(f"{count(answer.clients, 'client')} connected; since the start: {', '.join(counters)}")
    return lines


def _build_lines(head: str, works: Sequence[RequestStatus], builds: Mapping[BuildId, BuildFigures]) -> Iterator[str]:
    figures = builds.get(works[0].build_id) if works else None
    done = f": {count(figures.hits, 'hit')}, {count(figures.misses, 'miss', 'misses')}" if figures else ""
    waiting = sum(each.jobs_waiting > 0 and not each.jobs_running for each in works)
    yield f"{head}{done}{_waits(waiting)}"
    running = sorted((each for each in works if each.jobs_running), key=lambda each: -each.elapsed_s)
    for each in running[:_MOST_SHOWN]:
        yield f"  {_timed(each.what, each.elapsed_s, each.expected_s)}"
    if len(running) > _MOST_SHOWN:
        yield f"  and {len(running) - _MOST_SHOWN} more"


def tier_lines(tier: TierStatus | None) -> Iterator[str]:
    """The shared tier; none where the user has named none."""
    if tier is None:
        return
    if not tier.url:
        yield f"tier  not used: {clean(tier.problem)}"
        return
    usual = f", answers in {duration(tier.usual_s)}" if tier.usual_s else ""
    believed = ", ".join(map(clean, tier.believed)) or "nobody"
    kind = f" ({clean(tier.kind)})" if tier.kind else ""
    yield f"tier  {clean(tier.url)}{kind}{usual}, trusts {believed}, {'written to' if tier.writes else 'only read'}"
    if said := [f"{number} {name}" for name, number in tier.counts.items()]:
        yield f"  {', '.join(said)}" + (f", {tier.waiting} waiting" if tier.waiting else "")
    elif tier.waiting:
        yield f"  {count(tier.waiting, 'result')} waiting to be written"
    if tier.unread_for_s:
        yield f"  it failed: not asked for the next {duration(tier.unread_for_s)}"
    if tier.unwritten_for_s:
        yield f"  writing failed: tried again in {duration(tier.unwritten_for_s)}"
    if tier.problem:
        yield f"  last problem: {clean(tier.problem)}"


def cluster_lines(cluster: ClusterStatus | None) -> Iterator[str]:
    """The cluster and its nodes; none where the user has named none."""
    if cluster is None:
        return
    if not cluster.address:
        yield f"cluster  not used: {clean(cluster.problem)}"
        return
    slots = sum(node.cpus for node in cluster.nodes)
    has = f"{count(len(cluster.nodes), 'node')} with {count(slots, 'CPU')}" if cluster.nodes else "not connected"
    lost = f", {cluster.losses} lost" if cluster.losses else ""
    again = f", {cluster.second_starts} begun on a second node" if cluster.second_starts else ""
    yield f"cluster  Ray at {clean(cluster.address)}: {has}; {count(cluster.done, 'job')} came back{lost}{again}"
    for node in cluster.nodes:
        other = ", cannot be given the right files: gets nothing for a while" if node.avoided else ""
        yield f"  {clean(node.name)}: {node.jobs} of {node.cpus}{other}"
    if cluster.waiting:
        yield f"  {count(cluster.waiting, 'job')} on the way to a node"
    if cluster.unused_for_s:
        yield f"  it failed: not used for the next {duration(cluster.unused_for_s)}"
    if cluster.problem:
        yield f"  last problem: {clean(cluster.problem)}"


def _gpu_lines(gpu: GpuStatus) -> Iterator[str]:
    yield f"{clean(gpu.gpu)}{_waits(len(gpu.waiting))}"
    if gpu.holder is not None:
        yield f"  measures: {_process(gpu.holder)}"
    for number, each in enumerate(gpu.waiting[:_MOST_SHOWN], start=1):
        yield f"  {number}. {_process(each)}"
    for each in gpu.beside:
        yield f"  computes without a lease: {_process(each)}"


def _process(each: GpuProcess) -> str:
    since = f", for {duration(each.since_s)}" if each.since_s else ""
    what = shortened(clean(each.what), _MOST_NAME) if each.what else "a process"
    return f"{what}  pid {each.pid}{since}"


def _waits(number: int) -> str:
    return f", {number} waiting" if number else ""


def _timed(name: str, elapsed_s: float, expected_s: float) -> str:
    return f"{shortened(clean(name), _MOST_NAME)}  {timed(elapsed_s, expected_s)}"
