"""The last event of a request that is refused: the error, as a `Done`."""

from __future__ import annotations

import sqlite3

from buildd.builds.event_log import RequestLog
from buildd.builds.products import INTERNAL_FAULT
from codegen.errors import RequestError
from protocol import messages as m
from protocol.problem import Problem, in_one_line


def refuse(log: RequestLog, outcome: m.Outcome, error: BaseException) -> None:
    """Say that a request was refused, why, and what to do next."""
    message, next_step = in_one_line(error), str(getattr(error, "next_step", "") or "")
    if isinstance(error, RequestError):
        message = error.message
    elif not isinstance(error, (Problem, OSError, sqlite3.Error)):  # a fault of buildd's
        message, next_step = f"{INTERNAL_FAULT[0]}: {type(error).__name__}: {error}", INTERNAL_FAULT[1]
    log.append(
        m.Done(
            outcome=outcome,
            message=message,
            code=getattr(error, "code", "internal"),
            file=str(getattr(error, "file", "") or ""),
            next_step=next_step,
        )
    )
