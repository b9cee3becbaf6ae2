"""`buildd cache` as people and scripts use it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.commands import cache, run
from buildd.store.store import Counter, Store
from buildd.store.tally import Reasoned
from protocol.messages import Digest
from tests.support.crash_store_writer import is_served, publish
from tests.support.user import User


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    with Store.open(tmp_path / "store") as store:
        for seed in range(12):
            publish(store, seed)
        store.count(Counter.HITS, 3)
        store.count(Counter.MISSES, 1)
        store.tally.count_passed_through("link")
        store.tally.count_passed_through("unknown-option")
        store.save_record(Digest("0" * 64), b"record")
        store.tally.count_passed_through("link")
        store.tally.count_reasoned(Reasoned.WHOLE, "nvcc is a wrapper")
    yield {"BUILDD_DIR": str(tmp_path / "store"), "HOME": str(tmp_path)}


def test_stats(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.run(["stats"], environ=environ) == 0
    text = capsys.readouterr().out
    assert "results     12\n" in text
    assert "\nrecords     1 (builds that are up to date while none of their files changes)\n" in text
    rest = "of builds that an earlier buildd counted"
    assert f"hits        3 of 4 (75 %)\n  3         {rest}\nmisses      1\n  1         {rest}\n" in text
    assert "passed      3 through to the tool\n  2         link\n  1         unknown-option\n" in text
    assert "whole       1 compiles not in steps\n  1         nvcc is a wrapper\n" in text
    assert cache.run(["stats", "--json"], environ=environ) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["results"], figures["blobs"], figures["counters"]["hits"]) == (12, 24, 3)
    assert figures["passed_through"] == {"link": 2, "unknown-option": 1}
    assert figures["whole"] == {"nvcc is a wrapper": 1}
    assert figures["folder"] == environ["BUILDD_DIR"]


def test_gc_verify_and_flush(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.run(["verify"], environ=environ) == 0
    assert capsys.readouterr().out == "24 blobs, 12 results, 1 record checked\neverything is sound\n"
    assert cache.run(["gc", "--limit", "400K", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["held_bytes"] <= 400 << 10
    assert cache.run(["flush", "nomatch*"], environ=environ) == 0
    assert capsys.readouterr().out == "no action's name matches nomatch*: no result was removed\n"
    assert cache.run(["flush", "a11"], environ=environ) == 0
    assert capsys.readouterr().out.startswith("removed 1 result and ")
    assert cache.run(["flush"], environ=environ) == 0
    capsys.readouterr()
    assert cache.run(["stats", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] == 0


def test_counters_can_begin_again(environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(Path(environ["BUILDD_DIR"])) as store:
        assert is_served(store, 7)
        store.tally.count(Counter.HITS, 5)
        store.tally.count_passed_through("link")
    assert cache.run(["stats", "--json"], environ=environ) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["counters"]["hits"] >= 5 and before["passed_through"]["link"] >= 1
    assert cache.run(["stats", "--zero"], environ=environ) == 0
    assert capsys.readouterr().out == "hits, misses and all other counters are 0 now; the results stay\n"
    assert cache.run(["stats", "--json"], environ=environ) == 0
    after = json.loads(capsys.readouterr().out)
    assert set(after["counters"].values()) == {0} and after["passed_through"] == {}
    assert after["results"] == before["results"] == 12
    with Store.open(Path(environ["BUILDD_DIR"])) as store:
        store.tally.count(Counter.HITS, 2)
    assert cache.run(["stats", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["hits"] == 2


def test_export_and_import(environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "bundle")
    assert cache.run(["export", file, "--all"], environ=environ) == 0
    assert "12 results, 24 blobs" in capsys.readouterr().out
    assert cache.run(["--store", str(tmp_path / "two"), "import", file, "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["results"] == 12
    with Store.open(tmp_path / "two") as store:
        assert is_served(store, 7)
    assert cache.run(["--store", str(tmp_path / "two"), "import", file], environ=environ) == 0
    assert capsys.readouterr().out == "12 results, 24 blobs: the store had all of these results already\n"
    assert cache.run(["flush", "a11"], environ=environ) == 0
    assert cache.run(["import", file], environ=environ) == 0
    assert capsys.readouterr().out.endswith("24 blobs imported\n11 results of these were there already\n")


def test_an_export_that_cannot_be_written_names_the_file_and_the_way_out(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, message, step in (
        (tmp_path / "none" / "b", f"there is no folder {tmp_path / 'none'}", "make the folder, or"),
        (tmp_path, "this is a folder", "name a file in it"),
    ):
        assert cache.run(["export", str(file), "--all"], environ=environ) == 3
        said = capsys.readouterr().err
        assert f"error: {message}\n" in said and f"  file: {file}\n  next: {step}" in said
    assert not list(tmp_path.parent.glob(".buildd-*"))


def test_a_bundle_of_somebody_else_comes_in_once_their_key_is_trusted(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = str(tmp_path / "bundle"), {**environ, "XDG_CONFIG_HOME": str(tmp_path / "other")}
    arguments = ["--store", str(tmp_path / "two")]
    assert cache.run(["export", file, "--all"], environ=environ) == 0
    assert cache.run(["key"], environ=environ) == 0
    key = capsys.readouterr().out.split()[-1]
    assert cache.run([*arguments, "import", file], environ=other) == 3
    said = capsys.readouterr().err
    assert (
        f"error: the bundle is signed by {key}, a key that you do not trust" in said
        and f"buildd cache trust {key} NAME" in said
    )
    with Store.open(tmp_path / "two") as store:
        assert not is_served(store, 7)
    assert cache.run(["trust", key, "the CI"], environ=other) == 0
    assert f"{key} the CI\n" in capsys.readouterr().out
    assert cache.run([*arguments, "import", file], environ=other) == 0
    with Store.open(tmp_path / "two") as store:
        assert is_served(store, 7)
    assert cache.run(["trust", key, "--remove"], environ=other) == 0
    assert cache.run([*arguments, "import", file], environ=other) == 3
    assert cache.run(["trust", "abc"], environ=other) == 2
    assert '"abc" is no public key' in capsys.readouterr().err


def test_a_bundle_of_an_empty_store_is_said_to_be_empty(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, two = str(tmp_path / "bundle"), str(tmp_path / "two")
    assert cache.run(["--store", two, "export", file, "--all", "--json"], environ=environ) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["results"] == 0 and said.err == f"buildd: the store at {two} is empty\n"
    assert cache.run(["import", file], environ=environ) == 0
    said = capsys.readouterr()
    assert said.err == f"buildd: {file} holds nothing: the store that it was exported from was empty\n"
    assert cache.run(["export", file, "--all"], environ=environ) == 0
    assert cache.run(["--store", two, "import", file], environ=environ) == 0
    assert capsys.readouterr().err == ""


def test_wrong_usage_is_2_and_a_bad_store_3(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache.run(["export", "f"], environ=environ) == 2
    assert cache.run(["export", "f", "saxpy"], environ=environ) == 2
    assert cache.run(["export", "f", "saxpy", "--all"], environ=environ) == 2
    assert cache.run(["stats"], environ={**environ, "BUILDD_CACHE_SIZE": "much"}) == 2
    assert "BUILDD_CACHE_SIZE" in capsys.readouterr().err
    for arguments in ([], ["nonsense"], ["gc", "--limit", "much"]):
        with pytest.raises(SystemExit) as caught:
            cache.run(arguments, environ=environ)
        assert caught.value.code == 2
    (tmp_path / "bad").write_bytes(b"no bundle" * 100)
    assert cache.run(["import", str(tmp_path / "bad")], environ=environ) == 3
    said = "error: the bundle cannot be used: `buildd cache export` did not write this file; nothing was imported"
    assert said in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cache.run(["stats"], environ={**environ, "BUILDD_DIR": str(tmp_path / "file")}) == 3


def test_what_happened_to_the_store_is_said(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(environ["BUILDD_DIR"], "index.db").write_bytes(b"damaged" * 1000)
    assert cache.run(["stats"], environ=environ) == 0
    assert "index.db.corrupt-" in capsys.readouterr().err


def test_sizes() -> None:
    assert [cache.size_of(text) for text in ("0", "1000", "2k", "20G", "1.5 GiB", "1TB")] == [
        0, 1000, 2048, 20 << 30, 3 << 29, 1 << 40,
    ]  # fmt: skip
    for text in ("", "much", "-1", "1P", "1 G B"):
        with pytest.raises(ArgumentTypeError):
            cache.size_of(text)


def test_it_runs_as_a_command(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "buildd", "cache", "stats"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "hits        3 of 4" in done.stdout


def test_query_prints_what_the_index_holds(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*arguments: str) -> str:
        assert cache.run(["query", *arguments], environ=environ) == 0
        return capsys.readouterr().out

    listed = dict(line.split() for line in asked().splitlines()[1:])
    assert listed["artifacts"] == "24" and listed["results"] == "12" and "profiles" in listed and "builds" in listed
    rows = json.loads(asked("artifacts", "--json"))
    assert len(rows) == 24 and {"action", "bytes", "digest"} <= set(rows[0]) and len(rows[0]["digest"]) == 64
    sums = asked("SELECT count(*) AS results, max(action) AS last FROM main.results", "--format", "csv")
    assert sums.splitlines()[0] == "results,last" and sums.splitlines()[1].startswith("12,")
    table = asked("SELECT 1 AS one, x'00ff' AS bytes, NULL AS none")
    assert table == "one  bytes  none\n1    00ff\n"
    assert cache.run(["query", "artifacts", "--limit", "3"], environ=environ) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4 and said.err == "the first 3 rows; --limit 0 prints all\n"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM main.results",
        "INSERT INTO main.counters VALUES ('x', 1)",
        "ATTACH 'other.db' AS other",
        "PRAGMA query_only = OFF",
        "DROP VIEW temp.builds",
        "SELECT * FROM nothing",
        "SELECT 1; DELETE FROM main.results",
        "VACUUM INTO 'copy.db'",
    ],
)
def test_a_query_changes_nothing(
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statement: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache.run(["query", statement], environ=environ) == 3
    assert "artifacts, builds, history, profiles" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.db"))
    assert cache.run(["query", "SELECT count(*) AS n FROM main.results", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 12}]


def test_a_query_of_no_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"BUILDD_DIR": str(tmp_path / "none"), "HOME": str(tmp_path)}
    assert cache.run(["query"], environ=environ) == 3
    assert "there is no index" in capsys.readouterr().err


def layout(environ: dict[str, str], place: Path) -> dict[str, bytes]:
    """The files of an export as an OCI image layout."""
    assert cache.run(["export", str(place), "--all", "--oci"], environ=environ) == 0
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_an_oci_layout_is_the_same_each_time_and_is_imported(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "images/kernels"
    made = layout(environ, place)
    assert layout(environ, place) == made == layout(environ, tmp_path / "other")
    assert sorted(path.name for path in place.parent.iterdir()) == ["kernels"]
    blobs = {name: content for name, content in made.items() if name.startswith("blobs/sha256/")}
    assert set(made) - set(blobs) == {"oci-layout", "index.json"} and len(blobs) == 3
    assert all(hashlib.sha256(content).hexdigest() == Path(name).name for name, content in blobs.items())

    other = {**environ, "BUILDD_DIR": str(tmp_path / "second")}
    assert cache.run(["import", str(place)], environ=other) == 0
    assert "12 results, 24 blobs imported" in capsys.readouterr().out
    with Store.open(tmp_path / "second") as store:
        assert all(is_served(store, seed) for seed in range(12))

    largest = max(blobs, key=lambda name: len(blobs[name]))
    (place / largest).write_bytes(blobs[largest][:-1] + b"x")
    assert cache.run(["import", str(place)], environ={**environ, "BUILDD_DIR": str(tmp_path / "third")}) == 3
    assert "has other content" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    assert cache.run(["export", str(tmp_path / "full"), "--all", "--oci"], environ=environ) == 3
    assert "something else is there already" in capsys.readouterr().err


def test_a_folder_that_is_no_layout_is_told(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "folder"
    place.mkdir()
    assert cache.run(["import", str(place)], environ=environ) == 2
    assert f"error: {place} is a folder, and no OCI image layout" in capsys.readouterr().err
    (place / "oci-layout").write_text("{}")
    assert cache.run(["import", str(place)], environ=environ) == 3
    said = capsys.readouterr().err
    assert f"holds no bundle: {place}/index.json: No such file or directory\n" in said and "Errno" not in said


@pytest.mark.skipif(not shutil.which("skopeo"), reason="no skopeo (Debian: apt install skopeo)")
def test_skopeo_carries_an_oci_layout(environ: dict[str, str], tmp_path: Path) -> None:
    layout(environ, tmp_path / "made")
    copy = ("skopeo", "--insecure-policy", "copy", "--quiet")
    # Through Docker's format, in which skopeo packs and converts.
    for source, target in (("oci:made:latest", "dir:docker"), ("dir:docker", "oci:back:latest")):
        subprocess.run([*copy, source, target], cwd=tmp_path, check=True, timeout=60)
    other = {**environ, "BUILDD_DIR": str(tmp_path / "second")}
    assert cache.run(["import", str(tmp_path / "back")], environ=other) == 0


@pytest.mark.parametrize("words", [("import", "nofile"), ("trust", "abc"), ("push",)])
def test_wrong_usage_has_its_own_status(kept_user: User, words: tuple[str, ...]) -> None:
    environ = {name: value for name, value in kept_user.environ.items() if not name.startswith("BUILDD_TIER")}
    assert cache.run([*words], environ=environ) == 2


def test_the_nearest_action_and_option_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for run_it, words, meant in (
        (cache.run, ["exprot"], "export"),
        (run.run, ["--map-path", "--", "true"], "--map-paths"),
    ):
        with pytest.raises(SystemExit) as left:
            run_it(words)
        assert left.value.code == 2 and f"; did you mean {meant}?" in capsys.readouterr().err
