"""`buildd cache pull`: a laptop gets what a build needs, and then builds without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from buildd.store.store import Store
from tests.support.profile_rows import profiles_of, row
from tests.support.tier_users import Machines, until_written
from tests.support.tiers import Fault, HttpCache
from tests.support.triton_program import lay_out

pytestmark = pytest.mark.timeout(300)


@pytest.mark.cuda
@pytest.mark.slow
def test_what_was_pulled_is_built_without_the_tier(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] *= 2; }\n")
    project = tmp_path / "buildd.toml"
    project.write_text('[target.k]\nkind = "cuda"\nsources = ["k.cu"]\narch = ["sm_80"]\n')
    first = machines(BUILDD_TIER_WRITE="1")
    assert "2 compiled" in first.buildd("build", "-C", str(tmp_path))[1]
    until_written(cache, 8)
    second = machines()
    status, said = second.buildd("cache", "pull", "-C", str(tmp_path))
    assert status == 0 and "2 results fetched" in said and "the store has 2 of 2" in said, said
    assert second.buildd("cache", "pull", "-C", str(tmp_path))[1].startswith("0 results fetched")
    second.environ["BUILDD_TIER"] = "no"
    assert "2 hits, 0 compiled" in second.buildd("build", "-C", str(tmp_path))[1]
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] *= 3; }\n")
    second.environ["BUILDD_TIER"] = cache.url
    status, said = second.buildd("cache", "pull", "-C", str(tmp_path), "--json")
    figures = json.loads(said)
    assert status == 1 and len(figures["missing"]) == 2 and figures["problem"] == "", said


@pytest.mark.cuda
def test_measurements_are_pulled_too(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] *= 2; }\n")
    (tmp_path / "buildd.toml").write_text('[target.k]\nkind = "cuda"\nsources = ["k.cu"]\narch = ["sm_80"]\n')
    first, second = machines(BUILDD_TIER_WRITE="1"), machines()
    with Store.open(first.store) as store:
        profiles_of(store).save([row("a", measured_ns=7), row("b", time_us=5.0)])
    assert "2 profiles written" in first.buildd("cache", "push")[1]
    with Store.open(second.store) as store:
        profiles_of(store).save([row("a", measured_ns=9, time_us=3.0)])
    status, said = second.buildd("cache", "pull", "-C", str(tmp_path))
    assert status == 1 and "1 profile fetched" in said and "not there: k/k" in said, said
    with Store.open(second.store) as store:
        times = {found.candidate: found.time_us for found in profiles_of(store).everything()}
    assert times == {"a": 3.0, "b": 5.0}, "the later measurement stays"


@pytest.mark.slow
@pytest.mark.triton
def test_a_recording_is_pulled(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    """Compiler calls and kernels, by the daemon; nothing is compiled."""
    first, second, third = machines(BUILDD_TIER_WRITE="1"), machines(), machines()
    for user in (first, second, third):
        user.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
        lay_out(user, "checkout")
        (user.folder / "a.c").write_text("int a(void) { return 7; }\n")
    recording = str(tmp_path / "recording")
    command = f"gcc -c a.c -o a.o && {sys.executable} prog.py ran"
    assert first.buildd("run", "--record", recording, "--", "sh", "-c", command)[0] == 0
    pull = ("cache", "pull", "--manifest", recording, "--python", sys.executable)
    assert first.buildd("cache", "push")[0] == 0
    status, said = second.buildd(*pull)
    assert status == 0 and "3 results fetched from the tier" in said, said
    cache.fault = Fault.NO_RIGHTS
    status, said = third.buildd(*pull)
    assert status == 3 and "the tier failed" in said, said
    status, said = second.buildd(*pull, "--arch", "sm_90")
    assert status == 2 and "leave out" in said


def test_a_dead_tier_is_named(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    (tmp_path / "buildd.toml").write_text("")
    machines()
    second = machines()
    cache.fault = Fault.NO_RIGHTS
    status, said = second.buildd("cache", "pull", "-C", str(tmp_path))
    assert status == 3 and f"the tier {cache.url} refuses access" in said, said
    second.environ["BUILDD_TIER"] = "no"
    status, said = second.buildd("cache", "pull", "-C", str(tmp_path))
    assert status == 2 and "there is no shared tier" in said and "BUILDD_TIER" in said
