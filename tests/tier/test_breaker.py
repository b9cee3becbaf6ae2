"""The breaker: pure, so the tests give the time."""

from __future__ import annotations

from buildd.tier.breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        assert breaker.allows(0.0)
        breaker.failed(0.0)
    return breaker


def test_it_opens_after_some_failures_in_a_row_alone() -> None:
    breaker = Breaker()
    for _ in range(FAILURES * 2):
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.allows(0.0) and not breaker.is_open
    assert not opened().allows(FIRST_PAUSE_S - 0.1)


def test_after_a_pause_one_caller_looks_and_the_others_wait() -> None:
    breaker = opened()
    assert breaker.allows(FIRST_PAUSE_S)
    assert not breaker.allows(FIRST_PAUSE_S + 0.1)
    breaker.succeeded()
    assert breaker.allows(FIRST_PAUSE_S + 0.2)


def test_each_look_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(12):
        now_s += breaker.open_for_s(now_s)
        assert breaker.allows(now_s)
        breaker.failed(now_s)
        pauses.append(breaker.open_for_s(now_s))
    assert pauses[:3] == [20.0, 40.0, 80.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_what_was_under_way_when_it_opened_does_not_make_the_pause_longer() -> None:
    breaker = opened()
    for _ in range(30):
        breaker.failed(1.0)
    assert breaker.open_for_s(0.0) == FIRST_PAUSE_S


def test_a_refused_access_opens_it_at_once() -> None:
    breaker = Breaker()
    breaker.failed(0.0, at_once=True)
    assert not breaker.allows(1.0)
