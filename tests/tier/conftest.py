"""Machines of tests may be slow: builds here wait for their tier, where a test is not about how long they wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from buildd.tier import fetcher, uploader
from tests.support.tiers import HttpCache, cache_of


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Iterator[HttpCache]:
    """A server of Bazel's HTTP cache; a REAPI server for tests that say "grpc"."""
    with cache_of(getattr(request, "param", "http")) as made:
        yield made


@pytest.fixture
def usual_patience() -> None:
    """For tests of how long a build waits: as long as it does for users."""


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "usual_patience" not in request.fixturenames:
        monkeypatch.setattr(fetcher, "_LEAST_SILENCE_S", 20.0)
        monkeypatch.setattr(fetcher, "_MOST_SILENCE_S", 20.0)
        monkeypatch.setattr(fetcher, "_LEAST_S", 60.0)
        monkeypatch.setattr(fetcher, "_ROUND_TRIPS", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are as if they were large: no record carries one, and their blobs are in `cas/` alone."""
    monkeypatch.setattr(uploader, "MOST_CARRIED_BYTES", -1)
