"""The example for Slurm: a build on all hosts of an allocation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import HAS_SLURM, SlurmCluster

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "build.sbatch"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not HAS_SLURM, reason="no Slurm (Debian: apt install slurm-wlm munge)"),
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
]
MAKEFILE = """parts := $(patsubst %.cpp,%.o,$(wildcard *.cpp))
lib.a: $(parts)
\tar rcs $@ $^
%.o: %.cpp
\tg++ -O1 -c $< -o $@
"""


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster()
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_build_uses_all_hosts_of_an_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    store = slurm.folder / "store"
    for number in range(8):
        code = f"#include <regex>\nint f{number}(char const* s) {{ return std::regex_match(s, std::regex(s)); }}\n"
        (tmp_path / f"f{number}.cpp").write_text(code)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    environ = {**slurm.environ, "PYTHON": sys.executable, "BUILDD_DIR": str(store)}
    command = ["sbatch", "--wait", "--nodes=2", "--output=said", str(SCRIPT), "make", "-sj8"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    said = (tmp_path / "said").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert "2 of 2 hosts are in the cluster" in said and "8 misses" in said
    assert (tmp_path / "lib.a").is_file()
    trace = [sys.executable, "-m", "buildd", "trace"]
    events = json.loads(subprocess.check_output(trace, env=environ, text=True))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    places = {names[event["pid"]] for event in events if event.get("cat") == "g++"}
    assert places == {"buildd", "n2"}, "compiles ran here and on the other host"
