"""Request -> Plan: reads the project, orders its targets and hands each to its kind's generator.

Knows no tool. A generator is a function `(Context, its target) -> Part`, see `context`.
"""

from __future__ import annotations

from codegen.context import Context, Part
from codegen.plan import Knowledge, Plan
from protocol.messages import Request

__all__ = ["Context", "Part", "make_plan"]


def make_plan(request: Request, knowledge: Knowledge) -> Plan:
    """The plan for a request. Reads files, runs nothing.

    Args:
        request: what the client asked.
        knowledge: answers of the probes that were asked for so far.

    Raises:
        ProbesNeeded: run these, tell `knowledge` the answers, and call again.
        RequestError: the request cannot become a plan.
    """
    raise NotImplementedError
