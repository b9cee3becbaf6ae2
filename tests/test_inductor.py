"""Stock torch.compile on the CPU below `buildd run`: its compiles are hits, and its numbers right.

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

from tests.household import Household

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PROGRAM = """
import json, os, sys
for name in sys.argv[1:]:
    os.environ.__setitem__(*name.split("="))
import torch
from torch._dynamo.utils import counters

def model(x, y):
    return torch.softmax(torch.exp(x) * y + torch.sigmoid(x), dim=-1).cumsum(-1) + y.sum()

torch.manual_seed(0)
found = []
for shape, kind in (((33, 65), torch.float32), ((17, 129), torch.float64), ((64, 64), torch.bfloat16)):
    x, y = torch.randn(shape).to(kind), torch.randn(shape).to(kind)
    got, wanted = torch.compile(model)(x, y), model(x, y)
    torch.testing.assert_close(got, wanted, rtol=2e-2 if kind is torch.bfloat16 else 1e-4, atol=1e-2)
    found.append(got.double().sum().item().hex())
seen = counters["inductor"]
print(json.dumps({"hits": seen["fxgraph_cache_hit"], "missed": seen["fxgraph_cache_miss"], "sums": found,
    "width": torch.backends.cpu.get_cpu_capability()}))
"""


class Torch:
    """A program that compiles three graphs, with a cache of its own."""

    def __init__(self, user: Household) -> None:
        self.user = user
        self.caches = (user.folder / "inductor", user.folder / "tmp")

    def forget(self) -> None:
        """Empty all local caches: as on another machine."""
        for folder in self.caches:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, *arguments: str, through_us: bool = True) -> tuple[dict[str, object], str]:
        """What it found, and the line that `buildd run` ends with."""
        self.caches[1].mkdir(exist_ok=True)
        ours = (sys.executable, "-P", "-m", "buildd", "run", "--") if through_us else ()
        done = subprocess.run(
            [*ours, sys.executable, "-c", PROGRAM, *arguments],
            cwd=self.user.folder,
            # Its precompiled header is below the temporary folder.
            env={**self.user.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.caches[0]), "TMPDIR": str(self.caches[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        last = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("buildd: ")), "")
        return json.loads(done.stdout.splitlines()[-1]), last


@pytest.fixture(scope="module")
def torch() -> Iterator[Torch]:
    with tempfile.TemporaryDirectory(prefix="bdt", dir="/tmp") as made:
        user = Household(Path(made))
        yield Torch(user)
        assert user.end() == []


def counts(line: str) -> tuple[int, int]:
    match = re.match(r"buildd: (\d+) hits, (\d+) misses", line)
    assert match, line
    return int(match[1]), int(match[2])


def test_what_was_compiled_once_is_found_where_all_local_caches_are_empty(torch: Torch) -> None:
    torch.forget()
    plain, _ = torch.run(through_us=False)
    torch.forget()
    cold, said = torch.run()
    hits, misses = counts(said)
    assert misses >= 4, "a probe, a precompiled header and three kernels"
    torch.forget()
    warm, said = torch.run()
    assert counts(said) == (misses + hits, 0), said
    assert plain["sums"] == cold["sums"] == warm["sums"]
    assert (warm["hits"], warm["missed"]) == (0, 3)


def test_another_vector_width_never_finds_what_was_kept_for_this_one(torch: Torch) -> None:
    first, _ = torch.run()
    again, _ = torch.run()
    assert again["hits"] == 3 and again["sums"] == first["sums"]
    # Set within the program: the tag of `buildd run` knows nothing of it.
    narrow, _ = torch.run("ATEN_CPU_CAPABILITY=default")
    if narrow["width"] == first["width"]:
        pytest.skip("this processor has no other vector width")
    assert (narrow["hits"], narrow["missed"]) == (0, 3)
    once_more, _ = torch.run("ATEN_CPU_CAPABILITY=default")
    assert once_more["hits"] == 3
