"""A process whose graphs come with their traces imports no compiler of Inductor's, and asks no processor again.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.serving import short_folder
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3000)]

PROGRAM = """
import gc, json, subprocess, sys
import torch

started = []
run = subprocess.run
subprocess.run = lambda *given, **named: (started.append(list(given[0])), run(*given, **named))[1]


@torch.compile
def linear(x, y, z):
    return torch.relu(torch.addmm(z, x, y)) @ y


@torch.compile
def convolved(x, y):
    return torch.nn.functional.conv2d(x, y).sin() * 2


torch.manual_seed(0)
x, y, z = (torch.rand(8, 8, requires_grad=True) for _ in range(3))
image, weight = torch.rand(1, 3, 8, 8, requires_grad=True), torch.rand(2, 3, 3, 3, requires_grad=True)
found = {}
for name, called, given in (("linear", linear, (x, y, z)), ("convolved", convolved, (image, weight))):
    value = called(*given)
    value.sum().backward()
    wanted = called._torchdynamo_orig_callable(*given)
    assert torch.allclose(value, wanted, atol=1e-4), name
    found[name] = [each for each in ("compile_fx", "ir", "scheduler") if f"torch._inductor.{each}" in sys.modules]
found["probes"] = sum("dlopen" in " ".join(words) or "LoadLibrary" in " ".join(words) for words in started)
found["collector"] = gc.isenabled()
found["networks"] = "networkx" in sys.modules
found["stand-ins"] = [name for name, module in sys.modules.items() if type(module).__name__ == "_StandIn"]
if "attributes" in sys.argv:
    found["lowering"] = torch._inductor.lowering.__name__  # as after torch's own torch.compile
    found["nothing"] = hasattr(torch._inductor, "nothing_of_this_name")
    torch._inductor.debug.RECORD_GRAPH_EXECUTION
    found["debug"] = [torch._inductor.debug.DebugContext.__module__, type(torch._inductor.debug).__name__]
if "later" in sys.argv:
    torch.compile(lambda v: v.cos() * 3)(x)
    from torch._inductor.select_algorithm import extern_kernels
    from torch._inductor.graph import GraphLowering
    from torch._inductor.decomposition import select_decomp_table
    found["real"] = [type(extern_kernels).__name__, GraphLowering.__mro__[-2].__name__, len(select_decomp_table()) > 9]
    from torch._functorch import partitioners
    from torch._functorch._activation_checkpointing.graph_info_provider import GraphInfoProvider
    nodes = [["a", "b"], [("a", "b")], ["b"], {"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}]
    provider = partitioners.GraphInfoProvider(*nodes)
    judge = partitioners.KnapsackEvaluator(graph_info_provider=provider)
    found["divided"] = [isinstance(provider, GraphInfoProvider), "networkx" in sys.modules]
    found["judged"] = type(judge).__module__.rpartition(".")[2], type(judge).__name__
    found["known"] = partitioners.GraphInfoProvider.inialize_from_graph == GraphInfoProvider.inialize_from_graph
    found["same"] = {name: getattr(extern_kernels, name) is getattr(torch, name) for name in DIRECT}
print(json.dumps(found))
"""
DIRECT = ("addmm", "baddbmm", "bmm", "convolution", "mm")


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder, {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "BUILDD_TORCH_TRACES": "1"})
        (folder / "main.py").write_text(PROGRAM.replace("DIRECT", repr(DIRECT)))
        first = ran(user)
        assert first["linear"] and first["probes"] == 1, "it compiles"
        yield user
        assert user.end() == []


def ran(user: User, *words: str) -> dict[str, Any]:
    status, said = user.buildd("run", "--", sys.executable, "main.py", *words, timeout_s=1400)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def test_graphs_from_the_store_run_without_the_compiler(user: User) -> None:
    found = ran(user)
    assert not found["linear"] and not found["convolved"]
    assert found["probes"] == 0 and found["stand-ins"] == [] and not found["networks"]
    assert found["collector"]


def test_a_program_finds_the_modules_of_the_compiler(user: User) -> None:
    found = ran(user, "attributes")
    assert not found["linear"]
    assert found["lowering"] == "torch._inductor.lowering" and not found["nothing"]
    assert found["debug"] == ["torch._inductor.debug", "module"]


def test_what_is_compiled_later_has_the_compiler_itself(user: User) -> None:
    found = ran(user, "later")
    assert not found["linear"]
    assert found["real"] == ["KernelNamespace", "Interpreter", True]
    assert found["divided"] == [True, True] and found["known"]
    assert found["judged"] == ["knapsack_evaluator", "KnapsackEvaluator"]
    assert found["same"] == dict.fromkeys(DIRECT, True), "the kernels that a graph gets at once are Inductor's own"
