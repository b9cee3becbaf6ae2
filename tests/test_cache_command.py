"""`buildd cache` as people and scripts use it."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.commands import cache
from buildd.store import Counter, Store
from buildd.tally import Reasoned
from tests.crash_store_writer import is_served, publish


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    with Store.open(tmp_path / "store") as store:
        for seed in range(12):
            publish(store, seed)
        store.count(Counter.HITS, 3)
        store.count(Counter.MISSES, 1)
        store.tally.count_handed_through("link")
        store.tally.count_handed_through("unknown-option")
        store.tally.count_handed_through("link")
        store.tally.count_reasoned(Reasoned.WHOLE, "nvcc is a wrapper")
    yield {"BUILDD_DIR": str(tmp_path / "store"), "HOME": str(tmp_path)}


def test_stats(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.run(["stats"], environ=environ) == 0
    text = capsys.readouterr().out
    assert "results     12 of 0 actions" in text
    assert "hits        3 of 4 (75 %)\nmisses      1\n" in text
    assert "handed      3 through to the tool\n  2         link\n  1         unknown-option\n" in text
    assert "whole       1 compiles not in steps\n  1         nvcc is a wrapper\n" in text
    assert cache.run(["stats", "--json"], environ=environ) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["results"], figures["blobs"], figures["counters"]["hits"]) == (12, 24, 3)
    assert figures["handed_through"] == {"link": 2, "unknown-option": 1}
    assert figures["whole"] == {"nvcc is a wrapper": 1}
    assert figures["folder"] == environ["BUILDD_DIR"]


def test_gc_verify_and_flush(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.run(["verify"], environ=environ) == 0
    assert capsys.readouterr().out == "24 blobs, 12 results and 0 answers checked\neverything is sound\n"
    assert cache.run(["gc", "--limit", "400K", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["held_bytes"] <= 400 << 10
    assert cache.run(["flush", "a11"], environ=environ) == 0
    assert capsys.readouterr().out.startswith("removed 1 results and ")
    assert cache.run(["flush"], environ=environ) == 0
    capsys.readouterr()
    assert cache.run(["stats", "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] == 0


def test_export_and_import(environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "bundle")
    assert cache.run(["export", file, "--all"], environ=environ) == 0
    assert "12 results, 24 blobs" in capsys.readouterr().out
    assert cache.run(["--store", str(tmp_path / "two"), "import", file, "--json"], environ=environ) == 0
    assert json.loads(capsys.readouterr().out)["results"] == 12
    with Store.open(tmp_path / "two") as store:
        assert is_served(store, 7)


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
    assert f"signed by {key}" in said and f"buildd cache trust {key} NAME" in said
    with Store.open(tmp_path / "two") as store:
        assert not is_served(store, 7)
    assert cache.run(["trust", key, "the CI"], environ=other) == 0
    assert f"{key} the CI\n" in capsys.readouterr().out
    assert cache.run([*arguments, "import", file], environ=other) == 0
    with Store.open(tmp_path / "two") as store:
        assert is_served(store, 7)
    assert cache.run(["trust", key, "--remove"], environ=other) == 0
    assert cache.run([*arguments, "import", file], environ=other) == 3
    assert cache.run(["trust", "abc"], environ=other) == 3
    assert '"abc" is no public key' in capsys.readouterr().err


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
    assert "nothing was imported" in capsys.readouterr().err
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
