"""The example for Slurm: a build on all hosts of an allocation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import HAS_SLURM, SlurmCluster
from tests.support.spread_builds import places, write_sources

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "build.sbatch"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not HAS_SLURM, reason="no Slurm (Debian: apt install slurm-wlm munge)"),
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
]


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster()
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_build_uses_all_hosts_of_an_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    store = slurm.folder / "store"
    write_sources(tmp_path)
    environ = {**slurm.environ, "PYTHON": sys.executable, "BUILDD_DIR": str(store)}
    command = ["sbatch", "--wait", "--nodes=2", "--output=said", str(SCRIPT), "make", "-sj8"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    said = (tmp_path / "said").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert "2 of 2 hosts are in the cluster" in said and "8 misses" in said
    assert (tmp_path / "lib.a").is_file()
    assert set(places(environ)) == {"buildd", "n2"}, "compiles ran here and on the other host"
