"""What is worth knowing of a past build, for histories, tables and search: slow actions, misses, kernels. PURE.

Events in, plain structs out; small, because two thousand builds' facts are held at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from buildd.keys.miss_kinds import kind_of
from protocol import messages as m

MOST_ACTIONS = 200
"""The slowest actions of a build that are kept, and as many failed ones."""
MOST_KERNELS = 1000


class ActionFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action that ran."""

    name: str
    kind: str = ""
    wall_s: float = 0.0
    peak_bytes: int = 0
    failed: bool = False
    reasons: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of one build."""

    actions: tuple[ActionFact, ...] = ()
    """The slowest first."""
    kernels: tuple[m.Kernel, ...] = ()
    missed: dict[str, int] = {}
    """Kind of reason -> misses."""
    programs: tuple[m.ProgramStart, ...] = ()
    peak_bytes: int = 0
    """The largest peak of a job."""


def facts_of(events: Iterable[m.Event]) -> Facts:
    """The facts of a build from its events, in any order."""
    reasons: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, str] = {}
    ran: dict[str, ActionFact] = {}
    kernels: dict[tuple[str, str], m.Kernel] = {}
    missed: dict[str, int] = {}
    programs: list[m.ProgramStart] = []
    for event in events:
        match event.body:
            case m.Queued() as body:
                reasons[body.action] = body.reasons
                kind = kind_of(body.reasons).value
                missed[kind] = missed.get(kind, 0) + 1
            case m.Started() as body:
                kinds[body.action] = body.kind
            case m.Finished() as body:
                ran[body.action] = _fact(body.action, body.timing, failed=False)
                kernels |= {(kernel.name, kernel.arch): kernel for kernel in body.kernels}
            case m.Failed() as body:
                ran[body.action] = _fact(body.action, body.timing, failed=True)
            case m.CacheHit() as body:
                kernels |= {(kernel.name, kernel.arch): kernel for kernel in body.kernels}
            case m.ProgramStart() as body:
                programs.append(body)
            case _:
                pass
    slowest = sorted(ran.values(), key=lambda fact: (not fact.failed, -fact.wall_s))[:MOST_ACTIONS]
    return Facts(
        actions=tuple(
            msgspec.structs.replace(fact, kind=kinds.get(fact.name, ""), reasons=reasons.get(fact.name, ())[:3])
            for fact in sorted(slowest, key=lambda fact: -fact.wall_s)
        ),
        kernels=tuple(kernels.values())[:MOST_KERNELS],
        missed=missed,
        programs=tuple(programs),
        peak_bytes=max((fact.peak_bytes for fact in ran.values()), default=0),
    )


def _fact(name: str, timing: m.Timing, *, failed: bool) -> ActionFact:
    return ActionFact(name=name, wall_s=timing.wall_s, peak_bytes=timing.peak_rss_bytes, failed=failed)
