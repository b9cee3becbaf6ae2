"""Measurements on the GPUs of a cluster's nodes: the same rows as on a GPU here, and nothing lost with a node."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from buildd.cluster.ray_settings import RaySettings
from buildd.host import gpu_lock
from buildd.profiling.devices import Gpu, recall, remember
from buildd.profiling.far_gpus import find_far_gpus
from buildd.profiling.reports import Summary, Tried
from buildd.store.store import Store
from tests.support.clusters import environ, fake_settings
from tests.support.profiling_cases import A100, case_of, smi, survey_of
from tests.support.waiting import until
from tests.support.word_bench import WordBench

DEADLINE_S = 60.0
NODES = {"beta": 1, "gamma": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell on whose nodes nvidia-smi lists one GPU, which no other test has."""
    uuid = f"GPU-{hashlib.sha256(os.fsencode(tmp_path)).hexdigest()[:12]}"
    path = smi(tmp_path, f"echo '0, {uuid}, NVIDIA A100, 580.1, 8.0'")["PATH"]
    yield {**environ(), "PATH": f"{path}:{os.environ['PATH']}"}
    # The nodes lock it in the machine's own folder, which each status of each daemon here goes through.
    Path(gpu_lock.FOLDER, uuid).unlink(missing_ok=True)


def profile(bench: WordBench, settings: RaySettings, shown: dict[str, str], here: tuple[Gpu, ...] = ()) -> Summary:
    """One call with a cluster's GPUs, beside those of this machine."""

    async def run() -> Summary:
        far = await find_far_gpus(settings, shown)
        assert far is not None
        try:
            gpus = (*here, *far.like(here, bench.said.append))
            with bench.open() as cache:
                survey = survey_of(case_of(len(bench.words)), environment=shown)
                return await asyncio.wait_for(bench.begin(survey, cache, gpus, far=far).run(), DEADLINE_S)
        finally:
            await far.close()

    return asyncio.run(run())


def measured_on(bench: WordBench) -> dict[str, str]:
    return {told.candidate: told.gpu for told in bench.told if isinstance(told, Tried)}


def test_rows_of_nodes_are_those_of_a_gpu_here(tmp_path: Path, store: Store, shown: dict[str, str]) -> None:
    def left() -> set[Path]:
        return set(Path("/tmp").glob(f"buildd-node-{os.getuid()}-*/{_digest('time 8')}"))

    before = left()  # a test run that was killed may have left something
    words = ("time 12", "time 8", "crash", "wrong", "time 30")
    bench = WordBench(tmp_path, store, *words)
    summary = profile(bench, fake_settings(tmp_path, gpus=NODES), shown)
    assert (summary.measured, summary.failed) == (3, 2), bench.said
    assert set(measured_on(bench).values()) <= {"beta/0", "gamma/0"} and not bench.said
    far = {name: _form(row) for name, row in bench.rows().items()}
    notes = [told.note for told in bench.told if isinstance(told, Tried)]
    assert any("signal 11: an illegal memory access" in note for note in notes)
    with Store.open(tmp_path / "other") as other:
        near = WordBench(tmp_path, other, *words)
        near.profile(survey_of(case_of(len(words))))
        assert {name: _form(row) for name, row in near.rows().items()} == far
    until(lambda: left() <= before, "nothing stays on a node")


def test_kernels_that_end_their_process_leave_a_node_in_use(
    tmp_path: Path, store: Store, shown: dict[str, str]
) -> None:
    bench = WordBench(tmp_path, store, *(f"crash {number}" for number in range(4)), "time 8")
    summary = profile(bench, fake_settings(tmp_path, gpus={"beta": 1}), shown)
    assert (summary.measured, summary.failed) == (1, 4) and not bench.said, bench.said


def _form(row: object) -> object:
    """A row without the moment; a slow candidate may be measured before or after a fast one."""
    fields = msgspec.to_builtins(row)
    return {name: value for name, value in fields.items() if name not in ("measured_ns", "outcome", "checked")}


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()


def test_what_a_lost_node_was_measuring_another_one_measures(
    tmp_path: Path, store: Store, shown: dict[str, str]
) -> None:
    bench = WordBench(tmp_path, store, *(f"time {us}" for us in (12, 8, 9, 11)))
    summary = profile(bench, fake_settings(tmp_path, fault="half", gpus=NODES), shown)
    assert (summary.measured, summary.failed) == (4, 0), bench.said
    assert set(measured_on(bench).values()) == {"gamma/0"}
    assert len(bench.rows()) == 4 and bench.chosen[0].time_us == 8.0


def test_without_another_gpu_it_is_told_that_nothing_can_be_measured(
    tmp_path: Path, store: Store, shown: dict[str, str]
) -> None:
    bench = WordBench(tmp_path, store, *("time 12", "time 8"))
    summary = profile(bench, fake_settings(tmp_path, fault="half", gpus={"beta": 1}), shown)
    assert (summary.measured, set(bench.tried.values())) == (0, {"not measured"})
    assert not bench.rows(), "it is measured the next time"
    assert any("nothing is measured there any more" in line for line in bench.said)


def test_gpus_of_nodes_measure_beside_those_here(tmp_path: Path, store: Store, shown: dict[str, str]) -> None:
    """Two candidates wait for each other: one is measured here, one on a node."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    bench = WordBench(tmp_path, store, f"meets {pipe} r 5", f"meets {pipe} w 7")
    summary = profile(bench, fake_settings(tmp_path, gpus={"beta": 1}), shown, (A100,))
    assert summary.measured == 2 and set(measured_on(bench).values()) >= {"0", "beta/0"}
    other = msgspec.structs.replace(A100, driver="590.0")
    bench = WordBench(tmp_path, store, "time 5")
    profile(bench, fake_settings(tmp_path, gpus={"beta": 1}), shown, (other,))
    assert set(measured_on(bench).values()) == {"0"} and "beta has NVIDIA A100 with driver 580.1" in bench.said[0]


def test_a_cluster_without_gpus_or_that_cannot_be_reached_is_told(tmp_path: Path, shown: dict[str, str]) -> None:
    async def why(**fields: object) -> str:
        far = await find_far_gpus(fake_settings(tmp_path, **fields), shown)  # type: ignore[arg-type]
        assert far is not None and not far.gpus
        await far.close()
        return far.why

    assert "no node has GPUs" in asyncio.run(why())
    assert "no cluster at this address" in asyncio.run(why(fault="refused", gpus=NODES))
    assert asyncio.run(find_far_gpus(None, shown)) is None


def test_the_gpus_of_a_cluster_are_remembered_for_an_hour(tmp_path: Path) -> None:
    there = msgspec.structs.replace(A100, node="id", host="beta")
    remember(str(tmp_path), {}, [there], cluster="head:1")
    assert recall(str(tmp_path), {}, cluster="head:1") == (there,)
    assert recall(str(tmp_path), {}, cluster="head:2") is None
    place = tmp_path / "profiles/cluster-gpus.json"
    hours = os.stat(place).st_mtime - 3601
    os.utime(place, (hours, hours))
    assert recall(str(tmp_path), {}, cluster="head:1") is None


@pytest.mark.ray
def test_two_calls_share_the_only_gpu_of_a_cluster(tmp_path: Path, shown: dict[str, str]) -> None:
    """A candidate fails where another one is measured at the same time."""
    from tests.support.ray_cluster import RayCluster

    alone = tmp_path / "alone"
    cluster = RayCluster()
    try:
        cluster.add("beta", gpus=1)
        with ThreadPoolExecutor() as pool, ExitStack() as stack:
            benches = []
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                store = stack.enter_context(Store.open(tmp_path / name / "store"))
                benches.append(WordBench(tmp_path / name, store, f"alone {alone} 5", f"alone {alone} 7"))
            settings = RaySettings(cluster.address, sys.executable)
            calls = [pool.submit(profile, bench, settings, shown) for bench in benches]
            for call, bench in zip(calls, benches, strict=True):
                assert (call.result().measured, bench.said) == (2, [])
    finally:
        cluster.close()


@pytest.mark.ray
def test_two_real_nodes_measure_side_by_side(tmp_path: Path, store: Store, shown: dict[str, str]) -> None:
    from tests.support.ray_cluster import RayCluster

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rows = "\n".join(f"echo '{n}, {shown['PATH'][-3:]}-{n}-{tmp_path.name}, NVIDIA A100, 580.1, 8.0'" for n in (0, 1))
    smi(tmp_path, rows)
    cluster = RayCluster()
    try:
        for number, name in enumerate(NODES):
            cluster.add(name, gpus=1, environ={"CUDA_VISIBLE_DEVICES": str(number)})
        bench = WordBench(tmp_path, store, f"meets {pipe} r 5", f"meets {pipe} w 7", "crash", "time 6")
        summary = profile(bench, RaySettings(cluster.address, sys.executable), shown)
    finally:
        cluster.close()
    assert (summary.measured, summary.failed) == (3, 1), bench.said
    assert set(measured_on(bench).values()) == {"beta/0", "gamma/1"} and not bench.said
    assert bench.chosen[0].time_us == 5.0
