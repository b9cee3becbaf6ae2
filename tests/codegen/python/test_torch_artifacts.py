"""Kind torch, result "artifacts": the plan without torch, and where torch is, files that make a fresh process warm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codegen.errors import RequestError
from codegen.python.torch_artifacts import WORKER
from tests.support.carry_out import plan_with
from tests.support.serving import short_folder
from tests.support.torch_project import EXPORT, SOURCE, Checkout, pretended, request
from tests.support.user import User


@pytest.fixture
def net(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "net.py").write_text("")
    return {**SOURCE, "result": "artifacts"}


@pytest.mark.skipif(not any(Path(p, "g++").exists() for p in ("/usr/bin", "/bin")), reason="no g++")
def test_an_archive_is_known_by_its_bytes_and_code_runs_each_time(tmp_path: Path, net: dict[str, Any]) -> None:
    keyed = {"OMP_NUM_THREADS": "3", "TORCH_COMPILE_CACHE_KEY_TAG": "mine"}
    environment = {**keyed, "HOME": "/home/me", "TORCH_LOGS": "all"}
    (stored,) = plan_with(
        request(tmp_path, result="artifacts", dynamic=True, environment=environment), pretended
    ).actions
    assert (stored.inputs, stored.uncacheable, stored.served) == (("mlp.pt2",), "", True)
    assert [output.path for output in stored.outputs] == ["build/mlp/mlp.artifacts"] and stored.resources.cpus == 0
    seen = dict(stored.environment)
    assert keyed.items() <= seen.items()
    assert not {"HOME", "TORCH_LOGS", "BUILDD_DIR", "OPENBLAS_NUM_THREADS"} & set(seen)
    assert str(tmp_path) not in repr(stored)
    spec = json.loads(stored.payload)
    assert (spec["dynamic"], spec["source"], spec["threads"]) == (True, "", 0)
    (run,) = plan_with(request(tmp_path, **net, training=True, environment=environment), pretended).actions
    assert run.uncacheable and run.inputs == ("net.py",) and dict(run.environment)["HOME"] == "/home/me"
    assert json.loads(run.payload)["training"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"result": "cache"}, 'there is no result "cache"'),
        ({"fullgraph": True}, "fullgraph does not apply"),
        ({"dynamic": False}, "dynamic does not apply"),
        ({"training": True}, "training does not apply"),
        ({"result": "artifacts", "strict": True}, "strict does not apply"),
        ({"result": "artifacts", "disable": True}, "would compile nothing"),
        ({"result": "artifacts", "backend": "inducto"}, "did you mean"),
        ({"result": "trace"}, "an archive has none"),
        ({"backend": "eager"}, "backend does not apply"),
        ({"result": "artifacts", "mode": "max-autotun"}, "did you mean"),
        ({"result": "artifacts", "dynamic": "yes"}, "dynamic"),
        ({"result": "artifacts", "archive": ""}, "needs one of archive and source"),
    ],
)
def test_a_wrong_target_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = {} if "archive" in changes or "strict" not in changes else SOURCE
    (tmp_path / "net.py").write_text("")
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(tmp_path, **{**source, **changes}), pretended)
    assert caught.value.code == "bad-project" and caught.value.next_step


def test_the_worker_imports_nothing_of_ours() -> None:
    lines = [line.strip() for line in WORKER.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if line.startswith(("from buildd", "from codegen", "import msgspec"))]


# ---------------------------------------------------------------- with torch

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)

def scaled(x, y):
    return torch.exp(x) * y + x.sum()
"""
PROJECT = """
[target.net]
kind = "torch"
source = "net.py"
function = "Net"
result = "artifacts"
training = true
inputs = [{ shape = [4, 16] }]

[target.scaled]
kind = "torch"
source = "net.py"
function = "scaled"
result = "artifacts"
inputs = [{ shape = ["rows", 16] }, { shape = [16] }]

[target.general]
kind = "torch"
source = "net.py"
function = "scaled"
result = "artifacts"
dynamic = true
inputs = [{ shape = ["rows", 16] }, { shape = [16] }]

[target.mlp]
kind = "torch"
archive = "mlp.pt2"
result = "artifacts"

[target.package]
kind = "torch"
archive = "mlp.pt2"
"""
USE = """
import json, sys
import torch
from torch._dynamo.utils import counters

what, *files = sys.argv[1:]
for file in files:
    with open(file, "rb") as stream:
        assert torch.compiler.load_cache_artifacts(stream.read()) is not None
torch.manual_seed(0)
if what == "net":
    import net
    model = net.Net()
    compiled = torch.compile(model)
    x = torch.randn(4, 16)
    got, wanted = compiled(x), model(x)
    got.sum().backward()
elif what in ("scaled", "general"):
    import net
    compiled = torch.compile(net.scaled, dynamic=True if what == "general" else None)
    with torch.no_grad():
        for rows in (7, 9, 33):
            x, y = torch.randn(rows, 16), torch.randn(16)
            got, wanted = compiled(x, y), net.scaled(x, y)
else:
    model = torch.export.load("mlp.pt2").module()
    compiled = torch.compile(model)
    x = torch.randn(4, 16)
    with torch.no_grad():
        got, wanted = compiled(x), model(x)
torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
seen = counters["inductor"]
print(json.dumps([seen["fxgraph_cache_hit"], seen["fxgraph_cache_miss"]]))
"""


class Harness(Checkout):
    """Builds the files, and runs programs that use them."""

    def __init__(self, user: User, name: str) -> None:
        super().__init__(user, name)
        self.caches = user.folder / "inductor"
        user.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.caches)

    def build(self, *arguments: str) -> str:
        self.forget()
        return super().build(*arguments)

    def forget(self) -> None:
        """Empty torch's own caches: as on another machine."""
        if self.caches.exists():
            self.caches.rename(self.user.folder / f"former-{len(list(self.user.folder.glob('former-*')))}")

    def use(self, what: str, *files: str, environ: dict[str, str] | None = None) -> tuple[list[int], str]:
        """How many graphs a fresh program found and missed; what `buildd run` said."""
        self.forget()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "-c", USE, what, *files],
            cwd=self.folder,
            env={**self.user.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with short_folder() as folder:
        # One CPU token: a program that waits for its own compiles must not be in their way.
        user = User(folder, {"BUILDD_JOBS": "1", "TMPDIR": str(folder / "tmp")})
        (folder / "tmp").mkdir()
        made = Harness(user, "harness")
        (made.folder / "net.py").write_text(NET)
        (made.folder / "buildd.toml").write_text(PROJECT)
        made.python(EXPORT, "1", "mlp.pt2")
        yield made
        assert user.end() == []


ALONE = {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0"}
"""The store's graphs are not asked for: what is in the file counts."""


def compiled(said: str) -> int:
    found = re.search(r"(\d+) miss(?:es)?", said)
    assert found, said
    return int(found[1])


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "graphs"), [("net", 2), ("general", 1), ("mlp", 1)])
def test_a_fresh_process_finds_every_graph_and_compiles_nothing(harness: Harness, name: str, graphs: int) -> None:
    said = harness.build(name)
    file = f"build/{name}/{name}.artifacts"
    assert (harness.folder / file).stat().st_size > 1000, said
    (hits, misses), line = harness.use(name, file, environ=ALONE)
    assert (hits, misses) == (graphs, 0) and compiled(line) == 0, line
    (hits, misses), line = harness.use(name, environ=ALONE)
    assert (hits, misses) == (0, graphs) and compiled(line) == 0, "without the file graphs are compiled, and no C++"
    # And under `buildd run` the store itself is that cache.
    (hits, misses), line = harness.use(name)
    assert (hits, misses) == (graphs, 0) and compiled(line) == 0, line


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_an_archive_hits_code_is_run_again_and_both_are_whole(harness: Harness) -> None:
    harness.build("mlp", "scaled")
    first = {name: (harness.folder / f"build/{name}/{name}.artifacts").read_bytes() for name in ("mlp", "scaled")}
    for name in first:
        (harness.folder / f"build/{name}/{name}.artifacts").unlink()
    said = harness.build("mlp", "scaled")
    assert "1 hit" in said, said
    assert (harness.folder / "build/mlp/mlp.artifacts").read_bytes() == first["mlp"], "served by content"
    # Its first size is another one; the graph for all sizes, which was found while the target ran, is in the file.
    (hits, misses), _ = harness.use("scaled", "build/scaled/scaled.artifacts", environ=ALONE)
    assert (hits, misses) == (1, 1)


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_what_cannot_be_compiled_is_told(harness: Harness) -> None:
    (harness.folder / "broken.py").write_text("def f(x):\n    print('graph', 'break')\n    return x.exp()\n")
    target = PROJECT.partition("training")[0].replace("net", "broken").replace("Net", "f")
    target += "inputs = [{ shape = [3] }]\n"
    (harness.folder / "broken.toml").write_text(target + "fullgraph = true\n")
    status, said = harness.user.buildd("build", "-C", str(harness.folder), "-f", "broken.toml", timeout_s=600)
    assert status == 1 and "broken.py: error: cannot be compiled" in said, said
    (harness.folder / "broken.toml").write_text(target)
    status, said = harness.user.buildd("build", "-C", str(harness.folder), "-f", "broken.toml", timeout_s=600)
    assert status == 0, said


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_bundle_takes_graphs_to_another_store(harness: Harness, tmp_path: Path) -> None:
    harness.build("general")
    status, said = harness.user.buildd("cache", "export", str(tmp_path / "b"), "--all")
    assert status == 0, said
    with short_folder() as folder:
        other = User(folder)
        other.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        there = Harness(other, "there")
        # Their paths are in the command lines of what is compiled; on another machine they are the same.
        there.caches = harness.caches
        other.environ |= {name: harness.user.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TMPDIR")}
        (there.folder / "net.py").write_text(NET)
        status, said = other.buildd("cache", "import", str(tmp_path / "b"))
        assert status != 0 and "trust" in said, said
        status, key = harness.user.buildd("cache", "key")
        assert other.buildd("cache", "trust", key.split()[0])[0] == 0
        status, said = other.buildd("cache", "import", str(tmp_path / "b"))
        assert status == 0, said
        (hits, misses), line = there.use("general")
        assert (hits, misses) == (1, 0) and compiled(line) == 0, line
        # Another store's files as they are, without its key: nothing of them is run.
        signer = os.path.join(other.environ["XDG_CONFIG_HOME"], "buildd", "signing.key")
        os.unlink(signer)
        (hits, misses), line = there.use("general")
        assert (hits, misses) == (0, 1), line
        assert other.end() == []
