"""Opens the user's tier, and describes it for `buildd status`.

A tier that cannot be used is no reason not to build: what is wrong is told, and builds go on without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from buildd.errors import BuilddError
from buildd.tier.store_tier import StoreTier
from buildd.tier.tier import Tier
from buildd.tier.tier_settings import read
from codegen.errors import RequestError
from codegen.variables.settings import Settings, user_values
from protocol.messages import TierStatus
from protocol.problem import in_one_line

_BELIEVES_NOBODY = "no key is trusted, so no entry is taken: buildd cache trust KEY NAME"


@dataclass(frozen=True, slots=True)
class Opened:
    """The tier, if the user has named one that can be used, and what is wrong."""

    tier: Tier | None = None
    problem: str = ""


def open_tier(
    settings: Settings, environ: Mapping[str, str], *, serves_programs: bool = False, least_job_s: float = 0.0
) -> Opened:
    """The user's tier. Raises nothing.

    Args:
        serves_programs: whether programs may ask this process for entries.
        least_job_s: see `Tier`.
    """
    try:
        wanted = read(settings, environ)
        if wanted is None:
            return Opened()
        problem = wanted.unwritable or ("" if wanted.believed else _BELIEVES_NOBODY)
        return Opened(Tier(wanted, serves_programs=serves_programs, least_job_s=least_job_s), problem)
    except (RequestError, BuilddError) as error:
        return Opened(None, in_one_line(error))


def open_users_tier(environ: Mapping[str, str], *, least_job_s: float = 0.0) -> Opened:
    """The tier of a command that runs without the daemon."""
    try:
        settings = Settings(request_env=dict(environ), user_values=user_values(environ))
    except RequestError as error:
        return Opened(None, in_one_line(error))
    return open_tier(settings, environ, least_job_s=least_job_s)


def status_of(opened: Opened, stores: Collection[StoreTier]) -> TierStatus | None:
    """The tier's status; None where the user has named none."""
    tier = opened.tier
    if tier is None:
        return TierStatus(url="", problem=opened.problem) if opened.problem else None
    reading_s, writing_s = tier.paused_s()
    figures = tier.figures
    return TierStatus(
        url=tier.shown,
        kind=tier.kind,
        believed=tuple(name or key.hex()[:16] for key, name in tier.settings.believed),
        writes=tier.settings.signer is not None,
        usual_s=figures.usual_s,
        counts={answer.value: count for answer, count in figures.counts().items() if count},
        waiting=sum(each.waiting for each in stores),
        unread_for_s=reading_s,
        unwritten_for_s=writing_s,
        problem=figures.problem or opened.problem,
    )
