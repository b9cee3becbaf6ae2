"""Opens the user's tier, and describes it for `buildd status`.

A tier that cannot be used is no reason not to build: what is wrong is told, and builds go on without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from buildd.errors import BuilddError
from buildd.tier.store_tier import StoreTier
from buildd.tier.tier import Tier
from buildd.tier.tier_settings import Renewal, read
from codegen.errors import RequestError
from codegen.variables.settings import Settings, Source, user_file, user_values
from protocol.messages import TierStatus
from protocol.problem import in_one_line

_BELIEVES_NOBODY = "no key is trusted, so no entry is taken: buildd cache trust KEY NAME"


@dataclass(frozen=True, slots=True)
class Opened:
    """The tier, if the user has named one that can be used, and what was wrong when it was opened."""

    tier: Tier | None = None
    fault: str = ""
    place: str = ""
    """Where the user corrects it: a variable, or a file."""

    @property
    def problem(self) -> str:
        """What is wrong now."""
        return self.fault or ("" if self.tier is None or self.tier.settings.believed else _BELIEVES_NOBODY)


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
        renew = Renewal(wanted, settings, environ)
        tier = Tier(wanted, renew=renew, serves_programs=serves_programs, least_job_s=least_job_s)
        return Opened(tier, wanted.unwritable)
    except (RequestError, BuilddError) as error:
        named = settings.value("BUILDD_TIER")
        is_of_shell = bool(named.value) and named.source is Source.ENVIRONMENT
        return Opened(None, in_one_line(error), error.file or ("BUILDD_TIER" if is_of_shell else user_file(environ)))


def open_users_tier(environ: Mapping[str, str], *, least_job_s: float = 0.0) -> Opened:
    """The tier of a command that runs without the daemon."""
    try:
        settings = Settings(request_env=dict(environ), user_values=user_values(environ))
    except RequestError as error:
        return Opened(None, in_one_line(error), error.file)
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
