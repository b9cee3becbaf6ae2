"""`buildd profile`'s work with a fake measuring process: order, overlap, faults, variables; and the command itself."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.client.candidate_builds import Built
from buildd.errors import StoreError
from buildd.host.gpu_lock import lock
from buildd.profiling import aitemplate_cache
from buildd.profiling.agenda import Plan
from buildd.profiling.campaign import Profiling
from buildd.profiling.gpus import find_gpus, visible
from buildd.profiling.harness import harness, question
from buildd.profiling.reports import Summary, Told, Tried
from buildd.store.profile_cache import ProfileCache, open_profiles
from buildd.store.store import Store
from codegen.errors import RequestError
from codegen.gemm import best_kernels as best
from codegen.gemm.gemm import MEASURE as MEASURE_SOURCE
from codegen.gemm.kernel_options import Candidate, candidate_from, problem_of
from codegen.plan import Knowledge
from codegen.plan import Plan as CodePlan
from codegen.project.target import GemmTarget
from codegen.tuning.survey import Case, Survey, candidate_spec, survey
from protocol import messages as m
from tests.support.carry_out import answered, plan_for, request_for
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.profiling_cases import A100, LISTED, MEASURE, PROJECT, TARGET, case_of, smi, survey_of
from tests.support.waiting import until_async
from tests.support.word_bench import WordBench

DEADLINE_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def names(case: Case) -> list[str]:
    return [ranked.candidate.name for ranked in case.ranked]


def test_the_fastest_is_kept_and_known_the_next_time(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 12", "time 8", "time 30"), case_of(3)
    summary = bench.profile(survey_of(case), most_builds=1)
    first, second, third = names(case)
    assert bench.tried == {first: "measured", second: "measured", third: "hopeless"}
    assert [(one.candidate, one.time_us, one.known) for one in bench.chosen] == [(second, 8.0, False)]
    assert (summary.built, summary.measured, summary.failed) == (3, 3, 0)
    row = bench.rows()[second]
    assert (row.setting.gpu, row.setting.driver, row.checked, row.workspace_bytes) == ("NVIDIA A100", "580.1", True, 64)
    assert not list((tmp_path / "build").iterdir()), "candidates do not stay in the project"
    bench.told.clear()
    assert bench.profile(survey_of(case)).measured == 0
    assert [(one.candidate, one.known) for one in bench.chosen] == [(second, True)] and len(bench.asked) == 3
    other = msgspec.structs.replace(A100, driver="590.0")
    assert bench.profile(survey_of(case), (other,)).measured == 3, "another driver knows nothing yet"


def test_whatever_a_candidate_does_costs_only_the_candidate(tmp_path: Path, store: Store) -> None:
    words = ("crash", "hang", "wrong", "fail", "time 9 0.5", "early")
    bench, case = WordBench(tmp_path, store, *words), case_of(6)
    summary = bench.profile(survey_of(case), timeout_s=2.0)
    outcomes = ["crashed", "hung", "wrong", "unbuilt", "measured", "hung"]
    assert bench.tried == dict(zip(names(case), outcomes, strict=True))
    assert {name: row.outcome.value for name, row in bench.rows().items()} == bench.tried
    notes = {told.candidate: told.note for told in bench.told if isinstance(told, Tried)}
    assert "signal 11: an illegal memory access" in notes[names(case)[0]]
    assert "killed after" in notes[names(case)[1]] and "noisy" in notes[names(case)[4]]
    assert (summary.measured, summary.failed) == (1, 5) and bench.chosen[0].candidate == names(case)[4]
    assert bench.profile(survey_of(case)).measured == 0, "what fails is not tried again"


def test_a_launch_that_does_not_compile_alone_is_compiled_with_its_kernel(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 12", "fail"), case_of(2)
    bench.launches = False
    summary = bench.profile(survey_of(case))
    first, second = names(case)
    assert bench.tried == {first: "measured", second: "unbuilt"} and len(bench.asked) == 4
    assert (summary.built, summary.failed) == (1, 1)
    (line,) = bench.said
    assert "no launch" in line and "BUILDD_SPLIT_KERNELS=0" in line, "once for all"
    bench = WordBench(tmp_path, store, "fail", "fail")
    bench.profile(survey_of(case, again=True))
    assert len(bench.asked) == 2 and not bench.said, "what is in one source anyway is not compiled twice"


def test_what_is_not_understood_is_no_time(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "garbage", "lie", "refused"), case_of(3)
    bench.profile(survey_of(case))
    assert bench.tried == dict(zip(names(case), ("crashed", "crashed", "refused"), strict=True))
    assert bench.chosen[0].time_us == 0.0


def test_a_candidate_is_measured_while_others_are_built(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 5", "time 6"), case_of(2)
    measured = asyncio.Event()

    async def wait_for_the_first(number: int) -> None:
        if number == 1:
            await measured.wait()

    bench.before = wait_for_the_first
    bench.told = _Noticing(lambda told: measured.set())  # type: ignore[assignment]
    bench.profile(survey_of(case))
    assert list(bench.tried.values()) == ["measured", "measured"]


class _Noticing(list[Told]):
    def __init__(self, notice: Callable[[Told], None]) -> None:
        super().__init__()
        self._notice = notice

    def append(self, told: Told) -> None:
        super().append(told)
        self._notice(told)


def test_problems_share_candidates(tmp_path: Path, store: Store) -> None:
    other = msgspec.structs.replace(TARGET, name="h", m=128)
    bench, cases = WordBench(tmp_path, store, "time 5", "time 4"), (case_of(2), case_of(2, other))
    summary = bench.profile(survey_of(*cases))
    assert (summary.built, summary.measured) == (2, 4) and len(set(bench.asked)) == len(bench.asked) == 2
    assert [one.candidate for one in bench.chosen] == [names(cases[0])[1]] * 2
    odd = msgspec.structs.replace(TARGET, name="odd", n=60)
    assert bench.profile(survey_of(case_of(1, odd))).built == 1, "another alignment is another kernel"


def test_what_was_measured_is_published_at_the_end_also_where_a_process_was_killed_before(
    tmp_path: Path, store: Store
) -> None:
    bench, case = WordBench(tmp_path, store, "time 9", "time 5", "time 4"), case_of(3)
    file = store.folder / "profiles" / best.FILE

    def published() -> list[str]:
        return [one.candidate for one in best.published([str(file.parent)])]

    bench.profile(survey_of(case))
    assert published() == [names(case)[2]]
    with bench.open() as cache:  # rows of one that was killed: in the index, and not in the file
        setting = bench.plan(survey_of(case)).setting(case)
        ours = cache.of(setting, case.problem)[names(case)[0]]
        assert cache.save([msgspec.structs.replace(ours, time_us=2.0)], more=True)
        assert cache.save([msgspec.structs.replace(ours, time_us=1.0, candidate=names(case)[1])], more=True)
    assert bench.profile(survey_of(case)).measured == 0
    assert published() == [names(case)[1]]


def test_the_same_problem_with_other_flags_is_another_one(tmp_path: Path, store: Store) -> None:
    careful = msgspec.structs.replace(TARGET, name="careful", flags=("-fmad=false",))
    bench, cases = WordBench(tmp_path, store, "time 4", "time 5", "time 6"), (case_of(3), case_of(3, careful))
    bench.words_with["-fmad=false"] = ("time 9", "fail", "time 8")
    first, second, third = names(cases[0])
    assert names(cases[1]) == [first, second, third] and cases[0].problem == cases[1].problem
    given = survey_of(*cases, flags={"g": "", "careful": "-fmad=false"})
    assert bench.profile(survey_of(cases[0])).measured == 3
    bench.told.clear()
    # What one of them has measured says nothing of the other, in either order.
    for asked in (given, msgspec.structs.replace(given, cases=cases[::-1])):
        summary = bench.profile(asked)
        best = {one.target: (one.candidate, one.time_us) for one in bench.chosen}
        assert best == {"g": (first, 4.0), "careful": (third, 8.0)}
        assert (summary.measured, summary.failed) == ((2, 1) if asked is given else (0, 0))
    assert len(set(bench.asked)) == len(bench.asked) == 6
    with bench.open() as cache:
        setting = bench.plan(given).setting(cases[1])
        rows = {name: row.outcome.value for name, row in cache.of(setting, cases[1].problem).items()}
    assert rows == {first: "measured", second: "unbuilt", third: "measured"}


def test_only_the_likely_are_tried_unless_all_are_asked_for(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, *["time 5"] * 5), case_of(5)
    far = msgspec.structs.replace(case.ranked[-1], estimate_us=26.0)
    case = msgspec.structs.replace(case, ranked=(*case.ranked[:-1], far))
    assert bench.profile(survey_of(case), top=2).measured == 2
    assert bench.profile(survey_of(case)).measured == 2 and names(case)[4] not in bench.rows()
    assert bench.profile(survey_of(case), exhaustive=True).measured == 1
    assert len(bench.rows()) == 5


def test_more_than_the_likely_are_compiled_where_there_is_room(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, *["time 5"] * 5), case_of(5)
    assert bench.profile(survey_of(case), top=2, room=2).measured == 2
    assert bench.profile(survey_of(case), top=2, room=3).measured == 1
    assert set(bench.rows()) == set(names(case)[:3]), "the likeliest of the others"


def test_what_another_problem_compiles_is_measured_too(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 5", "time 4"), case_of(2)
    other = msgspec.structs.replace(TARGET, name="h", m=128)
    turned = msgspec.structs.replace(case_of(2, other), ranked=case_of(2, other).ranked[::-1])
    summary = bench.profile(survey_of(case, turned), top=1)
    assert (summary.built, summary.measured, len(set(bench.asked))) == (2, 4, 2)
    assert [one.candidate for one in bench.chosen] == [names(case)[1]] * 2
    assert bench.profile(survey_of(case, turned), top=1).measured == 0
    assert bench.profile(survey_of(case), (), top=1).built == 1, "without a GPU there is nothing to gain"


def five(bench: WordBench, *estimates_us: float) -> Case:
    """Candidates that are compiled one by one; the fourth only after the first three have been measured."""
    case, measured = case_of(5), asyncio.Event()
    told: list[Told] = []

    def notice(one: Told) -> None:
        told.append(one)
        if len(told) == 3:
            measured.set()

    async def wait_for_three(number: int) -> None:
        if number == 3:
            await measured.wait()

    bench.before, bench.told = wait_for_three, _Noticing(notice)
    ranked = zip(case.ranked, estimates_us, strict=True)
    return msgspec.structs.replace(
        case, ranked=tuple(msgspec.structs.replace(one, estimate_us=estimate) for one, estimate in ranked)
    )


def test_what_cannot_win_any_more_is_not_compiled(tmp_path: Path, store: Store) -> None:
    bench = WordBench(tmp_path, store, "time 20", "time 23", "time 25", "time 26", "time 1")
    case = five(bench, 10.0, 11.0, 12.0, 13.0, 14.0)
    summary = bench.profile(survey_of(case), most_builds=1)
    assert (summary.built, summary.measured, summary.skipped) == (4, 4, 1)
    assert bench.tried[names(case)[4]] == "skipped" and names(case)[4] not in bench.rows()
    bench.before = None
    assert bench.profile(survey_of(case)).built == 0, "nor the next time"
    summary = bench.profile(survey_of(case), exhaustive=True)
    assert (summary.built, summary.skipped, bench.chosen[-1].time_us) == (1, 0, 1.0)


def test_what_turns_out_to_be_worth_it_is_compiled_later(tmp_path: Path, store: Store) -> None:
    bench = WordBench(tmp_path, store, "time 20", "time 23", "time 25", "time 4", "time 3")
    case = five(bench, 10.0, 11.0, 12.0, 24.0, 14.0)
    summary = bench.profile(survey_of(case), most_builds=1)
    assert (summary.built, summary.measured, summary.skipped) == (5, 5, 0), "the fourth said how far they are off"
    assert bench.chosen[0].candidate == names(case)[4]


def test_who_is_nearly_as_fast_as_the_best_is_measured_again_in_turns(tmp_path: Path, store: Store) -> None:
    """Alone the first is faster, in turns the second; the third is too slow to be measured again."""
    bench, case = WordBench(tmp_path, store, "time 10 0.01 30", "time 10.2 0.01 24", "time 12 0.01 1"), case_of(3)
    summary = bench.profile(survey_of(case), most_builds=1)
    first, second, third = names(case)
    assert (summary.measured, bench.chosen[0].candidate, bench.chosen[0].time_us) == (3, second, 8.0)
    assert {name: row.time_us for name, row in bench.rows().items()} == {first: 10.0, second: 8.0, third: 12.0}, (
        "by the clock of the first time"
    )
    again = [told for told in bench.told if isinstance(told, Tried) and "in turns" in told.note]
    assert {told.candidate: told.time_us for told in again} == {first: 10.0, second: 8.0}
    assert bench.profile(survey_of(case)).measured == 0 and len(bench.asked) == 3, "once"


def test_the_best_of_an_earlier_call_defends_itself(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 10 0.01 30", "time 9.9 0.01 33", "time 20"), case_of(3)
    first, second, _ = names(case)
    likeliest = msgspec.structs.replace(case, ranked=case.ranked[:1])
    assert bench.profile(survey_of(likeliest)).measured == 1
    summary = bench.profile(survey_of(case), exhaustive=True)
    assert (summary.measured, bench.chosen[-1].candidate, bench.rows()[second].time_us) == (2, first, 11.0)
    assert bench.rows()[first].error == 1e-4, "the row of what was known stays as it was"
    assert bench.asked.count(bench.asked[0]) == 2, "its library is found again"


def test_what_fails_in_turns_keeps_its_time(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 10 0.01 -1", "time 10.2 0.01 -1"), case_of(2)
    bench.profile(survey_of(case))
    assert {row.time_us for row in bench.rows().values()} == {10.0, 10.2}


def test_two_that_profile_at_once_take_turns_on_a_gpu(tmp_path: Path, store: Store) -> None:
    busy = tmp_path / "busy"
    bench, case = WordBench(tmp_path, store, *[f"alone {busy} {time}" for time in (5, 6, 7)]), case_of(3)
    other = msgspec.structs.replace(TARGET, name="h", m=128)

    async def both() -> None:
        with bench.open() as cache:
            one = bench.begin(survey_of(case), cache).run()
            two = bench.begin(survey_of(case_of(3, other)), cache).run()
            await asyncio.gather(one, two)

    asyncio.run(asyncio.wait_for(both(), DEADLINE_S))
    assert set(bench.tried.values()) == {"measured"}


def test_several_gpus_share_the_work(tmp_path: Path, store: Store) -> None:
    """Each candidate waits for another that is measured at the same time: on a single GPU neither would end."""
    second = msgspec.structs.replace(A100, index=1, uuid="GPU-b")
    place = tmp_path / "place"
    os.mkfifo(place)
    bench, case = WordBench(tmp_path, store, f"meets {place} r 5", f"meets {place} w 4"), case_of(2)
    summary = bench.profile(survey_of(case), (A100, second))
    assert (summary.measured, summary.failed) == (2, 0) and set(bench.tried.values()) == {"measured"}
    assert sorted(path.name for path in (tmp_path / "leases").iterdir()) == ["GPU-a", "GPU-b"]
    taken = {told.gpu: told.gpu_s for told in bench.told if isinstance(told, Tried)}
    assert set(taken) == {"0", "1"} and min(taken.values()) > 0


def test_the_program_that_measures_is_asked_for_before_its_candidates(tmp_path: Path, store: Store) -> None:
    """If the measuring program is known, contexts are made while the candidates are looked up."""
    bench, case = WordBench(tmp_path, store, "time 5"), case_of(1)
    order: list[str] = []

    class Known:
        route = None

        async def build(self, request: m.Request) -> Built:
            if request.targets == ("measure",):
                await asyncio.sleep(0.01)
                order.append("measure")
                return Built(outcome=m.Outcome.BUILT, paths=MEASURE, hits=1)
            order.append("candidate")
            return await bench.build(request)

        async def close(self) -> None:
            pass

    request = request_for(tmp_path, store=str(store.folder), environment={"PATH": "/usr/bin:/bin"})
    plan = Plan(request=request, survey=survey_of(case), gpus=(A100,), top=8, leases=str(tmp_path / "leases"))
    with bench.open() as cache:
        profiling = Profiling(plan, Known(), cache, bench.told.append, bench.said.append)
        summary = asyncio.run(asyncio.wait_for(profiling.run(), DEADLINE_S))
    assert order == ["measure", "candidate"] and summary.measured == 1
    placed = store.folder / "profiles" / "measure" / "measure.cu"
    before = placed.stat()
    asyncio.run(harness(Known(), request, survey_of(case)))
    assert (placed.stat().st_ino, placed.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "as it was"
    placed.write_text("of another version")
    asyncio.run(harness(Known(), request, survey_of(case)))
    assert placed.read_bytes() == Path(MEASURE_SOURCE).read_bytes()


def test_each_gpu_has_one_context_one_after_another(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver makes contexts one by one, and a second one on a GPU takes longer than it saves."""
    starts, second = tmp_path / "starts", msgspec.structs.replace(A100, index=1, uuid="GPU-b")
    monkeypatch.setenv("STARTS", str(starts))
    bench, case = WordBench(tmp_path, store, "time 5", "time 4", "time 3"), case_of(3)

    async def compiles(number: int) -> None:
        await until_async(lambda: starts.exists() and len(starts.read_text().splitlines()) >= 4, "four starts")

    bench.before = compiles
    assert bench.profile(survey_of(case), (A100, second)).measured == 3
    lines = [line.split() for line in starts.read_text().splitlines()]
    assert [words[0] for words in lines] == ["start", "context"] * 2
    assert [words[1] for words in lines[::2]] == [gpu.shown_as for gpu in (A100, second)]


def test_who_measures_does_not_wait_for_who_writes_to_the_index(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 12", "time 8", "time 9"), case_of(3)

    async def profile() -> Summary:
        with bench.open() as cache, closing(sqlite3.connect(store.database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            running = asyncio.create_task(bench.begin(survey_of(case), cache).run())
            await until_async(lambda: len(bench.tried) == 3, "three are tried")
            assert not bench.rows()
            other.execute("ROLLBACK")
            return await running

    summary = asyncio.run(asyncio.wait_for(profile(), DEADLINE_S))
    assert summary.measured == 3 and not summary.dropped and not bench.said
    assert {row.outcome.value for row in bench.rows().values()} == {"measured"} and len(bench.rows()) == 3
    assert bench.chosen[0].candidate == names(case)[1]
    assert [one.candidate for one in best.published(best.folders({}, str(store.folder), "/"))] == [names(case)[1]]


def test_rows_that_cannot_be_written_are_said(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> bool:
        raise StoreError("no space left", file="index.db", next_step="free some space")

    monkeypatch.setattr(ProfileCache, "save", full)
    bench, case = WordBench(tmp_path, store, "time 12"), case_of(1)
    assert bench.profile(survey_of(case)).dropped
    assert bench.said == [f"measurements lost: {names(case)[0]}: no space left"]


def test_a_context_that_another_user_holds_up_holds_up_no_other_gpu(tmp_path: Path, store: Store) -> None:
    second = msgspec.structs.replace(A100, index=1, uuid="GPU-b")
    bench, case = WordBench(tmp_path, store, "time 5", "time 4"), case_of(2)

    async def profile() -> None:
        async with lock(A100.uuid, str(tmp_path / "leases")):
            with bench.open() as cache:
                running = asyncio.create_task(bench.begin(survey_of(case), cache, (A100, second)).run())
                await until_async(lambda: len(bench.tried) == 2, "two are tried")
        await running

    asyncio.run(asyncio.wait_for(profile(), DEADLINE_S))
    assert set(bench.tried.values()) == {"measured"}


def test_a_gpu_that_goes_away_is_not_the_candidates_fault(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, *["gpu"] * 5), case_of(5)
    summary = bench.profile(survey_of(case), most_builds=1)
    assert set(bench.tried.values()) <= {"not measured", "unbuilt"} and summary.measured == 0
    assert bench.rows() == {}, "it is tried again when there is a GPU"


def test_what_was_measured_before_a_flush_is_not_kept(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 5"), case_of(1)

    async def flush(number: int) -> None:
        with bench.open() as cache:
            cache.flush("another build")

    bench.before = flush
    assert bench.profile(survey_of(case)).dropped and bench.rows() == {}


def test_the_variables_of_profiling(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 5", "time 4"), case_of(2)
    assert bench.profile(survey_of(case, no_candidates=True)).built == 0, "DISABLE_PROFILER_CODEGEN"
    assert (bench.chosen[0].candidate, bench.chosen[0].time_us) == (names(case)[0], 0.0)
    assert bench.profile(survey_of(case, continuous_integration=True)).measured == 0
    assert len(bench.asked) == 2 and "seed" in bench.said[0] and bench.chosen[1].candidate == "64x64x32_w2x2x1_s3"
    bench.profile(survey_of(case))
    bench.words = ("time 3", "time 9")
    bench.profile(survey_of(case))
    assert bench.rows()[names(case)[0]].time_us == 5.0
    bench.profile(survey_of(case, again=True))
    assert bench.rows()[names(case)[0]].time_us == 3.0, "FORCE_PROFILE replaces the row"


def test_without_a_gpu_the_likely_are_only_built(tmp_path: Path, store: Store) -> None:
    bench, case = WordBench(tmp_path, store, "time 5", "time 4"), case_of(2)
    summary = bench.profile(survey_of(case), ())
    assert (summary.built, summary.measured) == (2, 0) and set(bench.tried.values()) == {"built"}
    assert bench.rows() == {}


def test_what_does_not_work_is_not_called_the_likeliest(tmp_path: Path, store: Store) -> None:
    case = case_of(2)
    for words, gpus, built, chosen in [
        (("fail", "time 4"), (), 1, names(case)[1]),
        (("fail", "fail"), (), 0, ""),
        (("wrong", "crash"), (A100,), 2, ""),
    ]:
        bench = WordBench(tmp_path, store, *words)
        summary = bench.profile(survey_of(case), gpus)
        assert (summary.built, summary.failed) == (built, 2 if not chosen else 1)
        assert bench.chosen[0].candidate == chosen
    # Nor is it the next time, when nothing is tried.
    assert bench.profile(survey_of(case)).built == 0 and bench.chosen[-1].candidate == ""


def test_names_of_candidates_are_read_back() -> None:
    for candidate in (
        Candidate(tile=(128, 128, 32), warps=(2, 2, 1), stages=4),
        Candidate(tile=(128, 256, 64), cluster=(2, 1, 1), schedule="cooperative"),
    ):
        assert candidate_from(candidate.name) == candidate
    assert candidate_from("cutlass_tensorop_f16") is None


# ---------------------------------------------------------------- GPUs


def test_gpus_are_what_nvidia_smi_says_and_the_variable_shows(tmp_path: Path) -> None:
    gpus, why = find_gpus(smi(tmp_path, LISTED))
    assert ([gpu.uuid for gpu in gpus], why) == (["GPU-11", "GPU-12"], "")
    shown = {None: 2, ("1",): 1, ("GPU-12", "0"): 2, ("7", "0"): 0, ("0", "0"): 1, ("GPU-1",): 0, (): 0}
    for devices, count in shown.items():
        assert len(visible(gpus, devices)) == count, devices
    assert "no nvidia-smi" in find_gpus({"PATH": str(tmp_path / "none")})[1]
    assert "driver" in find_gpus(smi(tmp_path, "echo no driver; exit 9"))[1]
    assert find_gpus(smi(tmp_path, "exit 0"))[1]


# ---------------------------------------------------------------- the command


@pytest.mark.cuda
def test_the_command_without_a_gpu(developer: Developer) -> None:
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    project = ("-C", str(developer.project))
    status, said = developer.buildd("profile", *project, "g", "--top", "3", "--json")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert status == 0 and [line["type"] for line in lines] == [*["tried"] * 3, "chosen", "summary"], said
    assert "no nvidia-smi" in said and lines[-1]["built"] == 3
    status, said = developer.buildd("profile", *project, "open")
    assert status == 2 and "leaves m, n, k open" in said and "--problem 4096x4096x4096" in said, said


def test_the_command_without_a_daemon(developer: Developer) -> None:
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    status, said = developer.buildd(
        "profile", "-C", str(developer.project), "g", "--top", "2", "--no-daemon", "--no-gpu"
    )
    assert status == 0 and "2 compiled" in said, said


@pytest.mark.cuda
@pytest.mark.slow
def test_the_command_with_a_gpu_on_which_nothing_can_run(developer: Developer) -> None:
    """A fake compiler's measuring program cannot run."""
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    project = ("-C", str(developer.project))
    tools = developer.folder / "tools"
    tools.mkdir()
    developer.environ["PATH"] = f"{smi(tools, LISTED.replace('9.0', '8.0'))['PATH']}:{developer.environ['PATH']}"
    status, said = developer.buildd("profile", *project, "g", "--top", "2")
    assert "not measured" in said and "cannot be started" in said and "0 measured" in said, said
    assert "is the most promising, not measured" in said
    status, said = developer.buildd("profile", *project, "open", "--problem", "512x512x512", "--top", "2")
    assert "0 compiled, 2 found" in said, "another problem, the same kernels"
    developer.environ |= {"AIT_FORCE_PROFILER_CACHE": "1"}
    for command, words in (("profile", "no measurement"), ("build", "nothing was measured")):
        status, said = developer.buildd(command, *project, "g")
        assert status == 2 and words in said and "AIT_FORCE_PROFILER_CACHE" in said, said


@pytest.mark.cuda
def test_a_build_takes_the_best_that_is_known_also_after_it_changed(developer: Developer, tmp_path: Path) -> None:
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))

    def build(*words: str, **environ: str) -> str:
        before = dict(developer.environ)
        developer.environ |= environ
        said = developer.build("g")
        developer.environ = before
        assert said.status == 0 and all(word in said.text for word in words), said.text
        return said.text

    assert "for sm_80" not in build("3 compiled")
    database = _aitemplate(tmp_path / "cuda.db")
    status, said = developer.buildd("cache", "import", "--aitemplate", str(database))
    assert status == 0 and "3 profiles imported, 2 of kernels" in said, said
    build("256x128x32_w4x2x1_s3 for sm_80, the best on an imported profile", "3 compiled")
    build("3 hits")
    assert "the best on" not in build("FLUSH_PROFILE_CACHE=1", FLUSH_PROFILE_CACHE="1")
    assert "the best on" not in build("0 compiled")
    assert developer.buildd("cache", "import", "--aitemplate", str(database))[0] == 0
    developer.environ["FLUSH_PROFILE_CACHE"] = "1"
    status, said = developer.buildd("run", "--quiet", "--", "true")
    assert status == 0 and "the profiles are emptied" in said, said
    del developer.environ["FLUSH_PROFILE_CACHE"]
    assert "the best on" not in build("0 compiled")


def test_a_choice_of_aitemplate_that_splits_k_is_one_for_targets_that_do(tmp_path: Path) -> None:
    whole, split, other = aitemplate_cache.read(_aitemplate(tmp_path / "cuda.db"))
    target = GemmTarget(name="g", m=512, n=512, k=512)
    assert whole.problem == problem_of(target, "sm_80")
    assert split.problem == problem_of(msgspec.structs.replace(target, split_k=2), "sm_80") != whole.problem
    assert whole.candidate == split.candidate == "256x128x32_w4x2x1_s3"
    assert other.problem.startswith("aitemplate ")


def test_what_is_no_database_of_aitemplate_is_said(tmp_path: Path) -> None:
    import sqlite3

    for content in (None, b"", b"text" * 1000):
        if content is not None:
            (tmp_path / "cuda.db").write_bytes(content)
        with pytest.raises(StoreError) as caught:
            aitemplate_cache.read(tmp_path / "cuda.db")
        assert caught.value.next_step and caught.value.file.endswith("cuda.db")
    (tmp_path / "cuda.db").unlink()
    with sqlite3.connect(tmp_path / "cuda.db") as made:
        made.execute("CREATE TABLE theirs (id INTEGER)")
    made.close()
    with pytest.raises(StoreError, match="not a profile database"):
        aitemplate_cache.read(tmp_path / "cuda.db")


@pytest.mark.cuda
def test_variables_in_a_plan(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(PROJECT)
    environ = {"PATH": "/usr/bin:/bin"}

    def plan(**variables: str) -> CodePlan:
        return plan_for(request_for(tmp_path, "g", environment={**environ, **variables}))

    smallest = plan(CI_FLAG="CIRCLECI")
    assert "CI_FLAG=CIRCLECI: the smallest kernel" in smallest.notices[0]
    assert any("_64x64x32_" in file.path for file in smallest.files)
    assert plan(CI_FLAG="GITHUB").files == plan().files, "only the literal word counts"
    test = plan(AIT_ENABLE_STANDALONE="1")
    assert [artifact.path for artifact in test.artifacts] == ["build/g/libg.so", "build/g-test/g-test"]
    assert b"g_run, g_workspace_bytes" in test.files[-1].content and b"{512, 512, 512}" in test.files[-1].content
    with pytest.raises(RequestError, match="nothing was measured"):
        plan(AIT_FORCE_PROFILER_CACHE="1")


def _aitemplate(place: Path) -> Path:
    """A database as AITemplate makes it: a choice for this problem, one for a target that splits, one of a conv."""
    import sqlite3

    with sqlite3.connect(place) as made:
        made.execute(
            "CREATE TABLE cuda_gemm_3 (id INTEGER PRIMARY KEY, exec_entry TEXT, exec_entry_sha1 TEXT, dtype_a INTEGER,"
            " op_type TEXT, epilogue INTEGER, device TEXT, algo TEXT, workspace INTEGER, duration INTEGER,"
            " split_k INTEGER, pshape TEXT)"
        )
        entry, algo = "M == 512 && N == 512 && K == 512", "cutlass_tensorop_f16_s16816gemm_f16_256x128_32x3_tn_align8"
        for split_k in (1, 2):
            made.execute(
                "INSERT INTO cuda_gemm_3 VALUES (?, ?, 'x', 14, 'gemm_rcr', 1, '80', ?, 0, -1, ?, '')",
                (split_k, entry, algo, split_k),
            )
        made.execute("CREATE TABLE cuda_conv_3 (id INTEGER PRIMARY KEY, device TEXT, algo TEXT, kh INTEGER)")
        made.execute("INSERT INTO cuda_conv_3 VALUES (1, '80', 'cutlass_conv', 3)")
    made.close()
    return place


@pytest.mark.cuda
@pytest.mark.slow
def test_a_real_candidate_compiles_and_its_measurer_says_what_is_missing(tmp_path: Path) -> None:
    from buildd.client.candidate_builds import InProcess

    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "buildd.toml").write_text(PROJECT)
    request = request_for(tmp_path / "project", "g", store=str(tmp_path / "store"), interpreter=sys.executable)
    knowledge = Knowledge()
    found = answered(lambda: survey(request, knowledge), knowledge)
    assert [case.target for case in found.cases] == ["g"] and len(found.cases[0].ranked) > 15
    told: list[Told] = []

    async def profile(store: Store, cache: ProfileCache) -> None:
        builder = InProcess(str(tmp_path / "store"))
        plan = Plan(request=request, survey=found, gpus=(A100,), top=1, leases=str(tmp_path / "leases"))
        try:
            await Profiling(plan, builder, cache, told.append, print).run()
        finally:
            await builder.close()

    with Store.open(tmp_path / "store") as store, open_profiles({}, store) as cache:
        asyncio.run(profile(store, cache))
    (tried,) = (one for one in told if isinstance(one, Tried))
    assert tried.outcome == "not measured" and tried.note.startswith("no GPU"), tried


@pytest.mark.cuda
def test_what_the_variables_ask_of_a_survey(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(PROJECT)
    environ = {"PATH": "/usr/bin:/bin", "CUTLASS_PATH": str(cutlass_in(tmp_path))}
    knowledge = Knowledge()

    def ask(**variables: str) -> Survey:
        request = request_for(tmp_path, "g", environment={**environ, **variables}, interpreter=sys.executable)
        return answered(lambda: survey(request, knowledge), knowledge)

    plain = ask()
    assert (plain.devices, plain.flags, plain.library) == (None, {"g": ""}, "")
    (case,) = plain.cases
    shapes = {(ranked.candidate.tile, ranked.candidate.stages) for ranked in case.ranked}
    assert len(shapes) > 15 and ((128, 128, 32), 4) in shapes
    assert ((256, 128, 64), 4) not in shapes, "does not fit shared memory"
    assert ask(CUDA_VISIBLE_DEVICES="1").devices == ("1",)
    assert ask(AIT_USE_FAST_MATH="1").flags["g"].startswith("--use_fast_math"), "other flags are other rows"
    assert ask(DISABLE_PROFILER_CODEGEN="1").no_candidates
    both = ask(DISABLE_PROFILER_CODEGEN="1", CI_FLAG="CIRCLECI", FORCE_PROFILE="1")
    assert both.again and not both.no_candidates and not both.continuous_integration
    assert ask(CI_FLAG="CIRCLECI").continuous_integration
    assert not ask(CI_FLAG="CIRCLECI", TRICK_CI_ENV="1").continuous_integration
    batched = {"kind": "gemm", "arch": ["sm_80"], "n": 64, "k": 64, "batched": True, "epilogue": "bias"}
    request = request_for(tmp_path, specs={"b": batched}, file="", environment=environ, interpreter=sys.executable)
    problems = [(512, 64, 64), (3, 512, 64, 32), (3, 512, 64, 64)]
    (case,) = answered(lambda: survey(request, knowledge, problems), knowledge).cases
    assert (case.dimensions, case.batch, case.operations) == ("3x512x64x64", 3, 2.0 * 3 * 512 * 64 * 64)
    assert question(case, "lib", "b")[2:5] == ("3x512", "64", "64")
    assert candidate_spec(case, case.ranked[0])[1]["batched"] is True
    with pytest.raises(RequestError, match="leaves batch, m open"):
        answered(lambda: survey(request, knowledge, problems[:1]), knowledge)
    with pytest.raises(RequestError, match="FORCE_PROFILE=1 asks for new measurements"):
        ask(FORCE_PROFILE="1", AIT_FORCE_PROFILER_CACHE="1")
