"""The words of progress: the same for builds, watches, other tools' trees, `buildd run` and `buildd status`.

Work is what runs. What was found in the store is a hit, and counts as no work. Knows figures, no event and no terminal.
"""

from __future__ import annotations

from buildd.ui.text import count, duration


def counted(done: int, total: int, hits: int, failures: int = 0) -> str:
    """ "[1/2] 3 hits", or "1 compiled, 3 hits" where nobody knows how much will run (`total` 0)."""
    parts = [count(hits, "hit")] if hits or not total else []
    if failures:
        parts.append(f"{failures} failed")
    if not total:
        return ", ".join([f"{done} compiled", *parts] if done else parts)
    return f"[{done}/{total}] {', '.join(parts)}".rstrip()


def timed(elapsed_s: float, expected_s: float = 0.0) -> str:
    """ "1.4 s / ~1.8 s": how long something runs, and how long it took before, if that is known."""
    return f"{duration(elapsed_s)} / ~{duration(expected_s)}" if expected_s > 0 else duration(elapsed_s)
