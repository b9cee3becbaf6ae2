"""`torch.compile(model, backend="buildd")`: Inductor's numbers to the last bit, and every compile once for all ranks.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

AT_ONCE = 8
MODELS = """
import hashlib, json, os, sys
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(48, 144), torch.nn.Linear(48, 48)
    def forward(self, x):
        q, k, v = self.first(x).chunk(3, -1)
        return self.second(torch.softmax(q @ k.transpose(-1, -2) / 7, -1) @ v).relu() + x

def reductions(x):
    return torch.softmax(torch.exp(x) + torch.sigmoid(x), dim=-1).cumsum(-1) + x.var(-1, keepdim=True)

def digest(*tensors):
    every = [bytes(tensor.detach().contiguous().view(torch.uint8).flatten().tolist()) for tensor in tensors]
    return hashlib.sha256(b"".join(every)).hexdigest()

backend, found = sys.argv[1], {}
torch.manual_seed(0)
for name, made, kind, dynamic, sizes, backwards in (
    ("attention", Attention(), torch.float32, True, (16, 33), True),
    ("reductions", reductions, torch.float64, False, (16,), False),
    ("bf16", reductions, torch.bfloat16, None, (33,), False),
):
    if sys.argv[2:] and name not in sys.argv[2:]:
        continue
    torch._dynamo.reset()
    compiled = torch.compile(made, backend=backend, dynamic=dynamic)
    for rows in sizes:
        x = torch.randn(2, rows, 48).to(kind).requires_grad_(backwards)
        y = compiled(x)
        if backwards:
            y.sum().backward()
        found[f"{name} {rows}"] = digest(y, *([x.grad] if backwards else []))
torch.compiler.reset()
print(json.dumps(found))
"""
OPTIONS = """
import json, sys
import torch
import torch._inductor.config as config

backend, found = sys.argv[1], {}
def function(x):
    return (x.sin() + 1).sum()

def said(**how):
    torch._dynamo.reset()
    try:
        torch.compile(function, backend=backend, **how)(torch.ones(7))
    except Exception as error:
        # torch says of every backend but its own that it raised this.
        return str(error).rpartition("RuntimeError: ")[2].splitlines()[0]
    return "fine"

seen = []
def look(graph):
    seen.append((config.max_autotune, config.coordinate_descent_tuning, config.epilogue_fusion))

for how in ({"options": {"post_grad_custom_pre_pass": look}}, {"options": {"epilogue_fusion": False,
            "post_grad_custom_pre_pass": look}}, {"options": {"no_such": 1}}, {"options": {"epilogue_fusion": "x"}},
            {"mode": "no such"}):
    found[str(sorted(how))+str(len(found))] = said(**how)
config.post_grad_custom_pre_pass = look
found["mode"] = said(mode="max-autotune-no-cudagraphs")
config.post_grad_custom_pre_pass = None
def breaks(x):
    torch._dynamo.graph_break()
    return x
try:
    torch.compile(breaks, backend=backend, fullgraph=True)(torch.ones(3))
except Exception as error:
    found["fullgraph"] = type(error).__name__
print(json.dumps([found, seen]))
"""


class Rank:
    """A program of a user, with Inductor's caches in a folder of their own."""

    def __init__(self, user: User, caches: str, code: str, *arguments: str, **environ: str) -> None:
        folder = user.folder / caches
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=user.folder,
            # Its precompiled header is below the temporary folder.
            env={
                **user.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TMPDIR": str(folder / "tmp"),
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[object, str]:
        """What it found, and what was said on stderr."""
        output, errors = self.process.communicate(timeout=800)
        assert self.process.returncode == 0, errors[-3000:]
        return json.loads(output.splitlines()[-1]), errors


@pytest.fixture
def user() -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="bdt", dir="/tmp") as made:
        one = User(Path(made))
        yield one
        assert one.end() == []


def misses(user: User) -> int:
    """Misses of all compiles that went through the user's store. A daemon without clients may start anew, so its own
    counters are no figure for that."""
    status, said = user.buildd("cache", "stats", "--json")
    assert status == 0, said
    found = json.loads(said)["counters"]["misses"]
    assert isinstance(found, int)
    return found


def test_the_numbers_are_inductors_to_the_last_bit_and_a_second_machine_compiles_nothing(user: User) -> None:
    plain, said = Rank(user, "plain", MODELS, "inductor").end()
    assert isinstance(plain, dict) and len(plain) == 4 and user.daemon() is None
    first, said = Rank(user, "first", MODELS, "buildd").end()
    assert first == plain and "buildd" not in said, said
    compiled = misses(user)
    assert compiled >= 5, "a probe, a precompiled header and kernels"
    # The same places, with nothing in them: as on another machine.
    shutil.rmtree(user.folder / "first")
    second, _ = Rank(user, "first", MODELS, "buildd").end()
    assert second == plain and misses(user) == compiled
    status, said = user.buildd("explain", "--kernels", "torch graph")
    assert status == 0 and "the graph: other operations" in said, said
    assert re.search(r"no forward graph of \S+ was compiled here before", said), said


def test_mode_options_and_fullgraph_are_inductors(user: User) -> None:
    plain, _ = Rank(user, "plain", OPTIONS, "inductor").end()
    ours, said = Rank(user, "ours", OPTIONS, "buildd").end()
    assert isinstance(plain, list) and plain[0]["fullgraph"] != "fine" and [True, True, True] in plain[1]
    assert ours == plain, said


def test_of_several_ranks_at_once_one_compiles_each_source(user: User) -> None:
    program = (MODELS, "buildd", "reductions")
    alone, _ = Rank(user, "alone", *program).end()
    wanted = misses(user)
    assert wanted > 0
    # The daemon goes on, its store is new, and so are the caches that the ranks of one user share.
    user.store = user.folder / "another"
    user.environ["BUILDD_DIR"] = str(user.store)
    ranks = [Rank(user, "ranks", *program) for _ in range(AT_ONCE)]
    assert all(rank.end()[0] == alone for rank in ranks)
    assert misses(user) == wanted


def test_without_a_daemon_it_is_plain_inductor(user: User) -> None:
    plain, _ = Rank(user, "plain", OPTIONS, "inductor").end()
    (user.folder / "file").write_text("no folder")
    ours, said = Rank(user, "plain", OPTIONS, "buildd", BUILDD_RUNTIME_DIR=str(user.folder / "file")).end()
    assert ours == plain
    assert next(line for line in said.splitlines() if line.startswith("buildd: ")).endswith("is plain inductor"), said
    assert said.count('backend "buildd" is plain inductor') == 1
    _, said = Rank(user, "plain", OPTIONS, "buildd", BUILDD_DISABLE="1").end()
    assert "plain inductor" not in said and user.daemon() is None
