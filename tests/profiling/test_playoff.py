"""The candidates that are measured again in turns, and their new times."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from buildd.profiling.bench import Measurement
from buildd.profiling.playoff import ROUNDS, Contest, Contestant, entrants, is_contested, rounds_of
from buildd.store.profiles import Outcome
from tests.support.profiling_cases import case_of


def runners(*times_us: float) -> list[Contestant]:
    case = case_of(len(times_us))
    found = [Measurement(outcome=Outcome.MEASURED, time_us=time_us, samples=1) for time_us in times_us]
    return [Contestant(case, ranked, "", one) for ranked, one in zip(case.ranked, found, strict=True)]


def times(some: Sequence[Contestant]) -> list[float]:
    return [one.found.time_us for one in some]


def test_only_who_is_near_the_best_is_asked_again() -> None:
    assert times(entrants(runners(10.4, 10.0, 10.6, 30.0))) == [10.0, 10.4]
    assert entrants(runners(10.0, 11.0)) == entrants(runners(10.0)) == entrants([]) == ()
    before, *others = runners(10.8, 10.0, 10.3, 10.7)
    assert is_contested(10.8, others) and times(entrants(others, before)) == [10.8, 10.0, 10.3], "it goes first"
    assert not is_contested(9.0, others) and not is_contested(20.0, others) and not is_contested(9.0, [])


def heard(contest: Contest, *rounds: tuple[float, ...]) -> list[list[float]]:
    """The result of each round, in any order."""
    return [
        times(contest.settled(field, msgspec.structs.replace(field[0].found, time_us=took[0], rivals_us=took[1:])))
        for field, took in zip(contest.rounds, rounds, strict=True)
    ]


def test_the_median_of_the_rounds_beside_the_first_one_counts() -> None:
    some = runners(10.0, 10.1, 10.2)
    a, b, c = some
    contest = Contest(some)
    assert contest.rounds == ((a, b, c), (b, c, a), (c, a, b)) and len(contest.rounds) == ROUNDS, "each is first once"
    *early, last = heard(contest, (20.0, 18.0, 22.0), (19.0, 23.0, 20.0), (99.0, 20.0, 18.0))
    assert early == [[], []] and last == pytest.approx([10.0, 9.0, 11.5]), "of the first one 0.9, and 1.15"


def test_each_round_may_be_of_another_gpu() -> None:
    """A GPU that is twice as fast changes nothing."""
    *_, last = heard(Contest(runners(10.0, 10.1)), (20.0, 18.0), (9.0, 10.0), (10.0, 9.0))
    assert last == [10.0, 9.0]


def test_the_longest_rounds_are_the_first() -> None:
    short, long = runners(1.0, 1.1), runners(10.0, 10.1)
    assert [order[0].found.time_us for _, order in rounds_of([short, (), long])] == [10.0, 10.1, 10.0, 1.0, 1.1, 1.0]


def test_what_fails_changes_nothing() -> None:
    for fails in (None, Measurement(outcome=Outcome.CRASHED), runners(10.0)[0].found):
        for number in range(ROUNDS):
            contest = Contest(runners(10.0, 10.1))
            right = msgspec.structs.replace(runners(10.0)[0].found, rivals_us=(9.0,))
            assert not any(
                contest.settled(field, fails if i == number else right) for i, field in enumerate(contest.rounds)
            )
