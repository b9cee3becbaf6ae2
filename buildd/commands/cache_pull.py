"""`buildd cache pull`: brings what a build would ask the shared tier for into the store, before it is needed.

For images of CI machines, and for laptops that will be without a network. Asks as `buildd explain` does, and waits
longer than a build would. Knows no record of the tier.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from buildd.ui.text import count, size

if TYPE_CHECKING:
    from buildd.store.store import Store
    from buildd.tier.tier import Tier
    from protocol.messages import Done, Event, Explained

PATIENCE_S = 60.0
"""A look-up may take as long as one for a job of this length."""
_MOST_SHOWN = 20
_FAILED = 3


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `--json`."""

    there: int
    """Results that the store has now."""
    missing: list[str]
    """Names of actions whose results the tier lacks."""
    fetched: int
    """How many of the results came from the tier now."""
    received_bytes: int
    profiles: int
    """New measurements of kernels."""
    refused: int
    """Entries that were not taken."""
    problem: str
    """Why the tier failed, in words; empty where it did not."""

    @property
    def lines(self) -> list[str]:
        """For people."""
        said = f"{count(self.fetched, 'result')} fetched, {size(self.received_bytes)}"
        lines = [f"{said}; the store has {self.there} of {self.there + len(self.missing)}"]
        if self.profiles:
            lines.append(f"{count(self.profiles, 'profile')} fetched")
        if self.refused:
            lines.append(f"{count(self.refused, 'entry', 'entries')} refused: `buildd doctor` asks the tier")
        lines += [f"not there: {name}" for name in self.missing[:_MOST_SHOWN]]
        if len(self.missing) > _MOST_SHOWN:
            lines.append(f"and {len(self.missing) - _MOST_SHOWN} more: --json names all")
        return lines


def pull(store: Store, options: Namespace) -> Pulled:
    """Fetch what the targets need. Raises `TierError` where there is no tier, `StoreError`, RequestError."""
    from buildd.tier.carrier import CarrierError
    from buildd.tier.figures import TierAnswer

    environ: Mapping[str, str] = options.environ
    tier = _tier(environ)
    told: list[Explained] = []
    profiles = 0
    try:
        # First: plans use the kernels that profiles show to be best.
        profiles = _pull_profiles(store, options, tier)
        done = _look_up(store, options, tier, _progress(told, environ))
    except CarrierError:
        done = None
    finally:
        tier.close()
    counts = tier.figures.counts()
    problem = tier.figures.problem if counts[TierAnswer.FAILED] else ""
    return Pulled(
        there=done.hits if done is not None else 0,
        missing=[one.action for one in told if one.would_run],
        fetched=counts[TierAnswer.HIT],
        received_bytes=tier.figures.received_bytes,
        profiles=profiles,
        refused=counts[TierAnswer.REFUSED],
        problem=f"{tier.shown} {problem}" if problem else "",
    )


def pull_recording(options: Namespace) -> int:
    """Fetch what a recording holds; 1 where the tier lacks some of it, 3 where it fails. The daemon fetches.

    Raises: TierError, RequestError, RecordingError, StoreError.
    """
    from buildd.commands import warm
    from buildd.ui.problems import print_note, print_problem
    from codegen.errors import RequestError

    if options.targets or options.arch or options.project_file or options.store:
        raise RequestError(
            "bad-value",
            "with --manifest, the file names what is fetched",
            next_step="leave out targets, --arch, -f and --store (BUILDD_DIR names a store)",
        )
    _tier(options.environ).close()  # there is one that can be used
    asked = ["--manifest", str(options.manifest), "--prove"]
    asked += ["--python", options.python] if options.python else []
    asked += ["-C", options.directory] if options.directory else []
    before = _counts(options.environ)
    status = warm.run([*asked, *(["--json"] if options.json else [])])
    new = {name: number - before.get(name, 0) for name, number in _counts(options.environ).items()}
    print_note(f"{count(new.get('hits', 0), 'result')} fetched from the tier")
    if new.get("failures", 0) and status:
        print_problem("the tier failed meanwhile", next_step="run `buildd doctor`, then pull again")
        return _FAILED
    return status


def _counts(environ: Mapping[str, str]) -> Mapping[str, int]:
    """The daemon's figures of the tier."""
    from buildd.client.connect import connect

    with connect(environ, start=True) as client:
        tier = client.status().tier
    return tier.counts if tier is not None else {}


def _tier(environ: Mapping[str, str]) -> Tier:
    from buildd.tier.carriers import TierError
    from buildd.tier.opening import open_users_tier
    from codegen.variables.settings import user_file

    opened = open_users_tier(environ, least_job_s=PATIENCE_S)
    if opened.tier is None or not opened.tier.settings.believed:
        raise TierError(
            opened.problem or "there is no shared tier",
            file=user_file(environ),
            next_step='write url = "..." below [tier], or set BUILDD_TIER; then buildd cache trust KEY NAME',
        )
    return opened.tier


def _pull_profiles(store: Store, options: Namespace, tier: Tier) -> int:
    """Raises `CarrierError`."""
    from buildd.client.request import PROJECT_FILE, with_files
    from buildd.profiling import xla_timings
    from buildd.store.profile_cache import open_profiles
    from buildd.tier import shared_profiles

    rows = shared_profiles.read(tier)
    if not rows:
        return 0
    folder = options.directory or os.getcwd()
    with open_profiles(with_files(options.environ, folder, PROJECT_FILE), store, folder) as cache:
        before = set(cache.everything())
        if not cache.save(rows, older=False):
            return 0
        xla_timings.put_out(store.folder, rows)
        return len(set(cache.everything()) - before)


def _look_up(store: Store, options: Namespace, tier: Tier, tell: Callable[[Event], None]) -> Done:
    """Raises RequestError."""
    from buildd.client.in_process import build_here
    from buildd.client.request import request_from
    from codegen.errors import RequestError
    from protocol.messages import Mode, Outcome

    wanted = Namespace(directory=options.directory, file=options.project_file, arch=options.arch, jobs=None)
    environ = {**options.environ, "BUILDD_DIR": str(store.folder)}
    request = request_from(wanted, tuple(options.targets), Mode.EXPLAIN, environ)
    done = build_here(request, tell, store_limit_bytes=store.limit_bytes, tier=tier)
    if done.outcome is not Outcome.BUILT:
        raise RequestError(done.code or "bad-request", done.message, file=done.file, next_step=done.next_step)
    return done


def _progress(told: list[Explained], environ: Mapping[str, str]) -> Callable[[Event], None]:
    """Keeps the answers, and shows on a terminal how many answers there are."""
    from buildd.ui.screen import is_animated
    from protocol.messages import Done, Explained

    is_shown = is_animated(sys.stderr, environ)

    def tell(event: Event) -> None:
        if isinstance(event.body, Explained):
            told.append(event.body)
            if is_shown:
                sys.stderr.write(f"\r{count(len(told), 'result')} looked up")
        elif isinstance(event.body, Done) and is_shown and told:
            sys.stderr.write("\r\x1b[K")

    return tell
