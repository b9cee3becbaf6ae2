"""Random edits of a tree of lists and tables, as MessagePack holds them: other values, types, sizes and shapes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

Tree = Any

NUMBERS = (0, 1, -1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1 << 40)
OTHERS = (None, True, False, 0.0, -1.0, 1e308, float("inf"), float("nan"), "text", [], {}, [[]], {"a": 1}, [None])
EDITS = ("name", "number", "other", "digest", "remove", "double", "swap", "move", "nest", "grow")


def places(tree: Tree) -> list[tuple[Any, Any]]:
    """Each container with each of its keys, from the root on."""
    found: list[tuple[Any, Any]] = []
    for key in range(len(tree)) if isinstance(tree, list) else list(tree) if isinstance(tree, dict) else ():
        found += [(tree, key), *places(tree[key])]
    return found


def edit(root: Tree, kind: str, rng: random.Random, names: Sequence[Any]) -> None:
    """Edit one place of a tree, if there is one; each part of the root in its turn, whatever its size.

    Args:
        kind: one of `EDITS`.
        names: what text and bytes become.
    """
    if not isinstance(root, list | dict) or not root:
        return
    part = rng.choice(list(root) if isinstance(root, dict) else range(len(root)))
    found = places(root[part]) or [(root, part)]
    wanted = {"name": (str, bytes), "digest": (str, bytes), "number": (int, float)}.get(kind, (object,))
    fitting = [place for place in found if isinstance(place[0][place[1]], wanted)]
    tree, key = rng.choice(fitting or found)
    old = tree[key]
    match kind:
        case "name":
            tree[key] = rng.choice(names)
        case "number":
            tree[key] = rng.choice(NUMBERS)
        case "other":
            tree[key] = _copy(rng.choice(OTHERS))
        case "digest":
            shorter = old[:-1] if isinstance(old, bytes) else b""
            tree[key] = rng.choice((rng.randbytes(32), bytes(32), shorter, b"x" * 33))
        case "remove":
            del tree[key]
        case "double" if isinstance(tree, list):
            tree.insert(key, old)
        case "swap" if isinstance(tree, list):
            other = rng.randrange(len(tree))
            tree[key], tree[other] = tree[other], old
        case "move":
            there, at = rng.choice(places(root))
            tree[key] = _copy(there[at])
        case "nest":
            for _ in range(rng.choice((1, 3, 100))):
                tree[key] = [tree[key]]
        case "grow" if isinstance(tree, list):
            tree[key:key] = [old] * rng.choice((2, 1000))


def _copy(tree: Tree) -> Tree:
    if isinstance(tree, list):
        return [_copy(item) for item in tree]
    return {key: _copy(item) for key, item in tree.items()} if isinstance(tree, dict) else tree
