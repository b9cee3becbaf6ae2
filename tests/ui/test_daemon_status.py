"""`buildd status` for people: builds with their commands, and no number that contradicts another."""

from __future__ import annotations

import msgspec

from buildd.shims.run_log import OngoingRun
from buildd.ui.daemon_status import status_lines
from protocol.messages import (
    BuildFigures,
    BuildId,
    ClusterStatus,
    GpuProcess,
    GpuStatus,
    JobId,
    JobStatus,
    Mode,
    NodeStatus,
    RequestId,
    RequestStatus,
    Status,
)

NOW_NS = 1_700_000_060 * 10**9


def status(*work: RequestStatus, running: int = 0, queued: int = 0, waiting_for: str = "") -> Status:
    return Status(
        pid=7,
        daemon="buildd/1",
        instance="i",
        state="serving",
        uptime_s=60.0,
        rss_bytes=1 << 20,
        requests=len(work),
        running=tuple(JobStatus(job_id=JobId(n), action=f"{n}.o", elapsed_s=1.0) for n in range(running)),
        queued=queued,
        waiting_for=waiting_for,
        clients=9,
        work=work,
        builds={BuildId("run1"): BuildFigures(hits=1, misses=2)},
        counters={"clients_died": 174},
    )


def compile(name: str, build: str, *, jobs: tuple[int, int] = (1, 0), elapsed_s: float = 2.0) -> RequestStatus:
    return RequestStatus(
        request_id=RequestId(name),
        build_id=BuildId(build),
        mode=Mode.COMPILE,
        project="/home/u/p/build",
        what=f"../{name}.cu",
        elapsed_s=elapsed_s,
        expected_s=8.0 if name == "slow" else 0.0,
        jobs_running=jobs[0],
        jobs_waiting=jobs[1],
    )


def test_a_run_and_its_compiles() -> None:
    run = OngoingRun(build_id=BuildId("run1"), command="make -j8", project="/home/u/p", started_ns=NOW_NS - 9 * 10**9)
    answer = status(
        compile("fast", "run1"),
        compile("slow", "run1", elapsed_s=3.5),
        compile("later", "run1", jobs=(0, 1)),
        running=2,
        queued=1,
        waiting_for="cpu: all 2 are taken",
    )
    assert status_lines(answer, [run], now_ns=NOW_NS) == [
        "buildd/1 is serving, pid 7, up 60 s, 1.0 MiB",
        "make -j8  in /home/u/p, for 9.0 s: 1 hit, 2 misses, 1 waiting",
        "  ../slow.cu  3.5 s / ~8.0 s",
        "  ../fast.cu  2.0 s",
        "2 jobs running, 1 waiting",
        "waiting for cpu: all 2 are taken",
    ]


def test_compiles_of_launchers_and_builds_of_targets() -> None:
    build = RequestStatus(
        request_id=RequestId("b"),
        build_id=BuildId("b"),
        mode=Mode.BUILD,
        project="/p",
        what="ops",
        elapsed_s=1.0,
        jobs_waiting=3,
    )
    lines = status_lines(status(compile("a", "shims"), build, running=1), now_ns=NOW_NS)
    assert lines[1:] == [
        "compilers in /home/u/p/build",
        "  ../a.cu  2.0 s",
        "buildd build ops  in /p, for 1.0 s, 3 waiting",
        "1 job running, 0 waiting",
    ]


def test_an_idle_daemon_has_little_to_say_and_its_counters_are_for_those_who_ask() -> None:
    assert status_lines(status())[1:] == ["nothing is being built"]
    assert "clients_died 174" in status_lines(status(), verbose=True)[-1]


def test_the_queue_of_a_gpu_is_shown_with_everybody_in_it() -> None:
    gpu = GpuStatus(
        gpu="GPU-1",
        holder=GpuProcess(pid=11, what="profile gemm", since_s=2.0),
        waiting=(GpuProcess(pid=12, what="watch conv", since_s=1.0), GpuProcess(pid=13)),
        beside=(GpuProcess(pid=14, what="python train.py"),),
    )
    lines = status_lines(msgspec.structs.replace(status(), gpus=(gpu,)), now_ns=NOW_NS)
    at = lines.index("GPU-1, 2 waiting")
    assert lines[at + 1 : at + 5] == [
        "  measures: profile gemm  pid 11, for 2.0 s",
        "  1. watch conv  pid 12, for 1.0 s",
        "  2. a process  pid 13",
        "  computes without a lease: python train.py  pid 14",
    ]


def test_the_nodes_of_a_cluster_are_shown() -> None:
    nodes = (NodeStatus(name="beta", cpus=8, jobs=3), NodeStatus(name="gamma", cpus=8, avoided=True))
    cluster = ClusterStatus(
        address="head:1", nodes=nodes, done=12, losses=2, second_starts=1, waiting=1, problem="gamma: x.h is another"
    )
    assert status_lines(msgspec.structs.replace(status(), cluster=cluster))[2:] == [
        "cluster  Ray at head:1: 2 nodes with 16 CPUs; 12 jobs came back, 2 lost, 1 begun on a second node",
        "  beta: 3 of 8",
        "  gamma: 0 of 8, cannot be given the right files: gets nothing for a while",
        "  1 job on the way to a node",
        "  last problem: gamma: x.h is another",
    ]
    failed = ClusterStatus(address="head:1", unused_for_s=9.0, problem="ConnectionError: no cluster")
    assert status_lines(msgspec.structs.replace(status(), cluster=failed))[2:] == [
        "cluster  Ray at head:1: not connected; 0 jobs came back",
        "  it failed: not used for the next 9.0 s",
        "  last problem: ConnectionError: no cluster",
    ]
    wrong = ClusterStatus(address="", problem="[ray] must be a table")
    assert (
        status_lines(msgspec.structs.replace(status(), cluster=wrong))[-1] == "cluster  not used: [ray] must be a table"
    )
