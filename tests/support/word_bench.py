"""A builder whose libraries are words for the fake measuring process, and what a campaign with them tells and keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from buildd.client.candidate_builds import Built
from buildd.profiling.agenda import Plan
from buildd.profiling.campaign import Profiling
from buildd.profiling.far_gpus import FarGpus
from buildd.profiling.gpus import Gpu
from buildd.profiling.reports import Chosen, Summary, Told, Tried
from buildd.store.profile_cache import ProfileCache, open_profiles
from buildd.store.profiles import Profile
from buildd.store.store import Store
from codegen.tuning.survey import Survey
from protocol import messages as m
from protocol.session import Route
from tests.support.carry_out import request_for
from tests.support.profiling_cases import A100, MEASURE, TILES

DEADLINE_S = 30.0


class WordBench:
    """A builder whose libraries are words for the fake measuring process, and the reports of a campaign."""

    def __init__(self, folder: Path, store: Store, *words: str) -> None:
        self.folder, self.store = folder, store
        self.words = words
        """Words of the candidates, in their order."""
        self.words_with: dict[str, tuple[str, ...]] = {}
        """Words of the candidates that are compiled with a flag."""
        self.asked: list[str] = []
        self.told: list[Told] = []
        self.said: list[str] = []
        self.before: Callable[[int], Any] | None = None
        self.launches = True
        """The host compiler compiles them."""
        self.environment: dict[str, str] = {}
        self.route: Route | None = None

    async def build(self, request: m.Request) -> Built:
        (name,) = request.targets
        table = msgspec.msgpack.decode(request.specs[name])
        number = next(i for i, (t, s) in enumerate(TILES) if list(t) == table["tile"] and s == table["stages"])
        self.asked.append(name)
        if self.before is not None:
            await self.before(number)
        if not self.launches and request.environment.get("BUILDD_SPLIT_KERNELS") != "0":
            failed = (f"{name}/build/kernels/gemm_sm90a_{number}.cpp.o",)
            return Built(outcome=m.Outcome.FAILED, is_its_own_fault=True, failed=failed, message="no launch", misses=1)
        words = next((self.words_with[flag] for flag in table["flags"] if flag in self.words_with), self.words)
        if words[number] == "fail":
            return Built(outcome=m.Outcome.FAILED, is_its_own_fault=True, message="no", misses=1)
        place = self.folder / "build" / name / f"lib{name}.so"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(words[number])
        return Built(outcome=m.Outcome.BUILT, paths=(str(place),), misses=1)

    async def close(self) -> None:
        pass

    def open(self) -> ProfileCache:
        return open_profiles(self.environment, self.store)

    def profile(self, survey: Survey, gpus: tuple[Gpu, ...] = (A100,), **fields: Any) -> Summary:
        with self.open() as cache:
            return asyncio.run(asyncio.wait_for(self.begin(survey, cache, gpus, **fields).run(), DEADLINE_S))

    def plan(self, survey: Survey, gpus: tuple[Gpu, ...] = (A100,), **fields: Any) -> Plan:
        request = request_for(self.folder, store=str(self.store.folder), environment={"PATH": "/usr/bin:/bin"})
        leases, fields = str(self.folder / "leases"), {"top": 8, **fields}
        return Plan(request=request, survey=survey, gpus=gpus, measure=MEASURE, leases=leases, **fields)

    def begin(
        self,
        survey: Survey,
        cache: ProfileCache,
        gpus: tuple[Gpu, ...] = (A100,),
        *,
        far: FarGpus | None = None,
        **fields: Any,
    ) -> Profiling:
        plan = self.plan(survey, gpus, **fields)
        return Profiling(plan, self, cache, self.told.append, self.said.append, far=far)

    @property
    def tried(self) -> dict[str, str]:
        return {told.candidate: told.outcome for told in self.told if isinstance(told, Tried)}

    @property
    def chosen(self) -> list[Chosen]:
        return [told for told in self.told if isinstance(told, Chosen)]

    def rows(self) -> dict[str, Profile]:
        with self.open() as cache:
            assert cache._own is not None
            return {row.candidate: row for row in cache._own.everything()}
