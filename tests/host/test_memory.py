"""What the host has left, read from trees of files as kernels write them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from buildd.host import memory
from buildd.host.memory import HostMemory, OomCounter

GIB = 1 << 30
MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nBuffers: 7 kB\n"
    "Cached: 9 kB\nActive: 1 kB\nInactive: 1 kB\nShmem: 1 kB\nSwapFree: 99999999 kB\n"
)
V1_UNLIMITED = "9223372036854771712"


class Host:
    """A /proc and a /sys/fs/cgroup below a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"
        self.write("proc/meminfo", MEMINFO)
        self.cgroup.mkdir()

    def write(self, path: str, text: object) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{str(text).rstrip()}\n")

    def read(self) -> HostMemory:
        return memory.read(str(self.proc), str(self.cgroup))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    return Host(tmp_path)


def test_without_cgroups_it_is_what_the_host_has(host: Host) -> None:
    assert host.read() == HostMemory(16 * GIB, 8 * GIB, 0.0, "the host's memory")


def test_swap_does_not_count_and_old_kernels_have_no_memavailable(host: Host) -> None:
    host.write(
        "proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 7 kB\nCached: 200 kB\nActive: 1 kB\nInactive: 1 kB\nShmem: 1 kB\n"
        "SwapFree: 5000 kB",
    )
    assert host.read().available_bytes == 300 * 1024


def test_version_2_limit_counts_what_can_be_reclaimed(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/user/build")
    host.write("cgroup/user/build/memory.max", 4 * GIB)
    host.write("cgroup/user/build/memory.high", "max")
    host.write("cgroup/user/build/memory.current", 3 * GIB)
    host.write("cgroup/user/build/memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 7")
    found = host.read()
    assert (found.total_bytes, found.available_bytes) == (4 * GIB, 2 * GIB)
    assert found.limited_by == f"{host.cgroup}/user/build/memory.max"


@pytest.mark.parametrize("level", ["a/b/c", "a/b", "a", ""])
def test_the_tightest_of_all_cgroups_above_counts(host: Host, level: str) -> None:
    host.write("proc/self/cgroup", "0::/a/b/c")
    for folder in ("a/b/c", "a/b", "a"):
        host.write(f"cgroup/{folder}/memory.max", 6 * GIB)
        host.write(f"cgroup/{folder}/memory.current", 0)
    host.write(f"cgroup/{level}/memory.high", 2 * GIB)
    host.write(f"cgroup/{level}/memory.current", GIB)
    assert host.read().available_bytes == GIB
    assert host.read().total_bytes == 2 * GIB


def test_more_used_than_allowed_leaves_nothing(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/a")
    host.write("cgroup/a/memory.high", GIB)
    host.write("cgroup/a/memory.current", 2 * GIB)
    assert host.read().available_bytes == 0


@pytest.mark.parametrize("path", ["/docker/0123", "/", "/../other"])
def test_inside_a_container_the_mount_itself_is_ours(host: Host, path: str) -> None:
    host.write("proc/self/cgroup", f"0::{path}")
    host.write("cgroup/memory.max", GIB)
    host.write("cgroup/memory.current", 0)
    assert host.read().available_bytes == GIB


def test_version_1(host: Host) -> None:
    host.write("proc/self/cgroup", "4:cpu,memory:/jobs/a\n3:cpuset:/elsewhere\n0::/")
    host.write("cgroup/memory/jobs/a/memory.limit_in_bytes", V1_UNLIMITED)
    host.write("cgroup/memory/jobs/memory.limit_in_bytes", 3 * GIB)
    host.write("cgroup/memory/jobs/memory.usage_in_bytes", 2 * GIB)
    host.write("cgroup/memory/jobs/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB // 2}")
    found = host.read()
    assert (found.total_bytes, found.available_bytes) == (3 * GIB, GIB + GIB // 2)


def test_both_versions_side_by_side(host: Host) -> None:
    host.write("proc/self/cgroup", "4:memory:/one\n0::/two")
    host.write("cgroup/memory/one/memory.limit_in_bytes", 5 * GIB)
    host.write("cgroup/unified/two/memory.max", 2 * GIB)
    assert host.read().available_bytes == 2 * GIB
    host.write("cgroup/memory/one/memory.limit_in_bytes", GIB)
    assert host.read().available_bytes == GIB


def test_pressure_is_the_worse_of_the_hosts_and_ours(host: Host) -> None:
    line = "some avg10={} avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0"
    host.write("proc/pressure/memory", line.format("12.50"))
    assert host.read().pressure == 12.5
    host.write("proc/self/cgroup", "0::/a")
    host.write("cgroup/a/memory.pressure", line.format("40.00"))
    assert host.read().pressure == 40.0
    host.write("cgroup/a/memory.pressure", "some avg10=")
    assert host.read().pressure == 12.5


def test_nonsense_is_no_limit(host: Host) -> None:
    host.write("proc/self/cgroup", "garbage\n\n0::/a\n1:2")
    host.write("cgroup/a/memory.max", "-5 \xff")
    assert host.read().available_bytes == 8 * GIB


def test_oom_kills_are_counted(host: Host) -> None:
    assert OomCounter(str(host.proc), str(host.cgroup)).read() == 0
    host.write("proc/self/cgroup", "0::/a\n4:memory:/b")
    host.write("cgroup/memory/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3")
    assert OomCounter(str(host.proc), str(host.cgroup)).read() == 3
    host.write("cgroup/unified/a/memory.events", "low 0\noom 9\noom_kill 2")
    assert OomCounter(str(host.proc), str(host.cgroup)).read() == 2


def test_this_host_can_be_read() -> None:
    found = memory.read()
    assert 0 < found.available_bytes <= found.total_bytes
    assert found.pressure >= 0
