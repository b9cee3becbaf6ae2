"""Two users share a tier: what the first one's Triton compiled, the second one's programs find there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.tier_users import Machines, until_written
from tests.support.tiers import Fault, HttpCache
from tests.support.triton_program import lay_out
from tests.support.user import User

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(300)]


def laid_out(user: User) -> Path:
    user.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    return lay_out(user, "checkout")


def ran(user: User) -> str:
    """What the program prints."""
    status, said = user.buildd("run", "--", sys.executable, "prog.py", "ran")
    assert status == 0, said
    return said


def test_kernels_that_another_machine_compiled_are_not_compiled_again(cache: HttpCache, machines: Machines) -> None:
    first = machines(BUILDD_TIER_WRITE="1")
    laid_out(first)
    assert "2 kernels, 2 compiled" in ran(first)
    until_written(cache, 3)
    first.buildd("down")  # it may be writing the trail once more
    second = machines()
    laid_out(second)
    written = dict(cache.objects)
    said = ran(second)
    assert "2 kernels, 0 compiled" in said and "2 Triton kernels from the store" in said, said
    status = second.buildd("status")[1]
    assert "2 hits" in status, status
    assert cache.objects == written, "a reader wrote"
    asked = len(cache.asked)
    assert "2 kernels, 0 compiled" in ran(second) and len(cache.asked) == asked, "what is in the store is not asked for"


def test_a_lying_tier_changes_nothing(cache: HttpCache, machines: Machines) -> None:
    first = machines(BUILDD_TIER_WRITE="1")
    laid_out(first)
    ran(first)
    until_written(cache, 3)
    cache.fault = Fault.OTHER_BYTES
    second = machines()
    laid_out(second)
    assert "2 kernels, 2 compiled" in ran(second)
    assert "refused" in second.buildd("status")[1]
