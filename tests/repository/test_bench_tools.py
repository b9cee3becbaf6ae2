"""The benchmarks' common parts: ratios and goals are what they say; the projects build with both builders."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.own_programs import lend_programs
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import ROOT

BENCH = ROOT / "scripts" / "bench"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = load("common")
projects = load("projects")


def test_the_interval_holds_the_ratio_and_grows_with_the_noise() -> None:
    ratio, low, high = common.bootstrap([2.0] * 7, [1.0] * 7)
    assert (ratio, low, high) == (2.0, 2.0, 2.0)
    ratio, low, high = common.bootstrap([1.0, 2.0, 3.0, 2.0, 1.5, 2.5, 2.0], [1.0] * 7)
    assert low < ratio == 2.0 < high


def test_a_goal_is_met_only_when_the_whole_interval_is_within(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = common.Report("x", str(tmp_path / "out.json"))
    report.ratio("steady", [1.0] * 7, [1.0] * 7, "peer", most=1.0)
    report.ratio("noisy", [0.5, 1.0, 1.5, 1.0, 0.7, 1.4, 1.0], [1.0] * 7, "peer", most=1.0)
    report.figure("memory", 61.0, "MiB", most=60.0)
    said = capsys.readouterr().out
    assert said.count(": met") == 1 and said.count("not met") == 2
    assert report.end() == 1
    assert json.loads((tmp_path / "out.json").read_text())["missed"] == ["noisy", "memory"]


def test_rounds_are_interleaved_and_turn_around() -> None:
    order: list[str] = []

    def contestant(name: str) -> common.Cost:
        order.append(name)
        return common.Cost(1.0)

    common.interleaved(2, {"a": lambda: contestant("a"), "b": lambda: contestant("b")})
    assert order == ["a", "b", "b", "a"]


def test_a_command_that_fails_ends_the_benchmark_with_its_words() -> None:
    with pytest.raises(SystemExit, match="no luck"):
        common.run([sys.executable, "-c", "raise SystemExit('no luck')"])
    cost = common.run([sys.executable, "-S", "-c", "sum(range(3_000_000))"])
    assert 0 < cost.cpu_s <= cost.wall_s * 1.5 + 0.05


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_both_builders_make_the_same_objects_of_a_project(tmp_path: Path) -> None:
    ninja = pytest.importorskip("ninja")
    folder = tmp_path / "project"
    projects.graph_project(folder, 5, 3, make_toolkit(tmp_path / "toolkit"))
    subprocess.run([Path(ninja.BIN_DIR) / "ninja", "-j2"], cwd=folder, check=True, capture_output=True)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "BUILDD_DIR": str(tmp_path / "store")}
    environ |= {"PYTHONPATH": str(ROOT), "BUILDD_RUNTIME_DIR": str(tmp_path / "run")}
    lend_programs(tmp_path / "store")
    command = [sys.executable, "-P", "-m", "buildd", "build", "-C", str(folder), "--no-daemon"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(5):
        ours = folder / f"build/lib/obj/src/unit_{number:05}.cu.o"
        assert ours.read_bytes() == (folder / f"ninja-build/unit_{number:05}.cu.o").read_bytes()


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_an_edit_of_a_corpus_is_what_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ninja = Path(pytest.importorskip("ninja").BIN_DIR) / "ninja"
    monkeypatch.syspath_prepend(str(BENCH))
    corpora = importlib.import_module("corpora")
    corpus = corpora.Corpus("small", tmp_path / "project", make_toolkit(tmp_path / "toolkit"), 3, tmp_path)

    def built() -> int:
        """How many sources were compiled, and now everything is."""
        done = subprocess.run([ninja, "-j2"], cwd=corpus.folder, check=True, capture_output=True, text=True)
        return len(re.findall(r"(?m)^\[\d+/\d+\]", done.stdout))

    assert (built(), built()) == (3, 0)
    for edit, count in (
        (corpora.Corpus.comment, 3),
        (corpora.Corpus.touch, 3),
        (corpora.Corpus.touch_sources, 3),
        (corpora.Corpus.host, 3),
        (corpora.Corpus.host_one, 1),
        (corpora.Corpus.change_one, 1),
    ):
        before = [(corpus.folder / path).read_text() for path in (corpora.SHARED, corpus.units[0].source)]
        edit(corpus)
        assert built() == count, edit
        after = [(corpus.folder / path).read_text() for path in (corpora.SHARED, corpus.units[0].source)]
        assert (before == after) == edit.__name__.startswith("touch")
    for _ in range(2):
        corpus.host()
        corpus.host_one()
    assert (corpus.folder / corpora.SHARED).read_text().count("host_of_shared() { return ") == 1
    assert (corpus.folder / corpus.units[0].source).read_text().count("host_of_unit() { return ") == 1
    corpus.configure("", "made", added=True)
    assert built() == 3


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_objects_of_two_trees_differ_by_their_code_and_not_by_their_paths(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCH))
    try:
        parts = load("parts")
    finally:
        sys.path.remove(str(BENCH))
    archive = tmp_path / "some-1.tar.gz"
    (tmp_path / "some-1").mkdir()
    (tmp_path / "some-1" / "a.c").write_text(
        "int a(void) { return N; }\nchar const *where(void) { return __FILE__; }\n"
    )
    subprocess.run(["tar", "czf", archive, "-C", tmp_path, "some-1"], check=True)
    plain, same, other = (parts.Part(archive, "some", tmp_path) for _ in range(3))
    for tree, number in ((plain, 1), (same, 1), (other, 2)):
        tree.build.mkdir()
        command = [
            host_compiler(),
            "-g",
            f"-DN={number}",
            "-c",
            str(tree.source / "a.c"),
            "-o",
            str(tree.build / "a.o"),
        ]
        subprocess.run(command, check=True)
    assert plain.objects()["a.o"].read_bytes() != same.objects()["a.o"].read_bytes(), "each holds its folder"
    no_cubins = "false"
    assert list(parts.differences(plain, same, no_cubins)) == []
    assert list(parts.differences(plain, other, no_cubins)) == ["a.o: .text"]
