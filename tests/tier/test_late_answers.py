"""A tier that answers after the job has begun changes nothing of what the build knows of its files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildd.keys.lookup import Lookup
from protocol import messages as m
from tests.support.tiers import ALICE, HttpCache, http_cache, tier_at, write_all
from tests.tier.test_sharing import built, machine


@pytest.fixture
def cache() -> Iterator[HttpCache]:
    with http_cache() as made:
        yield made


def test_a_comparison_that_ends_late_is_no_part_of_the_build(
    tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier knows a run that read other headers. Its files are compared while the job ends; then the record of the
    build must name what the job read, so that an edit of that header is seen."""
    first = machine(tmp_path, "first")
    first.write("include/other.h", "other\n")
    first.write("include/h.h", '#include "other.h"\n')
    built(first, tier_at(cache.url, writer=ALICE))
    write_all(first.store, cache.url)
    second = machine(tmp_path, "second")
    second.write("include/other.h", "other\n")
    ended, compared = threading.Event(), threading.Event()
    fits = _held(monkeypatch, ended, compared)
    monkeypatch.setattr("buildd.builds.shared_results.deadline_s", lambda *_: 0.05)
    monkeypatch.setattr("buildd.scheduling.result_keeper.shared_results.offer", lambda *_: _let_go(ended, compared))
    built(second, tier_at(cache.url))
    assert fits
    before = second.library
    second.write("include/h.h", "edited\n")
    story = built(second, None)
    assert len(story.ran()) == 3 and second.library != before
    assert story.done.outcome is m.Outcome.BUILT


def _held(monkeypatch: pytest.MonkeyPatch, ended: threading.Event, compared: threading.Event) -> list[bool]:
    """Comparisons wait until the first result was stored."""
    plain, done = Lookup.fits, list[bool]()

    def fits(lookup: Lookup, *asked: Any) -> bool:
        ended.wait(20)
        done.append(plain(lookup, *asked))
        compared.set()
        return done[-1]

    monkeypatch.setattr(Lookup, "fits", fits)
    return done


def _let_go(ended: threading.Event, compared: threading.Event) -> None:
    ended.set()
    compared.wait(20)
