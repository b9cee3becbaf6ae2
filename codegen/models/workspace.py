"""Plans when the operations of a model run, and where its intermediate tensors lie in the workspace.

Knows names and sizes. Operations run in groups, one group after another; the operations of a group run in parallel, on
streams that are joined before the next group. A tensor's memory is reused once the group of its last reader is
finished.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
"""Alignment of CUDA's and HIP's allocators."""


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor in the workspace."""

    name: str
    size_bytes: int
    first: int
    """Group that writes the tensor."""
    last: int
    """Last group that reads the tensor."""


def grouped(needs: Mapping[str, tuple[str, ...]], most: int) -> tuple[tuple[str, ...], ...]:
    """Return the operations in groups.

    Args:
        needs: operation -> the operations whose results it reads, producers before consumers.
        most: most operations of a group; 1 means one after another, in the given order.
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
    """Return the offset of each tensor and the size of the workspace, in bytes.

    Places the largest tensor first, each at the lowest offset that is free during its whole life.
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
