"""A tier that answers after the job has begun changes nothing of what the build knows of its files."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from buildd.builds.active_build import ActiveBuild
from buildd.keys.lookup import Lookup
from buildd.store.result_rows import InputSet
from tests.support.tier_builds import built, machine
from tests.support.tiers import ALICE, http_cache, tier_at, write_all

WAIT_S = 20


def test_a_comparison_that_ends_late_is_no_part_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tier knows a run that read a header of another folder. It is compared while the job ends."""
    ended, compared, plain = threading.Event(), threading.Event(), Lookup.fitting
    known: list[tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]] = []

    def fitting(lookup: Lookup, *asked: Any) -> InputSet | None:
        ended.wait(WAIT_S)
        try:
            return plain(lookup, *asked)
        finally:
            compared.set()

    def stored(build: ActiveBuild, *_: object) -> None:
        before = dict(build.inputs.lookup.discovered)
        ended.set()
        compared.wait(WAIT_S)
        known.append((before, dict(build.inputs.lookup.discovered)))

    with http_cache() as cache:
        first = machine(tmp_path, "first")
        built(first, tier_at(cache.url, writer=ALICE))
        write_all(first.store, cache.url)
        second = machine(tmp_path, "second")
        second.write("first/h.h", "found before the one that the tier knows, which is there too\n")
        monkeypatch.setattr(Lookup, "fitting", fitting)
        monkeypatch.setattr("buildd.builds.shared_results.deadline_s", lambda *_: 0.05)
        monkeypatch.setattr("buildd.builds.shared_results.offer", stored)
        built(second, tier_at(cache.url))
    assert compared.is_set() and known
    assert all(before.items() <= after.items() for before, after in known)
