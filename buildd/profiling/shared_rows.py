"""Measurements of other machines: asked for before a GPU measures, and told of after it has.

The daemon asks the shared tier, and puts checked rows into the store. Without a daemon this process does so. Knows
neither records nor candidates.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from buildd.hooks import tier_door
from buildd.profiling.gpus import Gpu
from buildd.store.profile_cache import ProfileCache
from buildd.store.profiles import Profile, Profiles
from buildd.store.store import Store
from buildd.tier.opening import open_users_tier
from buildd.tier.profile_exchange import ProfileExchange
from buildd.ui.text import count
from codegen.gemm.best_kernels import folders
from codegen.variables.settings import settings_of
from protocol.messages import Request


async def fetch(request: Request, gpu: Gpu, store: Store, cache: ProfileCache, say: Callable[[str], None]) -> bool:
    """Whether measurements of a GPU model have come from other machines.

    Args:
        cache: gets them; it need not be in the store.
        say: is told how many there are.
    """
    settings = settings_of(request)
    # Both want measurements of their own.
    if settings.is_on("FORCE_PROFILE") or settings.is_on("FLUSH_PROFILE_CACHE"):
        return False
    before = set(_rows_of(cache.everything(), gpu))
    await asyncio.to_thread(_ask, store, gpu.name)
    there = Profiles(store.database, Path(folders({}, str(store.folder), "/")[0])).everything()
    new = [row for row in _rows_of(there, gpu) if row not in before]
    if not new or not cache.save(new, older=False):
        return False
    say(f"{count(len(new), 'measurement')} on {gpu.name} from the shared cache")
    return True


def tell(store: Store) -> None:
    """Have new measurements of a store written to the tier, if this user writes."""
    tier_door.tell_measured(str(store.folder))


def _ask(store: Store, gpu: str) -> None:
    try:
        if tier_door.fetch_rows(str(store.folder), gpu) is not None:
            return
    except (OSError, ValueError):  # the daemon does not answer: the GPU measures
        return
    tier = open_users_tier(os.environ).tier
    if tier is None:
        return
    with closing(tier), closing(ProfileExchange(tier, store)) as exchange:
        begun = exchange.begin(gpu)
        if begun is not None:
            fetching, wait_s = begun
            try:
                fetching.result(timeout=wait_s)
            except TimeoutError:
                return


def _rows_of(rows: list[Profile], gpu: Gpu) -> list[Profile]:
    return [row for row in rows if row.setting.gpu == gpu.name]
