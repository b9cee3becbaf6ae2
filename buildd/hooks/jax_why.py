"""Notes why JAX compiled a program: compares the parts of its key with those of earlier compiles, kept in the store.

Runs in the user's own process; standard library and JAX only. Knows the parts of JAX's key, and which of them people
understand; `triton_why` keeps and reports them. Nothing here affects a compile: if it fails, the program just has no
reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import triton_why as notes

_KEPT = 12
"""Compiles remembered of one program; a new one is compared with the most similar."""
_MOST_ARGUMENTS = 2000
_SHOWN_ARGUMENTS = 5
_UNKNOWN = "unknown"

Facts = dict[str, Any]
"""Part of the key -> its value, as in JSON."""

_WORDS = {
    "program": "its operations, constants, shardings or donated arguments",
    "jaxlib": "jaxlib",
    "platform": "the backend",
    "options": "a compile option: devices, partitions, JAX_XLA_* or compiler_options",
    "topology": "the devices: their number, kind or driver",
    "compression": "the package zstandard, which only one of the two Pythons has",
    "processor": "the processor",
    "libraries": "the build of jaxlib, or a library of its plugin",
}
_SHOWN = {"jaxlib", "platform"}


def facts_of(identity: tuple[str, ...], cache: Any, module: Any, devices: Any, options: Any, backend: Any) -> Facts:
    """The parts of a key.

    Args:
        identity: of the processor and of the libraries.
        cache: the module jax._src.compilation_cache.
        module, devices, options, backend: what JAX computes a key from.
    """

    def digest(name: str, *arguments: Any) -> str:
        function = getattr(cache_key, name, None)
        if function is None:
            return _UNKNOWN
        hasher = hashlib.sha256()
        function(hasher, *arguments)
        return hasher.hexdigest()[:24]

    cache_key = cache.cache_key
    ignored = getattr(getattr(cache_key, "IgnoreCallbacks", None), "NO", False)  # jax 0.12 has a bool in its place
    flags = f"{os.environ.get('XLA_FLAGS', '')} {os.environ.get('LIBTPU_INIT_ARGS', '')}".split()
    return {
        "arguments": _arguments(module)[:_MOST_ARGUMENTS],
        "program": digest("_hash_computation", module, ignored),
        "jaxlib": str(getattr(cache_key, "jaxlib_version_str", _UNKNOWN)),
        "platform": " ".join(f"{backend.platform} {backend.platform_version}".split())[:200],
        "flags": sorted([*flags, *(word for word in sys.argv if word.startswith("--xla"))]),
        "options": digest("_hash_serialized_compile_options", options, backend.platform == "gpu"),
        "topology": digest("_hash_accelerator_config", devices),
        "compression": "zstandard" if getattr(cache, "zstandard", None) else "zlib",
        "processor": identity[0],
        "libraries": identity[1],
    }


def _arguments(module: Any) -> list[str]:
    """The types of a program's arguments: "tensor<8x16xf32>"."""
    for operation in module.body.operations:
        if operation.attributes["sym_name"].value == "main":
            return [str(kind) for kind in operation.type.inputs]
    return []


def reasons(facts: Facts, before: list[Facts]) -> list[str]:
    """The differences from the most similar earlier compile, in words."""
    if not before:
        return ["no program of this name was compiled here before"]
    if facts in before:
        return [
            "it was compiled before, but the store no longer has it: flushed, removed to stay in bounds, or damaged"
        ]
    return min((_differences(facts, one) for one in reversed(before)), key=len)


def _differences(now: Facts, before: Facts) -> list[str]:
    said = _argument_differences(now["arguments"], before["arguments"])
    # Other arguments make another program anyway; another jaxlib or backend writes everything else in another way.
    implied = {"program"} if said else set()
    for flag in sorted({*now["flags"], *before["flags"]}):
        was, is_ = before["flags"].count(flag), now["flags"].count(flag)
        if was != is_:
            implied.add("options")  # JAX's compile options hold them
            said.append(f"flag {flag}: {_times(was)} before, {_times(is_)} now")
    if any(now[name] != before[name] for name in _SHOWN):
        implied |= {"program", "options", "topology", "libraries"}
    for name, words in _WORDS.items():
        if now[name] == before[name] or name in implied:
            continue
        said.append(f"{words}: {before[name]} before, {now[name]} now" if name in _SHOWN else f"{words}: changed")
    return said or ["a part of its key that buildd does not record"]


def _argument_differences(now: list[str], before: list[str]) -> list[str]:
    if len(now) != len(before):
        return [f"it has {len(now)} arguments, {len(before)} before"]
    pairs = zip(before, now, strict=True)
    found = [f"argument {at}: {was} before, {is_} now" for at, (was, is_) in enumerate(pairs) if was != is_]
    more = len(found) - _SHOWN_ARGUMENTS
    return [*found[:_SHOWN_ARGUMENTS], f"and {more} more arguments"] if more > 1 else found


def _times(count: int) -> str:
    return {0: "absent", 1: "given"}.get(count, f"given {count} times")


def note(store: str, key: str, identity: tuple[str, ...], *made_of: Any) -> None:
    """Note a program that was compiled. Raises OSError, and any error that another JAX causes."""
    if not os.path.isdir(store):
        return
    facts = facts_of(identity, *made_of)
    name = key.partition("\n")[0].rpartition("-")[0]
    folder = notes.folder_in(store)
    place = os.path.join(folder, hashlib.blake2b(f"jax\0{name}".encode(), digest_size=16).hexdigest())
    with notes.alone(folder):
        before = _whole(notes.read(place), facts)
        why = reasons(facts, before)
        notes.write(place, [*(one for one in before if one != facts), facts][-_KEPT:])
        notes.tell(
            folder, {"time_s": time.time(), "kernel": name, "target": f"jax {facts['platform']}", "reasons": why}
        )


def _whole(found: list[Any], facts: Facts) -> list[Facts]:
    """The notes that have everything that this version records."""
    return [
        one
        for one in found
        if isinstance(one, dict)
        and set(one) == set(facts)
        and all(isinstance(one[name], type(facts[name])) for name in facts)
        and all(isinstance(word, str) for name in ("arguments", "flags") for word in one[name])
    ]


@contextlib.contextmanager
def careful(log: logging.Logger, what: str) -> Iterator[None]:
    """The edge to the user's program: an error is logged, and the program goes on."""
    try:
        yield
    except Exception as error:
        log.info("%s: %r", what, error)
