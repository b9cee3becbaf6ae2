"""Gives a build its plan, each action's expected time and memory, and the actions that a save left unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from buildd.builds.active_build import ActiveBuild
from buildd.builds.carry_over import Carry, take_over
from codegen.plan import Plan, Recompile, Resources
from protocol import messages as m

_NO_RESOURCES = Resources(cpus=0, memory_bytes=0, wall_s=0.0)
"""Needs of an action that does not run."""


async def adopt(build: ActiveBuild, plan: Plan, carry: Carry | None, in_pool: Callable[..., Awaitable[Any]]) -> None:
    """Give a build its plan, and say what is planned. Raises OSError.

    Args:
        carry: the actions of the build before that still stand.
        in_pool: runs a function in a worker thread.
    """
    if plan.recompile is Recompile.AGAIN and build.request.mode is not m.Mode.PROVE:
        build.run_again()
    await in_pool(_adopt, build, plan, carry)
    for notice in plan.notices:
        build.log.append(m.Notice(text=notice))
    build.log.append(m.Planned(targets=plan.targets, actions=len(plan.actions)))  # which of them run is not known yet


def _adopt(build: ActiveBuild, plan: Plan, carry: Carry | None) -> None:
    build.files.read_ahead(file.path for tool in plan.tools for file in tool.files)
    if carry is not None:
        take_over(build, carry)
    learned = iter(build.expected([a for i, a in enumerate(plan.actions) if i not in build.carried]))
    build.adopt(plan, [_NO_RESOURCES if i in build.carried else next(learned) for i in range(len(plan.actions))])
    build.outputs.prepare()
