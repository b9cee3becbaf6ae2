"""ejkernel's files of tuned configurations: several tuners at once lose nothing, and a guess never stands for a tuning.

Runs in the user's own process; standard library only. Knows the files of ejkernel.ops.config.persistent, one JSON
object for each operator, and stays in their form: ejkernel reads them without buildd. ejkernel itself rewrites the
whole file with what one process knows, cannot read a damaged one, and does not say where a configuration came from.
Beside each file stands another one that says so, and a lock.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import glob
import hashlib
import json
import math
import os
import sys
import threading
import time

from .entries import is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TUNED, GUESSED, GIVEN = "autotuned", "heuristic", "override"
_LONGEST_WAIT_S = 30.0
"""A holder of the lock writes a small file: one that needs longer is stopped, and is not waited for."""
_POLL_S = 0.005
_LIMITS = ("EJKERNEL_TRITON_SMEM_LIMIT", "EJKERNEL_RDA_MAX_CANDIDATES")
"""Variables that decide which candidates are tried."""


class _Thread(threading.local):
    """What a thread is choosing."""

    source = ""
    """Where the next configuration comes from; empty outside of a choice: tuners of whole programs."""
    wants_tuned = False
    """The program would tune where no configuration is known."""
    times_s: "tuple[float, ...]" = ()
    """Of the candidates that were timed in the present choice."""


_thread = _Thread()
_known: "set[str]" = set()
"""Classes whose guesses are told. Only if both are, whatever else is kept comes from a tuner."""


def begin_selection(selection: "Any") -> None:
    """Note where configurations come from. Wraps ejkernel.ops.config.selection, just imported."""
    if is_on("BUILDD_DISABLE"):
        return
    chain, tuner = selection.ConfigSelectorChain, selection.Tuner
    choose, emit, measure = chain.choose, chain._emit, tuner.measure

    @functools.wraps(choose)
    def chosen(self: "Any", *arguments: "Any", **named: "Any") -> "Any":
        before = _thread.source, _thread.wants_tuned, _thread.times_s
        _thread.times_s = ()
        policy = self.policy
        _thread.source = TUNED
        _thread.wants_tuned = policy.allow_autotune and policy.cache_miss_fallback == "autotune"
        try:
            return choose(self, *arguments, **named)
        finally:
            _thread.source, _thread.wants_tuned, _thread.times_s = before

    @functools.wraps(measure)
    def measured(self: "Any", *arguments: "Any", **named: "Any") -> "Any":
        time_s = measure(self, *arguments, **named)
        if isinstance(time_s, float) and math.isfinite(time_s):
            _thread.times_s += (time_s,)
        return time_s

    @functools.wraps(emit)
    def emitted(self: "Any", event: str, **data: "Any") -> "Any":
        if event in _SOURCES:
            _thread.source = _SOURCES[event]
        return emit(self, event, **data)

    chain.choose, chain._emit, tuner.measure = chosen, emitted, measured
    _known.add("selection")


def begin_executor(executor: "Any") -> None:
    """Wrap ejkernel.ops.execution.executor, just imported: it guesses without the selection."""
    guess = executor.Executor._choose_heuristics_only

    @functools.wraps(guess)
    def guessed(self: "Any", *arguments: "Any", **named: "Any") -> "Any":
        before, _thread.source = _thread.source, GUESSED
        try:
            return guess(self, *arguments, **named)
        finally:
            _thread.source = before

    if not is_on("BUILDD_DISABLE"):
        executor.Executor._choose_heuristics_only = guessed
        _known.add("executor")


_SOURCES = {"override": GIVEN, "heuristics": GUESSED}
"""Events of ejkernel's selection, which come before such a configuration is kept."""


def _source() -> str:
    """Where the configuration that is kept now comes from; empty if that is not known."""
    if _thread.source:
        return _thread.source
    return TUNED if len(_known) == 2 else ""


def begin_files(persistent: "Any") -> None:
    """Wrap the class of ejkernel.ops.config.persistent, just imported."""
    if is_on("BUILDD_DISABLE"):
        return
    kind = persistent.PersistentCache
    make, get, put = kind.__init__, kind.get, kind.put

    @functools.wraps(make)
    def made(self: "Any", *arguments: "Any", **named: "Any") -> None:
        try:
            make(self, *arguments, **named)
            damage = "" if isinstance(self._data, dict) else "it is not a JSON object"
        except ValueError as error:
            damage = str(error)
        if damage:
            set_aside(self.path, damage)
            make(self, *arguments, **named)

    @functools.wraps(get)
    def got(self: "Any", device: str, op_id: str, call_key: str) -> "Any":
        if self._disabled:
            return None
        key = self._key(device, op_id, call_key)
        if key not in self._data or _thread.wants_tuned:
            with contextlib.suppress(OSError):
                files = ProfileFile(self.path)
                self._data = {**self._data, **files.rows()}  # another process may have tuned meanwhile
                if _thread.wants_tuned and files.source(key, self._data.get(key)) in (GUESSED, GIVEN):
                    return None
        return get(self, device, op_id, call_key)

    @functools.wraps(put)
    def kept(self: "Any", device: str, op_id: str, call_key: str, configuration: "Any") -> None:
        if self._disabled:
            return
        key, value = self._key(device, op_id, call_key), _written(self, configuration)
        try:
            self._data = ProfileFile(self.path).merge(key, value, _source(), _thread.times_s)
        except OSError:
            put(self, device, op_id, call_key, configuration)  # it gives up in its own way

    kind.__init__, kind.get, kind.put = made, got, kept


class ProfileFile:
    """The configurations of one operator, and where each comes from.

    Args:
        path: of ejkernel's file.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        folder, name = os.path.split(self.path)
        self._hidden = os.path.join(folder, f".{name}")
        self.sources = f"{self._hidden}.sources"

    def rows(self) -> "dict[str, Any]":
        """Configurations by key; those of a damaged file are none, and it is set aside. Raises OSError."""
        try:
            return _object(self.path)
        except ValueError as error:
            set_aside(self.path, str(error))
            return {}

    def source(self, key: str, value: "Any") -> str:
        """Where a configuration comes from; empty if nobody has said so, as of one that ejkernel kept by itself."""
        try:
            noted = _object(self.sources).get(key)
        except ValueError:
            return ""
        if not isinstance(noted, dict) or noted.get("value") != _digest(value):
            return ""
        return str(noted.get("source", ""))

    def merge(self, key: str, value: "Any", source: str, times_s: "tuple[float, ...]" = ()) -> "dict[str, Any]":
        """Add a configuration to what others have kept; returns all of them.

        A guess or an override takes the place of no tuned one. Raises OSError.

        Args:
            times_s: of the candidates that were timed; the configuration is the fastest one.
        """
        with self._locked():
            rows = self.rows()
            if key in rows and source != TUNED:
                former = self.source(key, rows[key])
                if former in (TUNED, "") or rows[key] == value:
                    # ejkernel passes what it has just chosen to itself as an override.
                    return {**rows, key: value}
            try:
                noted = _object(self.sources)
            except ValueError:
                noted = {}
            noted[key] = {"source": source, "value": _digest(value), "time": int(time.time()), **_versions()}
            if source == TUNED and times_s:
                noted[key] |= {"seconds": min(times_s), "candidates": len(times_s)}
            rows[key] = value
            # First where it comes from: a process killed in between leaves a note about nothing, and no nameless guess.
            self._replace(self.sources, noted)
            self._replace(self.path, rows)
            return rows

    def _replace(self, path: str, content: "dict[str, Any]") -> None:
        """Write a file whole. Only the holder of the lock does, so what a killed one left may go."""
        for left in glob.glob(glob.escape(self._hidden) + ".*.new"):
            with contextlib.suppress(OSError):
                os.unlink(left)
        new = f"{self._hidden}.{os.getpid()}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(new, path)

    @contextlib.contextmanager
    def _locked(self) -> "Iterator[None]":
        file = os.open(f"{self._hidden}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            deadline = time.monotonic() + _LONGEST_WAIT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno != errno.EWOULDBLOCK or time.monotonic() > deadline:
                        break  # a file system without locks, or a stopped holder: merged all the same
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(file)


def set_aside(path: str, damage: str) -> None:
    """Rename a file that cannot be read, and say so."""
    try:
        os.replace(path, f"{path}.damaged")
    except FileNotFoundError:
        return  # another process was first
    print(
        f"buildd: {path} is damaged ({damage}); it is {path}.damaged now, and its configurations are tuned again",
        file=sys.stderr,
    )


def _written(cache: "Any", configuration: "Any") -> "Any":
    """A configuration as ejkernel writes it."""
    if cache.dumper is not None:
        return cache.dumper(configuration)
    if dataclasses.is_dataclass(configuration) and not isinstance(configuration, type):
        return dataclasses.asdict(configuration)
    return configuration.model_dump() if hasattr(configuration, "model_dump") else configuration


def _object(path: str) -> "dict[str, Any]":
    """The JSON object in a file; empty without a file. Raises ValueError, OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _digest(value: "Any") -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _versions() -> "dict[str, str]":
    found = {name: os.environ[name] for name in _LIMITS if name in os.environ}
    for name in ("ejkernel", "jax", "jaxlib"):
        version = getattr(sys.modules.get(name), "__version__", "")
        if version:
            found[name] = str(version)
    return found
