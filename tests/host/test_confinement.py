"""Limits of processes: read from the kernel, and from trees of files as kernels write them for cgroups."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.host.admission import Ask, Budget, Running
from buildd.host.claims import Claims
from buildd.host.confinement import Confinement, confinement_of
from buildd.host.gate import HostGate
from buildd.host.memory import HostMemory
from buildd.state.events import OwnLimit
from protocol.messages import JobId

GIB = 1 << 30


class Cgroups:
    """A /proc and a /sys/fs/cgroup in which this process is in the given cgroups."""

    def __init__(self, folder: Path, membership: str) -> None:
        self.folder = folder
        self.write(f"proc/{os.getpid()}/cgroup", membership)

    def write(self, path: str, text: object) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def read(self, beside: Confinement | None = None) -> Confinement:
        found = confinement_of(
            os.getpid(), beside=beside, proc=str(self.folder / "proc"), cgroup=str(self.folder / "cgroup")
        )
        assert found is not None
        return found


def test_a_process_that_is_gone_has_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert confinement_of(process.pid) is None


def test_cgroups_without_a_limit_are_none(tmp_path: Path) -> None:
    terminal = Cgroups(tmp_path / "one", "0::/user.slice/session-1.scope")
    for file, text in (("memory.max", "max"), ("memory.high", "max"), ("cpu.max", "max 100000")):
        terminal.write(f"cgroup/user.slice/session-1.scope/{file}", text)
    other = Cgroups(tmp_path / "two", "0::/user.slice/session-2.scope")
    assert terminal.read() == other.read()
    assert terminal.read().cgroups == () and terminal.read().cpus == len(os.sched_getaffinity(0))


def test_version_2_limits_count_wherever_they_are_above(tmp_path: Path) -> None:
    host = Cgroups(tmp_path, "0::/box/inner")
    host.write("cgroup/box/inner/cpu.max", "max 100000")
    host.write("cgroup/box/cpu.max", "50000 100000")
    host.write("cgroup/box/memory.max", GIB)
    found = host.read()
    assert found.cgroups == (f"{tmp_path}/cgroup/box",) and found.cpus == 1
    host.write("cgroup/box/inner/memory.high", GIB)
    assert host.read().cgroups == (f"{tmp_path}/cgroup/box", f"{tmp_path}/cgroup/box/inner")


def test_version_1_limits_count(tmp_path: Path) -> None:
    host = Cgroups(tmp_path, "4:memory:/box\n2:cpu,cpuacct:/box\n0::/")
    host.write("cgroup/memory/box/memory.limit_in_bytes", GIB)
    host.write("cgroup/cpu/box/cpu.cfs_quota_us", -1)
    assert host.read().cgroups == (f"{tmp_path}/cgroup/memory/box",)
    host.write("cgroup/cpu/box/cpu.cfs_quota_us", 150_000)
    host.write("cgroup/cpu/box/cpu.cfs_period_us", 100_000)
    assert host.read().quota == 2


def test_a_step_of_slurm_counts_without_a_limit(tmp_path: Path) -> None:
    step = "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
    host = Cgroups(tmp_path, f"0::{step}")
    assert host.read().cgroups == (step,)


def test_the_same_cgroups_are_read_once(tmp_path: Path) -> None:
    host = Cgroups(tmp_path, "0::/box")
    host.write("cgroup/box/memory.max", GIB)
    before = host.read()
    host.write("cgroup/box/memory.max", "max")
    assert host.read(beside=before) == before != host.read()


@pytest.mark.parametrize(
    ("around", "has_limits"),
    [
        ("", False),
        ("os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); os.nice(1)", False),
        ("resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))", True),
    ],
)
def test_only_resource_limits_keep_a_job_from_travelling(around: str, has_limits: bool) -> None:
    code = f"import os, resource; {around or 'pass'}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = confinement_of(process.pid)
        process.communicate(b"\n")
    assert found is not None and found.has_limits is has_limits


def test_limits_of_resources_are_compared() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    before = confinement_of(os.getpid())
    resource.setrlimit(resource.RLIMIT_CPU, (100_000, hard))
    try:
        assert confinement_of(os.getpid()) != before
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


# ---------------------------------------------------------------- admission

HOST = HostMemory(64 * GIB, 60 * GIB)
BOX = Confinement(frozenset({0, 1, 2, 3}), (0, 0), (), ("/box",))


def within(limits: Confinement, *, gib: float, available: float) -> HostGate:
    inside = HostMemory(int(gib * GIB), int(available * GIB), limited_by="/box/memory.max")
    return HostGate(Budget(16), Claims("/nonexistent/folder"), lambda: HOST, look_within=lambda each: inside)


def job(number: int, gib: float, limits: Confinement | None, resident: float = 0.0) -> Running:
    return Running(JobId(number), 1, int(gib * GIB), int(resident * GIB), within=limits)


def test_a_client_gets_no_more_than_its_cgroup_has() -> None:
    gate = within(BOX, gib=4, available=4)
    ask = Ask(1, 3 * GIB, within=BOX)
    assert gate.refusal(ask, [job(1, 3, None)]) == "", "jobs elsewhere use other memory"
    refused = gate.refusal(ask, [job(1, 3, BOX)])
    assert "memory: needs 3.0 GiB" in refused and "limits of its client" in refused and isinstance(refused, OwnLimit)
    assert gate.refusal(Ask(1, 3 * GIB), [job(1, 3, BOX)]) == "", "others have the whole machine"


def test_a_client_has_as_many_jobs_as_processors() -> None:
    gate = within(BOX, gib=64, available=60)
    assert gate.refusal(Ask(1, 1, within=BOX), [job(n, 0.1, BOX) for n in range(3)]) == ""
    assert "cpu: needs 1, 0 of 4 free" in gate.refusal(Ask(1, 1, within=BOX), [job(n, 0.1, BOX) for n in range(4)])


def test_the_first_job_of_a_client_always_starts() -> None:
    gate = within(BOX, gib=1, available=0.1)
    assert gate.refusal(Ask(1, 3 * GIB, within=BOX), [job(1, 3, None)]) == ""


def test_a_job_of_the_client_gives_way_when_its_cgroup_is_short() -> None:
    gate = within(BOX, gib=4, available=0.01)
    running = [job(1, 3, None, 3), job(2, 2, BOX, 2), job(3, 2, BOX, 1.9)]
    assert gate.refusal(Ask(1, 1, within=BOX), running)
    assert gate.relieve(running) == JobId(3)


@pytest.mark.parametrize("beside", [[], [job(1, 1, BOX, 1)]])
def test_the_only_job_of_a_client_is_not_ended(beside: list[Running]) -> None:
    gate = within(BOX, gib=4, available=0.01)
    gate.refusal(Ask(1, 1, within=BOX), beside)
    assert gate.relieve([job(9, 3, None, 3), *beside]) is None
