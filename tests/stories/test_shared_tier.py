"""Two users with daemons of their own share a tier: one writes in the background, the other one compiles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tier_users import Machines, until_written
from tests.support.tiers import HTTP_AND_GRPC, HttpCache


@pytest.mark.parametrize("cache", HTTP_AND_GRPC, indirect=True)
def test_compilers_below_run_hit_in_the_tier(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    (tmp_path / "k.h").write_text("#define K 1\n")
    for name in "ab":
        (tmp_path / f"{name}.c").write_text(f'#include "k.h"\nint {name}(void) {{ return K; }}\n')
    (tmp_path / "Makefile").write_text("all: a.o b.o\n%.o: %.c\n\tgcc -I. -c $< -o $@\n")
    first = machines(BUILDD_TIER_WRITE="1")
    assert "2 misses" in first.buildd("run", "--", "make", "-C", str(tmp_path))[1]
    made = (tmp_path / "a.o").read_bytes()
    until_written(cache, 4)
    for name in "ab":
        (tmp_path / f"{name}.o").unlink()
    second, written = machines(), dict(cache.objects)
    said = second.buildd("run", "--", "make", "-C", str(tmp_path))[1]
    assert "2 hits, 0 misses" in said, said
    assert (tmp_path / "a.o").read_bytes() == made
    status = second.buildd("status")[1]
    kind = "REAPI over gRPC" if cache.url.startswith("grpc") else "Bazel's HTTP cache"
    assert (
        f"tier  {cache.url} ({kind}), answers in" in status
        and "2 hits" in status
        and "trusts first, only read" in status
    )
    assert "of all, fetched from the tier" in second.buildd("cache", "stats")[1]
    assert cache.objects == written, "a reader wrote"


@pytest.mark.cuda
@pytest.mark.slow  # nvcc runs three times
def test_steps_and_links_hit_in_the_tier(tmp_path: Path, cache: HttpCache, machines: Machines) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] *= 2; }\n")
    project = tmp_path / "buildd.toml"
    project.write_text('[target.k]\nkind = "cuda"\nsources = ["k.cu"]\narch = ["sm_80"]\n')
    first = machines(BUILDD_TIER_WRITE="1")
    assert "2 compiled" in first.buildd("build", "-C", str(tmp_path))[1]
    until_written(cache, 8)
    second = machines()
    said = second.buildd("explain", "-C", str(tmp_path))[1]
    assert said.count(f"same inputs, from the tier {cache.url}, written by first") == 2, said
    assert "2 hits, 0 compiled" in second.buildd("build", "-C", str(tmp_path))[1]
    project.write_text(project.read_text() + 'flags = ["-Xcompiler", "-fno-strict-aliasing"]\n')
    third = machines()
    said = third.buildd("build", "-C", str(tmp_path))[1]
    assert "1 compiled" in said or "2 compiled" in said, said
    _, status = third.buildd("status")
    hits = int(status.partition(" hits")[0].rpartition(" ")[2])
    assert hits >= 1, "cicc depends on no flag of the host compiler"
