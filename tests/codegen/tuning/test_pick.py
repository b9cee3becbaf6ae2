"""Which candidates are tried: what several problems share, and when another compile cannot gain anything."""

from __future__ import annotations

import msgspec

from codegen.gemm.candidates import Ranked, estimate_us
from codegen.gemm.capability import runs_on
from codegen.gemm.kernel_options import Candidate, problem_of
from codegen.gemm.spec import kernel_for
from codegen.project.target import GemmTarget
from codegen.tuning.pick import cannot_win, for_capability, likely, likely_of, shared
from codegen.tuning.survey import Case, candidate_spec

SMALL, MIDDLE, LARGE = (64, 64, 32), (128, 64, 32), (128, 128, 32)


def case_of(name: str, estimates: dict[tuple[int, int, int], float], **sizes: int) -> Case:
    target = GemmTarget(name=name, **{"m": 64, "n": 64, "k": 64, **sizes})
    ranked = []
    for tile, promised_us in sorted(estimates.items(), key=lambda item: item[1]):
        candidate = Candidate(tile=tile, warps=(2, 2, 1), stages=3)
        kernel = kernel_for(candidate.of(target), "sm_80").name
        ranked.append(Ranked(candidate=candidate, kernel=kernel, estimate_us=promised_us))
    return Case(name, "sm_80", problem_of(target, "sm_80"), (target.m, target.n, target.k), target, tuple(ranked))


def tiles(ranked: tuple[Ranked, ...]) -> list[tuple[int, int, int]]:
    return [one.candidate.tile for one in ranked]


def brought(cases: list[Case], top: int) -> list[tuple[Ranked, ...]]:
    return shared(cases, likely_of(cases, top))


def test_the_likely_are_few_and_near_the_best() -> None:
    case = case_of("g", {SMALL: 10.0, MIDDLE: 24.0, LARGE: 26.0})
    assert tiles(likely(case, 8)) == [SMALL, MIDDLE] and tiles(likely(case, 1)) == [SMALL]
    assert likely(msgspec.structs.replace(case, ranked=()), 8) == ()


def test_what_one_problem_compiles_is_measured_for_others_that_it_might_suit() -> None:
    first = case_of("first", {SMALL: 10.0, MIDDLE: 11.0, LARGE: 90.0})
    second = case_of("second", {LARGE: 10.0, MIDDLE: 12.0, SMALL: 14.0})
    assert [tiles(ranked) for ranked in brought([first, second], 1)] == [[], [SMALL]], "LARGE is hopeless for the first"
    assert [tiles(ranked) for ranked in brought([first, second], 2)] == [[], [SMALL]]
    assert brought([first], 2) == [()]
    odd = case_of("odd", {LARGE: 10.0, SMALL: 11.0}, n=60)
    assert brought([first, odd], 1) == [(), ()], "another alignment is another kernel"


def test_where_processors_would_wait_more_is_compiled_the_nearest_to_the_best_first() -> None:
    first = case_of("first", {SMALL: 10.0, MIDDLE: 14.0, LARGE: 90.0})
    second = case_of("second", {LARGE: 10.0, MIDDLE: 11.0, SMALL: 14.0})
    assert [tiles(some) for some in likely_of([first, second], 1)] == [[SMALL], [LARGE]]
    assert [tiles(some) for some in likely_of([first, second], 1, room=2)] == [[SMALL], [LARGE]]
    assert [tiles(some) for some in likely_of([first, second], 1, room=3)] == [[SMALL], [LARGE, MIDDLE]]
    assert [tiles(some) for some in likely_of([first, second], 1, room=9)] == [[SMALL], [LARGE, MIDDLE]]
    assert [tiles(some) for some in likely_of([first], 1, room=9)] == [[SMALL, MIDDLE]], "LARGE is hopeless"


def test_a_split_k_is_the_problems_own() -> None:
    few, deep = (64, 64, 16384), {"m": 64, "n": 64, "k": 16384}
    whole, split = (case_of("g", {SMALL: 10.0}, **deep, split_k=parts) for parts in (1, 8))
    (one,), (other,) = whole.ranked, split.ranked
    name, table = candidate_spec(split, other)
    assert table["split_k"] == 8 and name != candidate_spec(whole, one)[0]
    assert (whole.problem, whole.tolerance) != (split.problem, split.tolerance)
    kernels = [kernel_for(other.candidate.of(case.spec), "sm_80") for case in (whole, split)]
    slow, fast = (
        estimate_us(kernel, case.spec, "sm_80", few) for kernel, case in zip(kernels, (whole, split), strict=True)
    )
    assert fast < slow / 2, "eight processors have something to do"


def test_a_candidate_cannot_win_where_the_most_flattering_measurement_says_so() -> None:
    measured = [(10.0, 20.0), (11.0, 21.0), (12.0, 30.0)]
    assert not cannot_win(50.0, measured[:2]), "two say too little of how far the estimates are off"
    assert cannot_win(13.0, measured), "at 21 / 11 of its estimate it takes 24.8"
    assert not cannot_win(10.0, measured), "at 21 / 11 of its estimate it takes 19.1"
    assert cannot_win(10.4, measured), "19.9 is not enough of a gain on 20 for a compile"
    assert not cannot_win(1.0, [(0.0, 5.0)] * 5), "of what has no estimate nothing follows"


def test_a_gpu_takes_the_highest_architecture_that_it_runs() -> None:
    def at(arch: str) -> Case:
        return msgspec.structs.replace(case_of("g", {SMALL: 1.0}), arch=arch)

    cases = [at("sm_80"), at("sm_90a"), at("sm_90")]
    assert for_capability(cases, "9.0")["g"].arch == "sm_90a"
    assert for_capability(cases, "8.6")["g"].arch == "sm_80" and for_capability(cases, "10.0") == {}


def test_what_runs_where() -> None:
    fits = [("sm_80", "8.0"), ("sm_80", "8.6"), ("sm_90a", "9.0"), ("sm_90", "9.0")]
    assert all(runs_on(*one) for one in fits)
    assert not any(runs_on(*one) for one in [("sm_80", "9.0"), ("sm_86", "8.0"), ("sm_90a", "9.1"), ("sm_80", "?")])


def test_estimates_of_hopper_tell_clusters_schedules_and_narrow_tiles_apart() -> None:
    def promised_us(tile: tuple[int, int, int], cluster: tuple[int, int, int], schedule: str, *sizes: int) -> float:
        m, n, k = sizes
        target = GemmTarget(name="g", m=m, n=n, k=k)
        kernel = kernel_for(Candidate(tile=tile, cluster=cluster, schedule=schedule).of(target), "sm_90a")
        return estimate_us(kernel, target, "sm_90a", (m, n, k))

    alone, across, square = (1, 1, 1), (1, 2, 1), (4096, 4096, 4096)
    middle, wide, narrow = (128, 128, 64), (128, 256, 64), (128, 64, 64)
    assert promised_us(middle, across, "pingpong", *square) < 0.9 * promised_us(middle, alone, "pingpong", *square)
    assert promised_us(narrow, across, "pingpong", *square) > 1.2 * promised_us(middle, across, "pingpong", *square)
    few = (1024, 1024, 1024)
    assert promised_us(narrow, across, "pingpong", *few) < promised_us(narrow, alone, "pingpong", *few), (
        "also few tiles"
    )
    deep, flat = (2048, 8192, 8192), (2048, 8192, 1024)
    assert promised_us(wide, across, "cooperative", *deep) < promised_us(middle, across, "pingpong", *deep)
    assert promised_us(wide, across, "cooperative", *flat) > promised_us(middle, across, "pingpong", *flat), "stores"
    # A tile that is alone on its processor is stored by all of its threads at once, and few tiles load nearly as fast.
    assert promised_us(narrow, across, "cooperative", *few) < promised_us(narrow, across, "pingpong", *few)
    thin = (16, 4096, 4096)
    assert promised_us(middle, across, "cooperative", *thin) < 1.5 * promised_us(narrow, across, "cooperative", *thin)
