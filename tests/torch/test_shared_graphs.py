"""Two users share a tier: what Inductor compiled for the first one, the second one's programs find there."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.inductor_program import PROGRAM
from tests.support.tier_users import machines_at, until_written
from tests.support.tiers import http_cache
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(500)]


def ran(user: User) -> dict[str, object]:
    """What the program prints, with Inductor's caches in an empty folder."""
    (user.folder / "model.py").write_text(PROGRAM)
    user.environ["TORCHINDUCTOR_CACHE_DIR"] = str(user.folder / "inductor")
    status, said = user.buildd("run", "--", sys.executable, "model.py", timeout_s=300)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found: dict[str, object] = json.loads(line)
    return found


def test_graphs_that_another_machine_compiled_are_not_compiled_again() -> None:
    with http_cache() as cache, machines_at(cache) as machines:
        first = ran(machines(BUILDD_TIER_WRITE="1"))
        assert first["missed"] == 3
        until_written(cache, 7)  # and the trail
        second = ran(machines())
        assert (second["missed"], second["sums"]) == (0, first["sums"])
        assert second["hits"] == 3
