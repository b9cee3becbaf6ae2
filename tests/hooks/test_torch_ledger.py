"""What generated code and Inductor's workers tell the ledger, with modules of torch's shape; torch's own are for
`scripts/test-torch`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.hooks import ledger, torch_ledger
from buildd.hooks.ledger import Ledger


class Kernel:
    """As Inductor's CachingAutotuner."""

    compile_results = ("a kernel",)


class Future:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def result(self) -> Any:
        return self.kernel


def async_compile() -> Any:
    class AsyncCompile:
        def triton(self, kernel: Any, *, is_here: bool = False) -> Any:
            return kernel if is_here else Future(kernel)

        def wait(self, scope: dict[str, Any]) -> None:
            for name, value in scope.items():
                scope[name] = value.result() if isinstance(value, Future) else value

    return SimpleNamespace(AsyncCompile=AsyncCompile)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    made = Ledger(str(tmp_path), "b", {}, 0.0)
    monkeypatch.setattr(ledger, "_ledger", made)
    yield made
    assert made.phase == "program"


def made_by_a_worker(*, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    def _worker_compile_triton(kernel: Any) -> tuple[Any, int]:
        if compiles:
            monkeypatch.setattr(ledger, "compiled_here", ledger.compiled_here + 1)
        return kernel, 5

    tasks = SimpleNamespace(_worker_compile_triton=_worker_compile_triton)
    torch_ledger.watch_tasks(tasks)
    return tasks._worker_compile_triton(Kernel())[0]


def test_workers_say_which_kernels_they_found(here: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    module = async_compile()
    torch_ledger.watch_kernels(module)
    compiler = module.AsyncCompile()
    kernels = [made_by_a_worker(compiles=each, monkeypatch=monkeypatch) for each in (True, False, False)]
    compiler.wait({"a": compiler.triton(kernels[0]), "b": compiler.triton(kernels[1]), "c": 5})
    assert here.counts == {"kernels compiled": 1, "kernels found": 1}
    compiler.wait({"d": compiler.triton(kernels[2])})
    assert here.counts == {"kernels compiled": 1, "kernels found": 2}
    assert {"kernels compiled", "kernels found"} <= set(here.totals)


def test_a_kernel_that_triton_compiles_in_the_program_itself(here: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the workers are not up yet."""
    module = async_compile()
    triton = module.AsyncCompile.triton

    def compiling(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(ledger, "compiled_here", ledger.compiled_here + 1)
        return triton(*arguments, **named)

    module.AsyncCompile.triton = compiling
    torch_ledger.watch_kernels(module)
    compiler = module.AsyncCompile()
    compiler.wait({"a": compiler.triton(Kernel(), is_here=True)})
    assert here.counts == {"kernels compiled": 1}


def test_a_wait_that_fails_ends_its_batch(here: Ledger) -> None:
    module = async_compile()

    def wait(self: Any, scope: dict[str, Any]) -> None:
        raise RuntimeError("a worker died")

    module.AsyncCompile.wait = wait
    torch_ledger.watch_kernels(module)
    compiler = module.AsyncCompile()
    with pytest.raises(RuntimeError, match="a worker died"):
        compiler.wait({"a": compiler.triton(Kernel())})
    assert here.phase == "program"


def test_other_threads_and_programs_without_a_ledger_are_left_alone() -> None:
    module = async_compile()
    torch_ledger.watch_kernels(module)
    compiler = module.AsyncCompile()
    scope = {"a": compiler.triton(Kernel())}
    compiler.wait(scope)
    assert isinstance(scope["a"], Kernel)


def test_a_look_up_may_return_the_graph_alone(here: Ledger) -> None:
    class AOTAutogradCache:
        @staticmethod
        def try_load(found: Any) -> Any:
            return found

    module = SimpleNamespace(AOTAutogradCache=AOTAutogradCache)
    torch_ledger.watch_autograd(module)
    graph = lambda: "called"  # noqa: E731 - a graph is a function without an index
    assert module.AOTAutogradCache.try_load(None) is None
    assert here.totals["tracing"] > 0 and here.totals["graphs found"] == 0
    assert module.AOTAutogradCache.try_load(graph) is graph
    assert here.totals["graphs found"] > 0


def test_a_compiler_command_that_is_no_line_of_shell_reaches_torch(here: Ledger) -> None:
    ran: list[Any] = []
    module = SimpleNamespace(run_compile_cmd=lambda command, *more: ran.append(command))
    torch_ledger.watch_compilers(module)
    for command in (["g++", "-c", "a.cpp"], "g++ -c 'a.cpp"):
        module.run_compile_cmd(command, "folder")
    assert ran == [["g++", "-c", "a.cpp"], "g++ -c 'a.cpp"]


def test_what_a_look_up_returns_is_unchanged(here: Ledger) -> None:
    class FxGraphCache:
        @staticmethod
        def load_with_key(found: Any) -> tuple[Any, str]:
            return found, "more"

    def _worker_compile_cpp(*arguments: Any) -> None:
        pass

    module = SimpleNamespace(FxGraphCache=FxGraphCache, _worker_compile_cpp=_worker_compile_cpp)
    torch_ledger.watch_codecache(module)
    assert module.FxGraphCache.load_with_key("a graph") == ("a graph", "more")
    assert module.FxGraphCache.load_with_key(None) == (None, "more")
    assert here.counts == {"graphs found": 1}
    assert {"graphs found", "tracing"} <= set(here.totals)
