"""Who is measured again in turns, what comes of it; and how much of its time a GPU measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from buildd.gpu_use import GpuUse
from buildd.measuring import GpuFailed, Measured
from buildd.playoff import ROUNDS, Runner, entrants, is_contested, settled
from buildd.profiles import Outcome
from tests.test_profiling import case_of


def runners(*times_us: float) -> list[Runner]:
    case = case_of(len(times_us))
    found = [Measured(outcome=Outcome.MEASURED, time_us=time_us, samples=1) for time_us in times_us]
    return [Runner(case, ranked, "", one) for ranked, one in zip(case.ranked, found, strict=True)]


def times(some: Sequence[Runner]) -> list[float]:
    return [one.found.time_us for one in some]


def test_only_who_is_near_the_best_is_asked_again() -> None:
    assert times(entrants(runners(10.4, 10.0, 10.6, 30.0))) == [10.0, 10.4]
    assert entrants(runners(10.0, 11.0)) == entrants(runners(10.0)) == entrants([]) == ()
    before, *others = runners(10.8, 10.0, 10.3, 10.7)
    assert is_contested(10.8, others) and times(entrants(others, before)) == [10.8, 10.0, 10.3], "it goes first"
    assert not is_contested(9.0, others) and not is_contested(20.0, others) and not is_contested(9.0, [])


def test_the_median_of_the_rounds_beside_the_first_one_counts() -> None:
    took = iter([(20.0, 18.0, 22.0), (19.0, 23.0, 21.0), (99.0, 20.0, 18.0)])
    asked: list[list[str]] = []

    async def measure(first: Runner, rivals: Sequence[Runner]) -> Measured:
        asked.append([one.ranked.candidate.name for one in (first, *rivals)])
        time_us, *others = next(took)
        return msgspec.structs.replace(first.found, time_us=time_us, rivals_us=tuple(others))

    some = runners(10.0, 10.1, 10.2)
    a, b, c = (one.ranked.candidate.name for one in some)
    found = asyncio.run(settled(some, measure))
    assert asked == [[a, b, c], [b, c, a], [c, a, b]] and len(asked) == ROUNDS, "each is first once"
    assert times(found) == [10.0, 9.0, 11.5], "medians 20, 18, 23"


def test_what_fails_changes_nothing() -> None:
    async def gone(first: Runner, rivals: Sequence[Runner]) -> Measured:
        raise GpuFailed("no driver")

    async def crashed(first: Runner, rivals: Sequence[Runner]) -> Measured:
        return Measured(outcome=Outcome.CRASHED)

    async def silent(first: Runner, rivals: Sequence[Runner]) -> Measured:
        return first.found

    for measure in (gone, crashed, silent):
        assert asyncio.run(settled(runners(10.0, 10.1), measure)) == []


def test_a_gpu_lies_unused_only_while_something_is_ready() -> None:
    now = [100.0]
    use = GpuUse(1, clock_s=lambda: now[0])
    assert (use.idle, use.unused) == (0.0, 0.0)
    use.note(ready=1)
    now[0] += 1
    with use.turn():
        now[0] += 2
    use.note(ready=-1)
    now[0] += 4
    use.note(ready=1)
    with use.turn():
        now[0] += 1
    assert (use.busy_s, use.idle, use.unused) == (3.0, 1 - 3 / 8, 1 / 8)
