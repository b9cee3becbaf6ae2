"""The campaigns in small: a few kills, a few damaged files; and that a wrong or missing artifact would be seen."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import ROOT, User
from tests.support.workload import Workload

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def run(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "campaign" / name), *options, "--seed", "7", "--units", "8"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # continuous integration runs this campaign; test_daemon.py kills one
def test_a_killed_daemon_loses_nothing_and_leaves_nothing() -> None:
    # One moment can take two daemons: an old one and the one that comes after it.
    kills = re.match(r"(\d+) kills in \d+ trials, 0 faults", run("kill", "--kills", "3"))
    assert kills is not None and int(kills[1]) >= 3


@pytest.mark.slow  # continuous integration runs this campaign; test_store.py damages one
def test_a_damaged_store_never_gives_a_wrong_artifact() -> None:
    assert run("corrupt", "--times", "4").startswith("4 times damaged, 0 faults")


def test_what_is_wrong_in_a_workload_is_seen(tmp_path: Path) -> None:
    user = User(tmp_path)
    work = Workload(tmp_path / "project", make_toolkit(tmp_path / "toolkit"), random.Random(3), units=4)
    try:
        status, output = user.buildd("build", "-C", str(work.folder))
        assert status == 0, output
        assert work.faults() == []
        object_file = work.folder / "build/all/obj/src/unit_1.cu.o"
        content = bytearray(object_file.read_bytes())
        content[700] ^= 1
        object_file.write_bytes(content)
        assert any("unit_1.cu.o is not what" in fault for fault in work.faults())
        object_file.unlink()
        assert any("unit_1.cu.o is missing" in fault for fault in work.faults())
        (work.folder / "include/h3.h").write_text("#define H3 7\n")
        # Every header includes h3.h, so that every object is stale now.
        assert len(work.faults()) >= 4
        assert any(" serve" in process.command for process in user.processes())
    finally:
        assert user.end() == []
    assert user.processes() == []
