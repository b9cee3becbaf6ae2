"""When the operations of a model run, and where in its workspace the tensors between them lie.

Knows names and sizes. Operations run in groups, one group behind the other; those of a group run beside each other, on
streams that are joined before the next group. A tensor's memory is another's once its last reader's group is over.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
"""As what CUDA's and HIP's allocators give."""


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor in the workspace."""

    name: str
    size_bytes: int
    first: int
    """Group that writes it."""
    last: int
    """Last group that reads it."""


def grouped(needs: Mapping[str, tuple[str, ...]], most: int) -> tuple[tuple[str, ...], ...]:
    """Operations in groups.

    Args:
        needs: operation -> those whose results it reads, producers before consumers.
        most: operations of a group; 1: one after another, in the order given.
    """
    if most == 1:
        return tuple((name,) for name in needs)
    depth: dict[str, int] = {}
    levels: dict[int, list[str]] = {}
    for name, others in needs.items():
        depth[name] = 1 + max((depth[other] for other in others), default=-1)
        levels.setdefault(depth[name], []).append(name)
    return tuple(
        tuple(level[start : start + most])
        for _, level in sorted(levels.items())
        for start in range(0, len(level), most)
    )


def packed(lives: Iterable[Life]) -> tuple[dict[str, int], int]:
    """Where each tensor begins, and how large the workspace is, in bytes.

    The largest first, each at the lowest place that nobody has who lives at the same time.
    """
    found: dict[str, int] = {}
    placed: list[tuple[int, int, Life]] = []
    for life in sorted(lives, key=lambda life: (-life.size_bytes, life.first, life.name)):
        at = 0
        size_bytes = -(-life.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for begin, end, other in placed:
            if other.first > life.last or other.last < life.first:
                continue
            if at + size_bytes <= begin:
                break
            at = max(at, end)
        found[life.name] = at
        insort(placed, (at, at + size_bytes, life), key=lambda one: one[:2])
    return found, max((end for _, end, _ in placed), default=0)
