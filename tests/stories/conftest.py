"""Fixtures of the stories about users who share a tier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tier_users import Machines, machines_at
from tests.support.tiers import HttpCache, cache_of


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Iterator[HttpCache]:
    """A server that speaks Bazel's protocol for caches; a REAPI server for tests that say "grpc"."""
    with cache_of(getattr(request, "param", "http")) as made:
        yield made


@pytest.fixture
def machines(cache: HttpCache) -> Iterator[Machines]:
    """Makes users of that server."""
    with machines_at(cache) as made:
        yield made
