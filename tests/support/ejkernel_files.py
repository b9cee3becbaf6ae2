"""A stand-in for ejkernel's cache of tuned configurations: the attributes that buildd's hook uses, and its faults.

Like the real class, it reads its file once, rewrites it whole with what one process knows, and cannot read a damaged
one. Tests of the real class are in `tests/jax`.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from typing import Any


class PersistentCache:
    """ejkernel.ops.config.persistent.PersistentCache."""

    def __init__(self, path: str) -> None:
        self._disabled, self.path = False, path
        self.dumper: Callable[[Any], Any] | None = None
        try:
            with open(path) as file:
                self._data: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            self._data = {}

    def _key(self, device: str, op_id: str, call_key: str) -> str:
        return f"{device}|{op_id}|{call_key}"

    def get(self, device: str, op_id: str, call_key: str) -> Any:
        return self._data.get(self._key(device, op_id, call_key))

    def put(self, device: str, op_id: str, call_key: str, configuration: Any) -> None:
        self._data[self._key(device, op_id, call_key)] = configuration
        with open(self.path, "w") as file:
            json.dump(self._data, file)


class Tuner:
    """ejkernel.ops.config.selection.Tuner, which times no function: a candidate is its own time, or fails."""

    def measure(self, candidate_s: float) -> float:
        return candidate_s


class ConfigSelectorChain:
    """ejkernel.ops.config.selection.ConfigSelectorChain, with a tuning that takes no time."""

    tuner = Tuner()

    def __init__(self, persistent: Any, *, policy: str = "autotune", override: Any = None) -> None:
        self.persistent, self.override = persistent, override
        self.policy = types.SimpleNamespace(allow_autotune=True, cache_miss_fallback=policy)
        self.tunings = 0

    def choose(self, call_key: str) -> Any:
        where = ("cpu", "op@v1", call_key)
        if self.override is not None:
            self._emit("override")
            self.persistent.put(*where, self.override)
            return self.override
        if (found := self.persistent.get(*where)) is not None:
            return found
        if self.policy.cache_miss_fallback == "autotune":
            self.tunings += 1
            for candidate_s in (0.5, math.inf, 0.25):
                self.tuner.measure(candidate_s)
            self.persistent.put(*where, {"tuned": call_key})
            self._emit("autotune_finish")
            return {"tuned": call_key}
        self._emit("heuristics")
        self.persistent.put(*where, {"guessed": call_key})
        return {"guessed": call_key}

    def _emit(self, event: str, **data: Any) -> None:
        """The real one calls a function of the user's."""


class Executor:
    """ejkernel.ops.execution.executor.Executor, which guesses on its own."""

    def _choose_heuristics_only(self, persistent: Any, call_key: str) -> None:
        persistent.put("cpu", "op@v1", call_key, {"guessed": call_key})


def hooked() -> tuple[type[PersistentCache], type[ConfigSelectorChain]]:
    """Both classes as they are under `buildd run`; new ones at each call."""
    from buildd.hooks import ejkernel_profiles

    cache: Any = type("PersistentCache", (PersistentCache,), dict(vars(PersistentCache)))
    chain: Any = type("ConfigSelectorChain", (ConfigSelectorChain,), dict(vars(ConfigSelectorChain)))
    ejkernel_profiles.begin_files(types.SimpleNamespace(PersistentCache=cache))
    tuner: Any = type("Tuner", (Tuner,), dict(vars(Tuner)))
    chain.tuner = tuner()
    ejkernel_profiles.begin_selection(types.SimpleNamespace(ConfigSelectorChain=chain, Tuner=tuner))
    return cache, chain
