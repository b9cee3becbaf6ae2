"""Notes why Triton compiled a kernel: compares the parts of its key with those of earlier compiles, kept in the store.

Runs in the user's own process, from this one file: standard library and triton only. Knows the parts of Triton's keys,
and which of them people understand; keeps sources as digests of their lines. Nothing here affects a compile: if it
fails, the kernel is compiled all the same, and its note says so.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

FOLDER = "triton-why"
LOG = "log.jsonl"
_LOG_BYTES = 1 << 18
_KEPT = 12
"""Compiles remembered of one kernel; a new one is compared with the most similar."""
_PENDING = 256
_MOST_BYTES = 4 << 20

Facts = dict[str, Any]
"""Part of the key -> its value, as in JSON. Tables are reported entry by entry."""

_TABLES = {
    "signature": "argument {name}: {before} before, {now} now",
    "hints": "argument {name}: specialised as {before} before, {now} now",
    "constants": "constant {name}: {before} before, {now} now",
    "options": "option {name}: {before} before, {now} now",
    "variables": "variable {name}: {before} before, {now} now",
}
_NAMES = {"kernel", "file", "target", "triton", "installation", "tool", "line", "source", "first", "uses", "libraries"}
_NAMES |= set(_TABLES)
_UNSET = "unset"
_log = logging.getLogger("buildd.triton")


class Noter:
    """Remembers the parts of keys until it is known whether they hit.

    Args:
        store: the folder of the store.
        installation: digest of everything that Triton's own files put into a key.
    """

    def __init__(self, store: str, installation: str) -> None:
        self._store = store
        self._installation = installation
        self._pending: collections.OrderedDict[str, tuple[Any, Any, Any, Any]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def asked(self, key: str, source: Any, backend: Any, options: Any, variables: Any) -> None:
        """Triton computed a key. `key` is its text, the other arguments are its parts."""
        with self._lock:
            self._pending[key] = (source, backend, options, variables)
            while len(self._pending) > _PENDING:
                self._pending.popitem(last=False)

    def compiled(self, name: str) -> None:
        """The kernel of a key was compiled; `name` is the key's name in Triton's cache."""
        with self._lock:
            # Most keys hit and need no name. A compile follows its key closely: search the latest first.
            key = next((key for key in reversed(self._pending) if name_of(key) == name), None)
            made_of = self._pending.pop(key) if key is not None else None
        if made_of is None or not os.path.isdir(self._store):
            return
        folder = folder_in(self._store)
        with alone(folder):
            try:
                line = self._compared(folder, *made_of)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                # A Triton with other internals; the kernel still counts as compiled.
                why = f"the reason is not known: {type(error).__name__}: {error}"
                line = {"kernel": str(getattr(made_of[0], "name", "?")), "target": "?", "reasons": [why]}
            tell(folder, {"time_s": time.time(), "key": name, **line})

    def _compared(self, folder: str, *made_of: Any) -> dict[str, Any]:
        """Note a kernel's facts; returns its line. Raises OSError, and any error that another Triton causes."""
        facts = facts_of(*made_of) | {"installation": self._installation}
        identity = f"{facts['file']}\0{facts['kernel']}"
        place = os.path.join(folder, hashlib.blake2b(identity.encode(), digest_size=16).hexdigest())
        before = _whole(read(place))
        write(place, [*(one for one in before if one != facts), facts][-_KEPT:])
        kernel = f"{facts['file']}:{facts['line']}: {facts['kernel']}"
        return {"kernel": kernel, "target": facts["target"], "reasons": reasons(facts, before)}


def name_of(key: str) -> str:
    """The name of a key in Triton's cache."""
    digest = hashlib.sha256(key.encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=")


def facts_of(source: Any, backend: Any, options: Any, variables: dict[str, str]) -> Facts:
    """The parts of a key."""
    import triton

    function = source.fn
    names = [parameter.name for parameter in function.params]

    def named(path: Any) -> str:
        head, *rest = path if isinstance(path, tuple) else (path,)
        return ".".join([names[head] if isinstance(head, int) and head < len(names) else str(head), *map(str, rest)])

    def shown(value: Any) -> str:
        return f"function {value.cache_key[:12]}" if hasattr(value, "cache_key") else str(value)[:200]

    lines = function.src.splitlines()
    own = {name: str(value)[:200] for name, value in vars(options).items() if name != "extern_libs"}
    return {
        "kernel": function.fn.__qualname__,
        "file": os.path.basename(function.fn.__code__.co_filename),
        "target": f"{backend.target.backend} {backend.target.arch}",
        "triton": str(triton.__version__),
        "tool": " ".join(str(backend.hash()).split())[-200:],
        "line": int(function.starting_line_number),
        "source": [hashlib.blake2b(line.encode(), digest_size=6).hexdigest() for line in lines],
        "first": max(0, len(function.raw_src) - len(lines)),
        "uses": str(function.cache_key)[:24],
        "signature": {str(name): str(kind) for name, kind in source.signature.items()},
        "hints": {named(path): str(hint) for path, hint in source.attrs.items() if hint},
        "constants": {named(path): shown(value) for path, value in source.constants.items()},
        "options": own,
        "libraries": str(options.hash())[:24],
        "variables": dict(sorted(variables.items())),
    }


def reasons(facts: Facts, before: list[Facts]) -> list[str]:
    """The differences from the most similar earlier compile, in words."""
    if not before:
        return ["no kernel of this name was compiled here before"]
    if facts in before:
        return [
            "it was compiled before, but the store no longer has it: flushed, removed to stay in bounds, or damaged"
        ]
    return min((_differences(facts, one) for one in reversed(before)), key=len)


def _differences(now: Facts, before: Facts) -> list[str]:
    said = []
    if now["target"] != before["target"]:
        said.append(f"target: {before['target']} before, {now['target']} now")
    if now["triton"] != before["triton"]:
        said.append(f"Triton: {before['triton']} before, {now['triton']} now")
    elif now["installation"] != before["installation"]:
        said.append(f"Triton {now['triton']} is another build, or its files changed")
    if now["tool"] != before["tool"] and now["target"] == before["target"]:
        said.append(f"its assembler: {before['tool']} before, {now['tool']} now")
    said += _source_differences(now, before)
    for table, words in _TABLES.items():
        for name in sorted({*now[table], *before[table]}):
            was, is_ = before[table].get(name, _UNSET), now[table].get(name, _UNSET)
            # Another target has other options anyway.
            if was != is_ and not (table == "options" and now["target"] != before["target"]):
                said.append(words.format(name=name, before=was, now=is_))
    if not said and now["libraries"] != before["libraries"]:
        said.append("a library that it is linked with (libdevice, ocml) changed")
    return said or ["a part of its key that buildd does not record"]


def _source_differences(now: Facts, before: Facts) -> list[str]:
    said = []
    if now["line"] != before["line"]:
        said.append(f"it moved from line {before['line']} to line {now['line']}: lines above it were added or removed")
    if now["source"] != before["source"]:
        pairs = zip(now["source"], before["source"], strict=False)
        common = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        at = min(len(now["source"]), len(before["source"])) if common is None else common
        said.append(f"its source: line {now['line'] + now['first'] + at} changed")
    elif not said and now["uses"] != before["uses"]:
        said.append("a function that it calls, or a constant that it reads, changed")
    return said


def _whole(found: list[Any]) -> list[Facts]:
    """The notes that have everything that this version records."""
    whole = [one for one in found if isinstance(one, dict) and set(one) == _NAMES]
    return [one for one in whole if all(isinstance(one[table], dict) for table in _TABLES)]


# ---------------------------------------------------------------- files


def folder_in(store: str) -> str:
    """The folder of notes, made if missing. Raises OSError."""
    folder = os.path.join(store, FOLDER)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    return folder


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Hold the folder's lock, briefly; a process that ends releases it. Raises OSError."""
    path = os.path.join(folder, "lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read(place: str) -> list[Any]:
    """Read a list; empty if there is none, or it is damaged."""
    try:
        with open(place, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def write(place: str, notes: list[Any]) -> None:
    """Write a list, whole or not at all. Raises OSError."""
    aside = f"{place}.new"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(notes, file)
    os.replace(aside, place)


def tell(folder: str, line: dict[str, Any]) -> None:
    """Add a line to the log; if it has grown too long, only the newest lines stay. Raises OSError."""
    descriptor = os.open(os.path.join(folder, LOG), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > _LOG_BYTES:
            file.seek(size - _LOG_BYTES // 2)
            newest = file.read(_LOG_BYTES).partition(b"\n")[2]
            file.seek(0)
            file.truncate()
            file.write(newest)
        file.write(json.dumps(line).encode() + b"\n")


@contextlib.contextmanager
def careful(what: str) -> Iterator[None]:
    """The edge to the user's program: an error is logged, and the program goes on."""
    try:
        yield
    except Exception as error:
        _log.info("%s: %r", what, error)


def begin(cache: Any, store: str) -> None:
    """Note what Triton compiles from now on.

    Args:
        cache: the module triton.runtime.cache, with buildd's manager in place; the compiler is not imported yet.
        store: the folder of the store.
    """
    noter: list[Noter] = []
    make = cache.get_cache_key

    def get_cache_key(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> Any:
        key = make(src, backend, backend_options, env_vars=env_vars)
        with careful("the parts of keys cannot be recorded"):
            if not noter:
                # By now Triton has computed its own digest, which takes a quarter of a second.
                noter.append(Noter(store, hashlib.sha256(cache.triton_key().encode()).hexdigest()[:24]))
            noter[0].asked(key, src, backend, backend_options, env_vars)
        return key

    base: Any = cache.knobs.cache.manager_class

    class CacheManager(base):  # type: ignore[misc]
        """Reports compiled kernels."""

        def put_group(self, filename: str, group: Any) -> Any:
            made = super().put_group(filename, group)
            with careful("why a kernel was compiled cannot be recorded"):
                if noter:
                    noter[0].compiled(self._kernel)
            return made

    cache.get_cache_key = get_cache_key
    cache.knobs.cache.manager_class = CacheManager
