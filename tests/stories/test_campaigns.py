"""The campaigns of trials in small; and that a fault is seen, made smaller, and left as a script."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import power_cut, trials
from tests.support.paths import ROOT
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def campaign(name: str, *options: str, timeout_s: float = 150.0) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "campaign" / name), *options],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_failing_trial_becomes_the_smallest_script(tmp_path: Path) -> None:
    seen: list[trials.Steps] = []

    def check(steps: trials.Steps) -> list[str]:
        seen.append(steps)
        return ["both"] if {3, 7} <= {*steps} else []

    options = trials.parser("", trials=3).parse_args(["--seed", "1", "--out", str(tmp_path)])
    assert trials.hold("any", options, lambda rng: rng.sample(range(10), 10), check, ("--plain",)) == 3
    scripts = sorted(path.read_text() for path in tmp_path.iterdir())
    assert len(scripts) == 3
    assert all(re.search(r"scripts/campaign/any --plain --steps '\[(3, 7|7, 3)\]'\n$", script) for script in scripts)
    first = trials.parser("", trials=1).parse_args(["--seed", "1", "--out", str(tmp_path)])
    trials.hold("any", first, lambda rng: rng.sample(range(10), 10), lambda steps: seen.append(steps) or [])
    assert seen[-1] == seen[0], "a trial does not depend on how many there are"


def test_what_cannot_be_made_smaller_stays_whole() -> None:
    steps = list(range(random.Random(1).randrange(5, 9)))
    assert trials.minimised(steps, lambda some: some == steps, within_s=5) == steps


def test_hostile_bundles_that_are_signed(tmp_path: Path) -> None:
    said = campaign("bundles", "--trials", "75", "--seed", "7", "--out", str(tmp_path))
    assert "75 trials, 0 with faults" in said
    refused, came_in = map(int, re.findall(r"(\d+) refused, (\d+) came in", said)[0])
    assert refused + came_in == 75 and min(refused, came_in) > 5


@pytest.mark.slow  # continuous integration runs this campaign
def test_mutated_messages_are_delivered_and_answered(tmp_path: Path) -> None:
    said = campaign("messages", "--messages", "400", "--seed", "7", "--out", str(tmp_path))
    assert "10 trials, 0 with faults" in said
    assert "no fault of the daemon as a whole" in said
    replies = re.search(r"^replies: (\d+)", said, re.MULTILINE)
    assert replies is not None and int(replies[1]) > 2 * 400, "each of them, and each question behind one"


_WRITES = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "sub").mkdir()
(folder / "old").write_bytes(b"old" * 3000)
os.rename(folder / "old", folder / "sub/new")
with open(folder / "sub/safe", "wb") as file:
    file.write(b"safe")
    file.flush()
    os.fsync(file.fileno())
with open(folder / "sub/safe", "r+b") as file:
    file.seek(10_000)
    file.write(b"end")
    file.truncate(10_002)
(folder / "gone").write_bytes(b"x")
(folder / "gone").unlink()
(folder / "late").write_bytes(b"late" * 3000)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    recorder = power_cut.Recorder(tmp_path, recorded)
    command = [sys.executable, "-c", _WRITES, str(recorded)]
    subprocess.run(command, env={**os.environ, **recorder.environment}, check=True)
    changes, whole, seen = recorder.changes(), contents(recorded), set()
    assert whole == {"sub/new": b"old" * 3000, "sub/safe": b"safe".ljust(10_000, b"\0") + b"en", "late": b"late" * 3000}
    for seed in range(200):
        left = tmp_path / f"left{seed}"
        power_cut.replay(changes, random.Random(seed), recorded, left)
        found = contents(left)
        assert found["sub/safe"][:4] == b"safe", "a sync makes a file and all names before it safe"
        assert {*found} >= {"sub/new", "sub/safe"} and {*found} <= {*whole, "gone"}
        seen.add((found == whole, found["sub/new"] == b"", "late" in found, found["sub/new"] == bytes(9000)))
    for number, what in enumerate(("everything", "a file without its data", "a name", "zeros for data")):
        assert {row[number] for row in seen} == {True, False}, what


@pytest.mark.slow  # continuous integration runs this campaign
def test_a_store_after_power_cuts(tmp_path: Path) -> None:
    said = campaign("power", "--trials", "40", "--seed", "7", "--out", str(tmp_path))
    assert "40 trials, 0 with faults" in said
    served = re.search(r"after the cuts (\d+) results were served", said)
    assert served is not None and int(served[1]) > 40
