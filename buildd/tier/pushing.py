"""`buildd cache push`: everything in a store to the tier, now. For CI machines that end when the build has ended.

Knows no command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from buildd.errors import StoreError
from buildd.store import shared_kernels
from buildd.store.profiles import Profile
from buildd.store.store import Store
from buildd.tier import shared_profiles
from buildd.tier.carrier import CarrierError
from buildd.tier.carriers import TierError
from buildd.tier.entry_uploader import EntryUploader
from buildd.tier.figures import TierAnswer
from buildd.tier.opening import Opened, open_users_tier
from buildd.tier.tier_settings import place_of
from buildd.tier.uploader import Uploader
from codegen.variables.settings import Settings, user_file, user_values
from protocol.messages import Digest


@dataclass(frozen=True, slots=True)
class Pushed:
    """How a push ended."""

    results: int
    """How many results were written."""
    entries: int
    """How many kernels, graphs and programs."""
    profiles: int
    """How many measurements of kernels the tier did not have."""
    left: int
    """How many still wait because the tier failed."""
    problem: str
    """The tier's last failure, in words; empty where there was none."""


def push(store: Store, environ: Mapping[str, str], profiles: Iterable[Profile] = ()) -> Pushed:
    """Write all results of the store to the tier, the kernels, graphs and programs beside them, and profiles.

    Raises `TierError` where the user has named no tier that may be written, `StoreError`.
    """
    opened = open_users_tier(environ)
    tier = opened.tier
    if tier is None or tier.settings.signer is None:
        raise _unwritable(opened, environ)
    if store.read_only:
        raise StoreError("the store is read-only, so nothing can be noted in it", file=str(store.folder))
    uploader = Uploader(tier, store, tier.settings.signer)
    entries = EntryUploader(tier, store, tier.settings.signer, uploader.queue.folder)
    try:
        for key, first in _everything(store):
            uploader.queue.add(key, first)
        for place in shared_kernels.places(store.folder):
            entries.queue.add(place)
        left = uploader.write_all()
        results = tier.figures.counts()[TierAnswer.KEPT]
        left += entries.write_all()
        new = 0
        with suppress(CarrierError):  # the tier's figures have it
            new = shared_profiles.write(tier, tier.settings.signer, profiles)
    finally:
        tier.close()
        uploader.close()
        entries.close()
    return Pushed(results, entries.written, new, left, tier.figures.problem)


def _unwritable(opened: Opened, environ: Mapping[str, str]) -> TierError:
    """Why the user's tier cannot be written, and what to set in the place where they named it."""
    file, tier = user_file(environ), opened.tier
    if tier is None and opened.problem:
        return TierError(opened.problem, file=opened.place, next_step="correct it, then push again")
    if tier is None:
        way = f'set BUILDD_TIER and BUILDD_TIER_WRITE=1, or write url = "..." and write = true below [tier] of {file}'
        return TierError("there is no shared tier", next_step=way)
    if tier.settings.unwritable:
        return TierError("there is no signing key", next_step="run `buildd cache key`, then push again")
    settings = Settings(request_env=dict(environ), user_values=user_values(environ))
    if place_of(settings, environ)[1]:
        way = "add `write = true` below [tier], or set BUILDD_TIER_WRITE=1; then push again"
        return TierError(f"the shared tier {tier.shown} is only read", file=file, next_step=way)
    return TierError(
        f"the shared tier {tier.shown}, which BUILDD_TIER names, is only read",
        next_step="set BUILDD_TIER_WRITE=1, then push again",
    )


def _everything(store: Store) -> list[tuple[Digest, Digest]]:
    """Each result with a first-level key that leads to it, in the order of their last use: that of the last build."""
    rows = store.database.rows(
        "SELECT input_sets.key, min(first) FROM input_sets JOIN results ON results.key = input_sets.key"
        " GROUP BY input_sets.key ORDER BY min(used), min(input_sets.id)"
    )
    return [(Digest(key.hex()), Digest(first.hex())) for key, first in rows]
