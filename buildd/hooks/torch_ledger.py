"""In a program that uses torch.compile: tells the ledger of its start when a frame is traced, when graphs and kernels
are found or compiled, and when a new graph is called for the first time.

Knows the names in Dynamo, AOTAutograd and Inductor at which each of these begins; a name that is missing there costs
only its own phase, whose time then counts as that of the phase around it. A kernel is what generated code asks for, of
C++ or of Triton; it counts as compiled if a compiler ran for it. Runs in the user's own process; standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import ledger
from .compiler_calls import CompilerCalls
from .ledger import FIRST_CALL, GRAPHS_COMPILED, GRAPHS_FOUND, KERNELS_COMPILED, KERNELS_FOUND, PROBES, TRACING

_KERNELS = ("triton", "cpp", "cpp_pybinding", "cutlass", "cuda", "rocm", "xpu", "halide", "cutedsl", "pallas")
"""Methods of AsyncCompile that begin to make a kernel."""
_IS_FOUND = "_buildd_is_found"
"""Attribute of a Triton kernel that a compile worker found in the store."""


class _Batch:
    """The kernels that one generated module asks for, from the first one until it waits for all of them."""

    def __init__(self) -> None:
        self.asked = 0
        self.compiled = 0
        self.has_compiled = False
        """A compiler has run since this was last set to False: for a kernel, or for a header of kernels."""


_batch = _Batch()
_graphs = 0
"""Number of graphs that this process has found or compiled."""
_lock = threading.Lock()
_thread = threading.local()


# ---------------------------------------------------------------- frames and graphs


def watch_dynamo(callback: Any) -> None:
    """Count the time in which Dynamo and what is below it compile a frame, and the call of a new graph after it.

    Args:
        callback: the module torch._dynamo.callback, just imported.
    """
    began: list[tuple[int, int]] = []

    def start(*arguments: Any) -> None:
        if (here := ledger.present()) is not None:
            began.append((here.enter(TRACING), _graphs))

    def end(*arguments: Any) -> None:
        here = ledger.present()
        if here is None or not began:
            return
        place, graphs = began.pop()
        here.leave(place)
        if _graphs > graphs:
            with contextlib.suppress(Exception):  # Inductor's classes may have changed
                _await_call(here)

    callback.callback_handler.register_start_callback(start)
    callback.callback_handler.register_end_callback(end)


def _await_call(here: ledger.Ledger) -> None:
    """Count the time until a graph was called: Dynamo calls what it has compiled at once."""
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__
    place = here.enter(FIRST_CALL)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if ledger.present() is None:
            return original(self, *arguments, **named)
        if CompiledFxGraph.__call__ is call:
            CompiledFxGraph.__call__ = original
        try:
            return original(self, *arguments, **named)
        finally:
            here.leave(place)

    CompiledFxGraph.__call__ = call


def watch_autograd(autograd_cache: Any) -> None:
    """Count the time in which AOTAutograd finds an entry; Inductor's own cache, inside, counts its graphs.

    Args:
        autograd_cache: the module torch._functorch._aot_autograd.autograd_cache, just imported.
    """
    _watch_look(autograd_cache.AOTAutogradCache, "try_load", graphs=0)


def _watch_look(cache: Any, name: str, graphs: int) -> None:
    """Count the calls of a cache's static method.

    It returns the graph that it found, or None. Most return it in a tuple with something else; the one of torch
    2.11's AOTAutogradCache returns it alone.
    """
    original: Callable[..., Any] = getattr(cache, name)

    @functools.wraps(original)
    def look(*arguments: Any, **named: Any) -> Any:
        global _graphs
        here = ledger.present()
        if here is None:
            return original(*arguments, **named)
        is_found, place = False, here.enter(GRAPHS_FOUND)
        try:
            result = original(*arguments, **named)
            is_found = (result[0] if isinstance(result, tuple) else result) is not None
            return result
        finally:
            found = graphs if is_found else 0
            _graphs += found
            here.leave(place, GRAPHS_FOUND if is_found else TRACING, found)

    setattr(cache, name, staticmethod(look))


def watch_inductor(compile_fx: Any) -> None:
    """Count the graphs that Inductor compiles.

    Args:
        compile_fx: the module torch._inductor.compile_fx, just imported.
    """
    original: Callable[..., Any] = compile_fx.fx_codegen_and_compile

    @functools.wraps(original)
    def compiled(*arguments: Any, **named: Any) -> Any:
        global _graphs
        here = ledger.present()
        if here is None:
            return original(*arguments, **named)
        place = here.enter(GRAPHS_COMPILED)
        try:
            return original(*arguments, **named)
        finally:
            _graphs += 1
            here.leave(place, parts=1)

    compile_fx.fx_codegen_and_compile = compiled


# ---------------------------------------------------------------- kernels


def watch_kernels(async_compile: Any) -> None:
    """Count the kernels that generated code asks for, and the time until all of a module are there.

    Args:
        async_compile: the module torch._inductor.async_compile, just imported.
    """
    kind = async_compile.AsyncCompile
    for name in _KERNELS:
        if name in vars(kind):
            setattr(kind, name, _asking(getattr(kind, name)))
    wait: Callable[..., Any] = kind.wait

    @functools.wraps(wait)
    def waited(self: Any, scope: dict[str, Any]) -> Any:
        global _batch
        here, batch = ledger.present(), _batch
        if here is None or not batch.asked:
            return wait(self, scope)
        pending = [name for name, value in scope.items() if hasattr(type(value), "result")]
        is_known = {name: type(scope[name]).__name__ == "StaticAutotunerFuture" for name in pending}
        try:
            with _making(here):
                try:
                    return wait(self, scope)
                finally:
                    for name in pending:
                        _note_triton(scope.get(name), is_found=is_known[name])
        finally:
            _batch = _Batch()
            compiled = min(batch.asked, batch.compiled)
            here.count(KERNELS_COMPILED, compiled)
            here.count(KERNELS_FOUND, batch.asked - compiled)

    kind.wait = waited


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(*arguments: Any, **named: Any) -> Any:
        here = ledger.present()
        if here is None:
            return original(*arguments, **named)
        _batch.asked += 1
        compiled = ledger.compiled_here
        with _making(here):
            kernel = original(*arguments, **named)
            if not hasattr(kernel, "result"):  # no future: Triton compiled it here
                _note_triton(kernel, is_found=ledger.compiled_here == compiled)
        return kernel

    return ask


@contextlib.contextmanager
def _making(here: ledger.Ledger) -> Iterator[None]:
    batch = _batch
    batch.has_compiled = False
    place = here.enter(KERNELS_COMPILED)
    try:
        yield
    finally:
        here.leave(place, KERNELS_COMPILED if batch.has_compiled else KERNELS_FOUND)


def _note_compiled() -> None:
    with _lock:
        _batch.compiled += 1
        _batch.has_compiled = True


def _note_triton(kernel: Any, *, is_found: bool) -> None:
    """Note whether a kernel of Triton's was compiled; a kernel in C++ has been noted by its compiler's call."""
    if hasattr(kernel, "compile_results") and not is_found and not getattr(kernel, _IS_FOUND, False):
        _note_compiled()


def watch_tasks(compile_tasks: Any) -> None:
    """In a compile worker: tell the program which kernels were found.

    Args:
        compile_tasks: the module torch._inductor.runtime.compile_tasks, just imported.
    """
    original: Callable[..., Any] = compile_tasks._worker_compile_triton

    @functools.wraps(original)
    def work(*arguments: Any, **named: Any) -> Any:
        compiled = ledger.compiled_here
        result = original(*arguments, **named)
        with contextlib.suppress(Exception):
            setattr(result[0], _IS_FOUND, ledger.compiled_here == compiled)
        return result

    compile_tasks._worker_compile_triton = work


# ---------------------------------------------------------------- C++


def watch_codecache(codecache: Any) -> None:
    """Count the graphs that Inductor finds, and the kernels of C++ that it compiles, in any thread.

    Args:
        codecache: the module torch._inductor.codecache, just imported.
    """
    _watch_look(codecache.FxGraphCache, "load_with_key", graphs=1)
    original: Callable[..., Any] = codecache._worker_compile_cpp

    @functools.wraps(original)
    def work(*arguments: Any, **named: Any) -> Any:
        _thread.has_compiled = False
        try:
            return original(*arguments, **named)
        finally:
            if _thread.has_compiled:
                _note_compiled()

    codecache._worker_compile_cpp = work


def _words(command: Any) -> list[str]:
    """The words of a compiler's command; [] if this torch does not hand over one line of shell."""
    try:
        return shlex.split(command)
    except (AttributeError, TypeError, ValueError):
        return []


def watch_compilers(cpp_builder: Any) -> None:
    """Learn which calls of the C++ compiler the store answered.

    Args:
        cpp_builder: the module torch._inductor.cpp_builder, just imported.
    """
    if (here := ledger.present()) is None:
        return
    calls = CompilerCalls(here.store, here.build)
    original: Callable[..., Any] = cpp_builder.run_compile_cmd

    @functools.wraps(original)
    def run(cmd_line: str, *arguments: Any, **named: Any) -> Any:
        words = _words(cmd_line)
        output = words[words.index("-o") + 1] if "-o" in words[:-1] else ""
        mark = calls.mark()
        try:
            return original(cmd_line, *arguments, **named)
        finally:
            if "-E" not in words and not calls.found(output, mark):
                _thread.has_compiled = _batch.has_compiled = True

    cpp_builder.run_compile_cmd = run


def watch_probes(cpu_vec_isa: Any) -> None:
    """Count the time in which Inductor asks the compiler what it can do for this processor.

    Args:
        cpu_vec_isa: the module torch._inductor.cpu_vec_isa, just imported.
    """
    original: Callable[..., Any] = cpu_vec_isa.VecISA.check_build

    @functools.wraps(original)
    def check_build(*arguments: Any, **named: Any) -> Any:
        before = _batch.has_compiled
        try:
            with ledger.during(PROBES):
                return original(*arguments, **named)
        finally:
            _batch.has_compiled = before

    cpu_vec_isa.VecISA.check_build = check_build
