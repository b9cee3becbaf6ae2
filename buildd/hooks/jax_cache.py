"""JAX's compiled programs in the store: every entry is whole and signed, found from any folder, and compiled once.

Runs in the user's own process; standard library and JAX only. Knows the functions of JAX's persistent compilation cache
and of its compiler; `entries` stores and checks. JAX asks this cache whether or not the user has a folder for JAX's own
one; a user's folder is asked first, and filled as ever. Compiles without a daemon; the daemon is asked for what other
machines have compiled (`tier_door`). If anything goes wrong, JAX works as without buildd.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from . import jax_installation, jax_timings, jax_why, tier_door, triton_cache
from .entries import FOUND_PROGRAM, Entry, Shelf, is_on, note_found, tell

FOLDER = "jax"
GROUP = "program"
SCHEME = "buildd:"
"""A cache folder of this name is the store."""
LEAST_COMPILE_S = 0.0
"""JAX by itself keeps no program that took less than a second to compile: most of a start."""
_THEIR_LEAST_S = 1.0
_LEAST = "jax_persistent_cache_min_compile_time_secs"
_FORCE, _FORCED = "EASYDEL_RECOMPILE_FORCE", ("true", "yes", "ok", "1", "easy")
"""EasyDeL's variable, and its words for on."""
_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")
"""Only programs of these are kept: buildd does not know what the programs of other plugins depend on."""
_PLACES = ("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_kernel_cache_file")
"""Options that name files of the cache's folder. Until 0.10 JAX's key has their paths, so another folder never hits."""
_SUFFIX = "-cache"
"""Of a program's file in the user's own folder."""
_log = logging.getLogger("buildd.jax")


class _Thread(threading.local):
    """What a thread is compiling."""

    key = ""
    """JAX's last key."""
    ours = ""
    """The same without the paths of JAX's own cache."""
    asked: tuple[Any, ...] = ()
    """The parts of the key."""
    lock: triton_cache.Lock | None = None
    damaged: bytes | None = None
    """What the user's own folder has for the key, if it cannot be unpacked."""


class _Process:
    """What is known of this process."""

    is_begun = False
    alone = False
    """Locks are given back after a compile, so one process may wait for another."""
    identity: tuple[str, ...] = ()
    store = ""
    """Its folder."""


_thread = _Thread()


class Programs:
    """A cache as JAX's compiler wants it: `get` and `put`.

    Args:
        store: the folder of the store.
        theirs: JAX's own cache in the user's folder, or None.
        codec: the module jax._src.compilation_cache.
    """

    def __init__(self, store: str, theirs: Any, codec: Any) -> None:
        self._store = store
        self._theirs = theirs
        self._codec = codec

    @property
    def _path(self) -> Any:
        return self._theirs._path if self._theirs is not None else os.path.join(self._store, FOLDER)

    def get(self, key: str) -> bytes | None:
        """A compressed program with the time of its compile; None if it has to be compiled."""
        found = self._from_theirs(key)
        if found is not None:
            return found
        try:
            found = self._look_up(key)
        except Exception as error:
            # The edge to the user's program: JAX compiles.
            tell(_log, "not looked up", error)
            return None
        if found is not None:
            note_found(self._store, FOUND_PROGRAM)
            with jax_why.careful(_log, "the program is not put into the user's folder"):
                self._to_theirs(key, found)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keep a program that was compiled. Raises what JAX's own cache raises."""
        try:
            shelf = self._shelf()
            if shelf is not None:
                named = _named(key)
                shelf.put(Entry(named, GROUP, {GROUP: value}))
                tier_door.offer(shelf, named, GROUP)
                if _thread.key == key:
                    with jax_why.careful(_log, "why a program is compiled cannot be recorded"):
                        jax_why.note(self._store, named, _identity(), *_thread.asked)
        except Exception as error:
            # As above.
            tell(_log, "not kept", error)
        self._to_theirs(key, value)

    def clear(self) -> None:
        """JAX's interface wants it; the store is emptied by `buildd cache flush`."""

    def _shelf(self) -> Shelf | None:
        """The shelf, if entries may be written to it."""
        if is_on("BUILDD_DISABLE"):
            return None
        shelf = Shelf(self._store, FOLDER)
        return shelf if shelf.open() else None

    def _look_up(self, key: str) -> bytes | None:
        _release()
        if is_on("BUILDD_DISABLE"):
            return None
        shelf = Shelf(self._store, FOLDER)
        is_writable = shelf.open()
        if is_on("BUILDD_RECACHE") or os.environ.get(_FORCE, "").lower() in _FORCED:
            return None
        found = self._taken(shelf, key)
        if found is None and is_writable and _may_wait():
            lock = triton_cache.Lock(shelf.lock_path(_named(key), GROUP))
            if triton_cache.waited(lock):
                _thread.lock = lock
                found = self._taken(shelf, key)
        if found is None and is_writable:
            with jax_why.careful(_log, "not fetched"):
                if tier_door.fetch(shelf, _named(key), GROUP):
                    found = self._taken(shelf, key)
        if found is not None:
            _release()
        return found

    def _taken(self, shelf: Shelf, key: str) -> bytes | None:
        try:
            entry = shelf.take(_named(key), GROUP)
        except ValueError as error:
            tell(_log, "an entry is rejected", error)
            return None
        return entry.files[GROUP] if entry is not None else None

    def _from_theirs(self, key: str) -> bytes | None:
        """A program of the user's own folder. One that cannot be unpacked is none: JAX writes without a rename."""
        _thread.damaged = None
        if self._theirs is None:
            return None
        found: bytes | None = self._theirs.get(key)
        if found is None:
            return None
        try:
            self._codec.decompress_executable(found)
        except Exception as error:
            _log.info("%s in %s is damaged: %r", key, self._path, error)
            _thread.damaged = found
            return None
        return found

    def _to_theirs(self, key: str, value: bytes) -> None:
        """Fill the user's own folder with what JAX would put there, and replace what is damaged there."""
        if self._theirs is None:
            return
        if _thread.damaged is not None:
            with jax_why.careful(_log, "a damaged program of the user's folder is not replaced"):
                self._remove(key, _thread.damaged)
        elif os.environ.get(
            _LEAST.upper()
        ) is None and self._codec.config.persistent_cache_min_compile_time_secs.value == (LEAST_COMPILE_S):
            executable = self._codec.decompress_executable(value)
            if self._codec.extract_executable_and_time(executable)[1] < _THEIR_LEAST_S:
                return
        self._theirs.put(key, value)

    def _remove(self, key: str, damaged: bytes) -> None:
        """Make room for a whole file: JAX replaces none. What another process had not yet written whole stays."""
        theirs = self._theirs
        held = theirs.lock.acquire(timeout=theirs.lock_timeout_secs) if theirs.eviction_enabled else nullcontext()
        with held:
            path = theirs.path / f"{key}{_SUFFIX}"
            if path.read_bytes() == damaged:
                path.unlink()


def _named(key: str) -> str:
    """The key of an entry: JAX's, the processor's and the libraries'."""
    name = _thread.ours if key == _thread.key else key
    return "\n".join((name, *_identity()))


def _identity() -> tuple[str, ...]:
    """This processor, and the builds of JAX's libraries. Raises OSError."""
    if not _Process.identity:
        site = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["jaxlib"].__file__ or "")))
        _Process.identity = jax_installation.processor(), jax_installation.libraries(site)
    return _Process.identity


def _may_wait() -> bool:
    """Whether this process may wait for another one: not one of several that compile one program together."""
    distributed = sys.modules.get("jax._src.distributed")
    together = getattr(getattr(distributed, "global_state", None), "num_processes", None)
    return _Process.alone and (together is None or together <= 1)


def _release() -> None:
    lock, _thread.lock = _thread.lock, None
    if lock is not None:
        lock.release()


def begin(cache: Any, store: str) -> None:
    """Keep programs from now on.

    Args:
        cache: the module jax._src.compilation_cache, just imported.
        store: the folder of the store.
    """
    if _Process.is_begun:
        return
    _Process.is_begun, _Process.store = True, store
    config = cache.config
    _take_name(config)
    if _LEAST.upper() not in os.environ and config.persistent_cache_min_compile_time_secs.value == _THEIR_LEAST_S:
        config.config.update(_LEAST, LEAST_COMPILE_S)
    theirs_of, key_of = cache._get_cache, cache.get_cache_key

    @functools.wraps(theirs_of)
    def _get_cache(backend: Any) -> Any:
        _take_name(config)
        theirs = theirs_of(backend)
        if backend.platform not in _PLATFORMS or backend.runtime_type in getattr(cache, "_UNSUPPORTED_RUNTIMES", ()):
            return theirs
        checks = getattr(config, "compilation_cache_check_contents", None)
        if checks is not None and checks.value:
            return theirs  # the user wants each program to be compiled, to compare it
        return Programs(store, theirs, cache)

    @functools.wraps(key_of)
    def get_cache_key(module: Any, devices: Any, compile_options: Any, backend: Any, *more: Any, **named: Any) -> Any:
        key = key_of(module, devices, compile_options, backend, *more, **named)
        _thread.key, _thread.ours, _thread.asked = key, key, (cache, module, devices, compile_options, backend)
        debug = compile_options.executable_build_options.debug_options
        if any(getattr(debug, name, "") for name in _PLACES):
            without = copy.deepcopy(compile_options)
            for name in _PLACES:
                if hasattr(debug, name):
                    setattr(without.executable_build_options.debug_options, name, "")
            _thread.ours = key_of(module, devices, without, backend, *more, **named)
        return key

    cache._get_cache, cache.get_cache_key = _get_cache, get_cache_key


def _with_timings(compiler: Any, backend: Any, module: Any, devices: Any, options: Any, *more: Any) -> Any:
    """The options of a compile, if XLA keeps its timings in the store now; else None. Raises OSError."""
    if is_on("BUILDD_DISABLE") or not jax_timings.use(_Process.store, compiler, backend, options):
        return None
    return options


def _take_name(config: Any) -> None:
    """Leave JAX without a folder of its own, if its name means the store: XLA would take it for a folder's."""
    if str(config.compilation_cache_dir.value or "").startswith(SCHEME):
        config.config.update("jax_compilation_cache_dir", None)


def begin_compiler(compiler: Any) -> None:
    """Let one process compile a program while the others wait for it.

    Args:
        compiler: the module jax._src.compiler, just imported.
    """
    compile_it: Callable[..., Any] = compiler._compile_and_write_cache

    @functools.wraps(compile_it)
    def _compile_and_write_cache(*arguments: Any, **named: Any) -> Any:
        options = None
        with jax_why.careful(_log, "XLA's timings are not kept"):
            options = _with_timings(compiler, *arguments)
        try:
            return compile_it(*arguments, **named)
        except RuntimeError as error:
            if options is None or not jax_timings.is_at_fault(options, error):
                raise
            return compile_it(*arguments, **named)
        finally:
            # JAX does not keep every program: those that waited look again, and compile.
            _release()

    compiler._compile_and_write_cache = _compile_and_write_cache
    _Process.alone = True
