"""The candidates that a call tries, by what it knows and learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from buildd.profiling.agenda import Agenda, Plan, Work
from buildd.profiling.bench import Measurement
from buildd.store.profile_cache import open_profiles
from buildd.store.profiles import Outcome
from buildd.store.store import Store
from codegen.tuning.survey import Case, Survey
from tests.support.carry_out import request_for
from tests.support.profiling_cases import A100, TARGET, case_of, survey_of


class Desk:
    """Agendas over one store."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.request = request_for(folder, store=str(store.folder), environment={})
        self.store = store
        self.said: list[str] = []

    def agenda(self, survey: Survey, *, top: int = 8, exhaustive: bool = False, gpu: bool = True) -> Agenda:
        gpus = (A100,) if gpu else ()
        plan = Plan(request=self.request, survey=survey, gpus=gpus, top=top, exhaustive=exhaustive)
        with open_profiles({}, self.store) as cache:
            agenda = Agenda(plan, cache, self.said.append)
            agenda.load()
        return agenda


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Store.open(tmp_path / "store") as store:
        yield Desk(tmp_path, store)


def numbers(case: Case, work: list[Work]) -> list[int]:
    return [case.ranked.index(ranked) for _, ranked in work]


def measured(time_us: float) -> Measurement:
    return Measurement(outcome=Outcome.MEASURED, time_us=time_us, samples=1)


def test_the_likeliest_of_each_problem_lead(desk: Desk) -> None:
    other = case_of(2, msgspec.structs.replace(TARGET, name="other", m=128))
    work = desk.agenda(survey_of(case_of(2), other), top=2).first_round()
    assert [case.target for case, _ in work] == ["g", "other", "g", "other"]


def test_measured_times_rule_candidates_out_unless_all_are_asked_for(desk: Desk) -> None:
    case = case_of(6)
    agenda, thorough = desk.agenda(survey_of(case)), desk.agenda(survey_of(case), exhaustive=True)
    for one in (agenda, thorough):
        assert numbers(case, one.first_round()) == list(range(6)) and one.best_us(case) == 0
        for ranked, time_us in zip(case.ranked, (5.0, 6.0, 7.0), strict=False):
            assert not one.cannot_win(case, case.ranked[5])
            one.learn(case, ranked, measured(time_us))
    assert agenda.cannot_win(case, case.ranked[5]) and not thorough.cannot_win(case, case.ranked[5])
    assert (agenda.best_us(case), thorough.best_us(case)) == (5.0, 0.0)


def test_a_guess_works_and_was_tried(desk: Desk) -> None:
    case = case_of(3)
    agenda = desk.agenda(survey_of(case), top=2, gpu=False)
    assert numbers(case, agenda.first_round()) == [0, 1]
    agenda.exclude(case, case.ranked[0])
    chosen = agenda.chosen(case)
    assert (chosen.candidate, chosen.known, chosen.time_us) == (case.ranked[1].candidate.name, False, 0)
