"""The ledger of the start of a program that uses torch.compile, beside the clock on the wall.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program_starts import started
from tests.support.serving import short_folder
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

MODEL = """
import torch
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)]
compiled = torch.compile(torch.nn.Sequential(*layers))
x = torch.randn(8, 64, requires_grad=TRAINS)
y = compiled(x).sum()
if TRAINS:
    y.backward()
"""
TWO_FRAMES = """
import torch
def function(x):
    x = torch.softmax(x.sin(), -1)
    print("a graph break")
    return x.cos().var(0)
torch.compile(function)(torch.ones(30, 40))
"""


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    return tmp_path / "inductor"


@pytest.fixture
def torch_user(caches: Path) -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder, {"TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")})
        yield user
        assert user.end() == []


@pytest.mark.parametrize("trains", [False, True])
def test_the_phases_of_a_torch_program_add_up_to_the_wall_clock(torch_user: User, caches: Path, trains: bool) -> None:
    """Compiled; found by Inductor itself; found in the store, when Inductor's own caches are gone."""
    program = MODEL.replace("TRAINS", str(trains))
    graphs = 1 + trains
    starts = []
    for caches_are_there in (True, True, False):
        if not caches_are_there:
            shutil.rmtree(caches)
        wall_s, start = started(torch_user, program)
        phases = start["phases"]
        assert sum(phases.values()) == pytest.approx(start["wall_s"], rel=0.001)
        assert sum(phases.values()) == pytest.approx(wall_s, rel=0.05), phases
        assert {"interpreter", "imports", "tracing", "first call", "program"} <= set(phases)
        starts.append(start)
    cold, warm, from_store = starts
    kernels = cold["counts"]["kernels compiled"]
    assert cold["counts"] == {"graphs compiled": graphs, "kernels compiled": kernels}
    assert {"graphs compiled", "kernels compiled", "compiler probes"} <= set(cold["phases"])
    for found in (warm, from_store):
        assert found["counts"] == {"graphs found": graphs, "kernels found": kernels}
        assert {"graphs found", "kernels found"} <= set(found["phases"])
        assert not {"graphs compiled", "kernels compiled"} & set(found["phases"])
        assert found["phases"]["kernels found"] < cold["phases"]["kernels compiled"]


def test_each_frame_of_a_function_counts(torch_user: User) -> None:
    wall_s, start = started(torch_user, TWO_FRAMES)
    assert start["counts"]["graphs compiled"] == 2
    assert sum(start["phases"].values()) == pytest.approx(wall_s, rel=0.05)


def test_a_program_that_compiles_nothing_is_imports(torch_user: User) -> None:
    wall_s, start = started(torch_user, "import torch\ntorch.ones(3).sum()\n")
    assert start.get("counts", {}) == {}
    assert set(start["phases"]) == {"interpreter", "imports", "program"}
    assert sum(start["phases"].values()) == pytest.approx(wall_s, rel=0.05)
