"""The error of a request that cannot become a plan, and the hint at a similar name that its message may give."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.problem import Problem


class RequestError(Problem):
    """The request cannot become a plan.

    Args:
        code: "unknown-target", "bad-project", "missing-source", "compiler-not-found", "bad-arch", "bad-variable" ...
        message: what is wrong, in one sentence.
        file: the file to look at, with its line if known: "buildd.toml:12".
        next_step: what to do about it.
    """

    is_usage = True

    def __init__(self, code: str, message: str, *, file: str = "", next_step: str = "") -> None:
        super().__init__(message, code=code, file=file, next_step=next_step)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean "saxpy"?' if a known name is similar, else an empty text."""
    import difflib  # few starts need it

    close = difflib.get_close_matches(name, tuple(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""
