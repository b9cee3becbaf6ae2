"""ejkernel's files of tuned configurations: concurrent and killed tuners, damaged files, and where an entry comes from.

The classes of ejkernel are stand-ins with its faults; the processes and the files are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from buildd.hooks import ejkernel_profiles
from buildd.hooks.ejkernel_profiles import GIVEN, GUESSED, TUNED, ProfileFile
from tests.support.ejkernel_files import Executor, PersistentCache, hooked
from tests.support.paths import ROOT
from tests.support.waiting import until

RUNS = int(os.environ.get("BUILDD_TUNER_RUNS", "5"))
"""How often three tuners run at once."""
TUNER = """
import sys
from tests.support.ejkernel_files import hooked
Cache, Chain = hooked()
chain = Chain(Cache(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
count = int(sys.argv[3])
number = 0
while number != count:
    chain.choose(f"{sys.argv[2]}-{number}")
    number += 1
"""


def tuner(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TUNER, str(path), name, str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin(*tuners: subprocess.Popen[str]) -> None:
    """Let tuners that are ready begin together."""
    for process in tuners:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in tuners:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


def test_three_tuners_at_once_lose_nothing(tmp_path: Path) -> None:
    for run in range(RUNS):
        path = tmp_path / f"{run}.json"
        tuners = [tuner(path, name, 4) for name in "abc"]
        begin(*tuners)
        assert [end(process) for process in tuners] == [0, 0, 0]
        wanted = {f"cpu|op@v1|{name}-{number}" for name in "abc" for number in range(4)}
        assert json.loads(path.read_text()).keys() == wanted
        assert {ProfileFile(str(path)).source(key, row) for key, row in json.loads(path.read_text()).items()} == {TUNED}


def test_the_stand_in_loses_entries_as_the_real_one_does(tmp_path: Path) -> None:
    first, second = (PersistentCache(str(tmp_path / "op.json")) for _ in range(2))
    first.put("cpu", "op@v1", "a", 1)
    second.put("cpu", "op@v1", "b", 2)
    assert list(json.loads((tmp_path / "op.json").read_text())) == ["cpu|op@v1|b"]


def test_a_tuner_killed_while_it_writes_leaves_whole_files_and_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "op.json"
    for name in "abc":
        process = tuner(path, name, -1)
        begin(process)
        until(lambda name=name: path.exists() and f"{name}-9" in path.read_text(), "some tunings")
        process.kill()
        assert end(process) == -signal.SIGKILL
        kept = json.loads(path.read_text())
        assert f"cpu|op@v1|{name}-9" in kept and json.loads((tmp_path / ".op.json.sources").read_text())
    cache, chain = hooked()
    chain(cache(str(path))).choose("last")
    assert json.loads(path.read_text()) == kept | {"cpu|op@v1|last": {"tuned": "last"}}
    assert sorted(one.name for one in tmp_path.iterdir()) == [".op.json.lock", ".op.json.sources", "op.json"]


@pytest.mark.parametrize("content", ["{ torn", "[1]", ""])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "op.json"
    path.write_text(content)
    cache, chain = hooked()
    selector = chain(cache(str(path)))
    assert "op.json is damaged (" in capsys.readouterr().err
    assert (tmp_path / "op.json.damaged").read_text() == content
    path.write_text(content)  # and while the program runs
    assert selector.choose("a") == {"tuned": "a"}
    assert "is damaged" in capsys.readouterr().err
    assert json.loads(path.read_text()) == {"cpu|op@v1|a": {"tuned": "a"}}
    # Where an entry comes from is not known then, and it is used.
    (tmp_path / ".op.json.sources").write_text(content)
    again = chain(cache(str(path)))
    assert again.choose("a") == {"tuned": "a"} and again.tunings == 0


def test_a_guess_does_not_stop_the_tuning_and_replaces_none(tmp_path: Path) -> None:
    cache, chain = hooked()
    path = str(tmp_path / "op.json")
    guessing = chain(cache(path), policy="heuristics")
    assert guessing.choose("a") == {"guessed": "a"}
    files = ProfileFile(path)
    assert files.source("cpu|op@v1|a", {"guessed": "a"}) == GUESSED
    assert chain(cache(path), policy="heuristics").choose("a") == {"guessed": "a"}
    tuning = chain(cache(path))
    assert (tuning.choose("a"), tuning.tunings) == ({"tuned": "a"}, 1)
    # Of two processes that began without a file, the one that guesses comes last.
    late, first = chain(cache(path), policy="heuristics"), chain(cache(path))
    first.choose("b")
    assert late.choose("b") == {"tuned": "b"}
    given = chain(cache(path), override={"mine": 1})
    assert given.choose("a") == {"mine": 1}
    assert files.rows()["cpu|op@v1|a"] == {"tuned": "a"}
    guessing.choose("d")
    chain(cache(path), override={"guessed": "d"}).choose("d")  # as ejkernel does with its own choice
    assert files.source("cpu|op@v1|d", {"guessed": "d"}) == GUESSED
    executor = types.SimpleNamespace(Executor=Executor)
    ejkernel_profiles.begin_executor(executor)
    Executor()._choose_heuristics_only(cache(path), "e")
    assert files.source("cpu|op@v1|e", {"guessed": "e"}) == GUESSED
    cache(path).put("cpu", "op@v1", "f", {"tuned": "f"})  # by a tuner of a whole program
    assert files.source("cpu|op@v1|f", {"tuned": "f"}) == TUNED
    given.choose("c")
    assert files.source("cpu|op@v1|c", {"mine": 1}) == GIVEN
    assert chain(cache(path)).choose("c") == {"tuned": "c"}


def test_what_ejkernel_kept_without_us_is_used_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "op.json"
    PersistentCache(str(path)).put("cpu", "op@v1", "a", {"theirs": 1})
    cache, chain = hooked()
    selector = chain(cache(str(path)))
    assert (selector.choose("a"), selector.tunings) == ({"theirs": 1}, 0)
    selector.choose("b")
    assert chain(cache(str(path)), override={"mine": 1}).choose("a") == {"mine": 1}
    assert json.loads(path.read_text()) == {"cpu|op@v1|a": {"theirs": 1}, "cpu|op@v1|b": {"tuned": "b"}}


def test_others_may_read_the_file_as_the_users_mask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        cache, chain = hooked()
        chain(cache(str(tmp_path / "op.json"))).choose("a")
    finally:
        os.umask(before)
    assert (tmp_path / "op.json").stat().st_mode & 0o777 == 0o640


def test_the_notes_name_versions_limits_and_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EJKERNEL_TRITON_SMEM_LIMIT", "4096")
    cache, chain = hooked()
    rows = cache(str(tmp_path / "op.json"))
    for policy in ("autotune", "heuristics"):
        chain(rows, policy=policy).choose(policy)
    tuned, guessed = json.loads((tmp_path / ".op.json.sources").read_text()).values()
    assert tuned["EJKERNEL_TRITON_SMEM_LIMIT"] == "4096" and tuned["time"] > 0
    assert (tuned["seconds"], tuned["candidates"]) == (0.25, 2)
    assert "seconds" not in guessed
