"""Two users share a tier: what JAX compiled for the first one, the second one's programs find there."""

from __future__ import annotations

import pytest

from tests.support.jax_program import JaxProgram, entries_of
from tests.support.tier_users import machines_at, until_written
from tests.support.tiers import http_cache

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]


def test_programs_that_another_machine_compiled_are_not_compiled_again() -> None:
    with http_cache() as cache, machines_at(cache) as machines:
        one = machines(BUILDD_TIER_WRITE="1")
        first = JaxProgram(one).run()
        assert first.compiled == len(entries_of(one)) > 1
        until_written(cache, first.compiled + 1)  # and the trail
        second = JaxProgram(machines()).run()
        assert (second.compiled, second.loss) == (0, first.loss)
        assert f"{second.hits} JAX programs from the store" in second.errors
