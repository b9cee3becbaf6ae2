"""Measurements of other machines come before a GPU measures, unless the user wants new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from buildd.profiling import shared_rows
from buildd.profiling.devices import Gpu
from buildd.store import signing
from buildd.store.profile_cache import open_profiles
from buildd.store.store import Store
from buildd.tier import shared_profiles
from tests.support.carry_out import request_for
from tests.support.profile_rows import H200, profiles_of, row
from tests.support.tiers import HttpCache, http_cache, tier_at

GPU = Gpu(index=0, uuid="GPU-1", name=H200.gpu, driver=H200.driver, capability="9.0")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpCache]:
    """A tier with measurements that this user has signed, without a daemon."""
    with http_cache() as made:
        for name, value in {"BUILDD_TIER": made.url, "BUILDD_TIER_WRITE": "1", "HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "keys"))
        own = signing.own({"BUILDD_KEY_DIR": str(tmp_path / "keys")})
        with closing(tier_at(made.url, writer=own)) as tier:
            shared_profiles.write(tier, own, [row("a"), row("b")])
        yield made


def fetched(folder: Path, environment: Mapping[str, str]) -> tuple[bool, list[str], list[str]]:
    """Whether rows came, what was said, and the candidates that the request's profiles have then."""
    said: list[str] = []
    request = request_for(folder, store=str(folder / "store"), environment=dict(environment))
    with Store.open(folder / "store") as store, open_profiles(environment, store, str(folder)) as rows:
        found = asyncio.run(shared_rows.fetch(request, GPU, store, rows, said.append))
        return found, said, sorted(one.candidate for one in rows.everything())


def test_a_command_without_a_daemon_asks_itself(tmp_path: Path, cache: HttpCache) -> None:
    found, said, candidates = fetched(tmp_path, {})
    assert found and said == ["2 measurements on NVIDIA H200 from the shared cache"] and candidates == ["a", "b"]
    assert fetched(tmp_path, {}) == (False, [], ["a", "b"])


def test_a_folder_of_its_own_gets_them_too(tmp_path: Path, cache: HttpCache) -> None:
    found, said, candidates = fetched(tmp_path, {"CACHE_DIR": str(tmp_path / "own")})
    assert found and candidates == ["a", "b"] and len(said) == 1
    assert (tmp_path / "own/buildd/best.json").exists()


@pytest.mark.parametrize("variable", ["FORCE_PROFILE", "FLUSH_PROFILE_CACHE"])
def test_a_user_who_wants_new_measurements_gets_them(tmp_path: Path, cache: HttpCache, variable: str) -> None:
    before = len(cache.asked)
    assert fetched(tmp_path, {variable: "1"}) == (False, [], []) and len(cache.asked) == before


def test_without_a_tier_nothing_is_asked(tmp_path: Path, cache: HttpCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_TIER", "no")
    assert fetched(tmp_path, {}) == (False, [], [])
    with Store.open(tmp_path / "store") as store:
        assert profiles_of(store).everything() == []
