"""The torch kind: the plan without torch, what the worker refuses without it, and real models where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codegen.plan import Answer, Discovery, Plan, Probe, RequestError
from codegen.torch_model import WORKER
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.household import Household
from tests.test_triton_kernel import plan, really

IDENTITY = {
    "torch": "9.9 git abc cuda None hip None",
    "python": "3.11.7 cpython-311",
    "folder": "/site/torch",
    "site": "/site",
    "include": ["/site/torch/include"],
    "modes": ["default", "max-autotune"],
    "options": {
        "max_autotune": ["bool"],
        "cpp.simdlen": ["int"],
        "rate": ["float"],
        "cpp.cxx": ["str"],
        "trace.enabled": ["bool"],
        "pre_grad_custom_pass": [],
    },
    "files": {"python": "/usr/bin/env", "torch/version.py": "/usr/bin/env"},
}


def request(folder: Path, *, environment: dict[str, str] | None = None, **changes: Any) -> Request:
    (folder / "mlp.pt2").write_bytes(b"weights")
    table = {"kind": "torch", "archive": "mlp.pt2", **changes}
    return Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(folder),
        file="",
        specs={"mlp": spec_from(table)},
        environment={"PATH": "/usr/bin:/bin", **(environment or {})},
        interpreter=sys.executable,
    )


_answers: dict[Probe, Answer] = {}


def pretended(probe: Probe) -> Answer:
    """What a machine with torch would answer; of the compiler, what this one does."""
    if probe.argv[-1] == "--identify":
        return Answer(status=0, stdout=json.dumps(IDENTITY), stderr="")
    if probe not in _answers:
        _answers[probe] = really(probe)
    return _answers[probe]


@pytest.fixture
def compiler() -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++")


# ---------------------------------------------------------------- the plan


@pytest.mark.usefixtures("compiler")
def test_one_action_from_archive_to_package(tmp_path: Path) -> None:
    made = plan(request(tmp_path, options={"max_autotune": True}, threads=3), pretended)
    (action,) = made.actions
    assert (action.name, action.kind, action.inputs) == ("mlp/mlp.pt2", "torch", ("mlp.pt2",))
    assert [output.path for output in action.outputs] == ["build/mlp/mlp.pt2"]
    assert action.discovery is Discovery.REPORTED
    spec = json.loads(action.payload)
    assert (spec["options"], spec["threads"], spec["compiler"]) == ({"max_autotune": True}, 3, "g++")
    roles = {file.role for file in made.tools[0].files}
    assert {"worker", "torch/version.py", "host cc1plus"} <= roles
    facts = dict(made.tools[0].facts)
    assert facts["torch"] == "9.9 git abc cuda None hip None" and "flags:" in facts["processor"]


@pytest.mark.usefixtures("compiler")
def test_nothing_in_the_action_names_the_checkout(tmp_path: Path) -> None:
    plans: list[Plan] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        plans.append(plan(request(tmp_path / name), pretended))
    first, second = (msgspec.json.encode(made.actions) for made in plans)
    assert first == second and str(tmp_path).encode() not in first


@pytest.mark.usefixtures("compiler")
def test_threads_and_vector_width_are_part_of_the_action(tmp_path: Path) -> None:
    def made(**environment: str) -> Plan:
        return plan(request(tmp_path, environment=environment), pretended)

    usual = made()
    assert json.loads(usual.actions[0].payload)["threads"] == len(os.sched_getaffinity(0))
    assert json.loads(made(OMP_NUM_THREADS="7,2").actions[0].payload)["threads"] == 7
    narrow = made(ATEN_CPU_CAPABILITY="default")
    assert dict(narrow.actions[0].environment)["ATEN_CPU_CAPABILITY"] == "default"
    assert narrow.tools[0].facts != usual.tools[0].facts


@pytest.mark.usefixtures("compiler")
def test_only_what_decides_about_code_reaches_the_worker(tmp_path: Path) -> None:
    environment = {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/cache",
        "TORCH_COMPILE_DEBUG": "1",
        "TORCH_LOGS": "all",
        "CPATH": "/inc",
        "HOME": "/home/me",
    }
    seen = dict(plan(request(tmp_path, environment=environment), pretended).actions[0].environment)
    assert set(seen) == {"TORCHINDUCTOR_MAX_AUTOTUNE", "CPATH", "PATH", "LC_ALL"}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"archive": "no.pt2"}, "missing-source", "there is no no.pt2"),
        ({"archive": "mlp.pt"}, "bad-project", "must be a .pt2 file"),
        ({"archive": "../mlp.pt2"}, "path-outside", "leaves the project"),
        ({"arch": ["sm_90"]}, "bad-arch", "processor of this machine"),
        ({"threads": -1}, "bad-project", "threads"),
        ({"mode": "max-autotun"}, "bad-project", 'did you mean "max-autotune"'),
        ({"mode": "default", "options": {"rate": 1.0}}, "bad-project", "exclude each other"),
        ({"options": {"max_autotun": True}}, "bad-project", 'torch 9.9 has no option "max_autotun"; did you mean'),
        ({"options": {"max_autotune": 1}}, "bad-project", "takes bool, not int"),
        ({"options": {"cpp.simdlen": True}}, "bad-project", "takes int, not bool"),
        ({"options": {"cpp.cxx": "g++"}}, "bad-project", "cannot be set here"),
        ({"options": {"trace.enabled": True}}, "bad-project", "cannot be set here"),
        ({"options": {"pre_grad_custom_pass": "mine"}}, "bad-project", "cannot be set here"),
        ({"options": {"max_autotune": {"a": 1}}}, "bad-project", "options"),
    ],
)
def test_a_wrong_target_is_refused(tmp_path: Path, changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        plan(request(tmp_path, **changes), pretended)
    assert caught.value.code == code


@pytest.mark.usefixtures("compiler")
def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "build/mlp").mkdir(parents=True)
    (tmp_path / "build/mlp/mlp.pt2").write_bytes(b"exported")
    with pytest.raises(RequestError, match="what it would write") as caught:
        plan(request(tmp_path, archive="build/mlp/mlp.pt2"), pretended)
    assert caught.value.code == "output-conflict"


@pytest.mark.usefixtures("compiler")
def test_a_whole_number_serves_where_a_fraction_may_stand(tmp_path: Path) -> None:
    assert plan(request(tmp_path, options={"rate": 2}), pretended).actions


@pytest.mark.skipif(not shutil.which("clang++"), reason="no clang++")
def test_clang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="compiles with g"):
        plan(request(tmp_path, environment={"CXX": "clang++"}), pretended)


# ---------------------------------------------------------------- the worker


def test_the_worker_imports_nothing_of_ours() -> None:
    lines = [line.strip() for line in WORKER.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if line.startswith(("from buildd", "from codegen", "import msgspec"))]


@pytest.mark.parametrize("case", ["no zip", "changed", "cut off", "torch.save"])
def test_what_is_no_exported_model_is_said_before_torch_is_imported(tmp_path: Path, case: str) -> None:
    archive = tmp_path / "model.pt2"
    inside = "archive/data.pkl" if case == "torch.save" else "model/models/model.json"
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr(inside, "content")
    if case == "no zip":
        archive.write_text("nothing")
    if case == "changed":
        archive.write_bytes(archive.read_bytes().replace(b"content", b"CONTENT"))
    if case == "cut off":
        archive.write_bytes(archive.read_bytes()[:50])
    spec = {"name": "m", "mode": "", "options": {}, "threads": 1, "compiler": "g++"}
    done = subprocess.run(
        # Without packages: an import of torch would say something else.
        [sys.executable, "-I", "-S", str(WORKER), str(tmp_path / "d"), str(tmp_path / "out.pt2"), str(archive)],
        input=json.dumps(spec),
        env={"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = {
        "no zip": "is no archive of torch.export.save",
        "cut off": "is no archive of torch.export.save",
        "changed": "is damaged: model/models/model.json in it is not what was written",
        "torch.save": "holds no exported program; write it with torch.export.save",
    }
    assert done.returncode == 1 and f"{archive}: error: {said[case]}" in done.stderr, done.stderr
    assert not (tmp_path / "out.pt2").exists()


# ---------------------------------------------------------------- real models

EXPORT = """
import sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)

torch.manual_seed(int(sys.argv[1]))
rows = torch.export.Dim("rows", max=64)
program = torch.export.export(Model().eval(), (torch.randn(4, 16),), dynamic_shapes=({0: rows},))
torch.export.save(program, sys.argv[2])
"""
COMPARE = """
import sys
import torch

compiled, program = torch._inductor.aoti_load_package(sys.argv[1]), torch.export.load(sys.argv[2]).module()
with torch.no_grad():
    for rows in (2, 4, 33):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-5, atol=1e-6)
"""
PROJECT = '[target.mlp]\nkind = "torch"\narchive = "mlp.pt2"\n'


class Checkout:
    """A project with an exported model, of a user with a daemon."""

    def __init__(self, user: Household, name: str) -> None:
        self.user, self.folder = user, user.folder / name
        self.folder.mkdir()
        (self.folder / "buildd.toml").write_text(PROJECT)

    def python(self, code: str, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def export(self, seed: int) -> None:
        self.python(EXPORT, str(seed), "mlp.pt2")

    def build(self, *arguments: str) -> str:
        status, said = self.user.buildd("build", "-C", str(self.folder), *arguments, timeout_s=600)
        assert status == 0, said
        return said

    def compare(self) -> None:
        """The package computes what the archive does."""
        self.python(COMPARE, "build/mlp/mlp.pt2", "mlp.pt2")


@pytest.fixture(scope="module")
def user() -> Iterator[Household]:
    with tempfile.TemporaryDirectory(prefix="bdt", dir="/tmp") as made:
        one = Household(Path(made))
        yield one
        assert one.end() == []


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_model_is_compiled_once_and_computes_what_its_archive_does(user: Household) -> None:
    first = Checkout(user, "first")
    first.export(1)
    assert "0 hits, 1 compiled" in first.build()
    first.compare()
    package = (first.folder / "build/mlp/mlp.pt2").read_bytes()
    assert str(user.folder).encode() not in package
    shutil.rmtree(first.folder / "build")
    assert "1 hit, 0 compiled" in first.build()
    # Another checkout, and another store that got the first one's entries.
    second = Checkout(user, "second")
    shutil.copy(first.folder / "mlp.pt2", second.folder)
    assert "1 hit, 0 compiled" in second.build()
    assert (second.folder / "build/mlp/mlp.pt2").read_bytes() == package
    # Other weights, in the same shapes.
    second.export(2)
    status, said = user.buildd("explain", "-C", str(second.folder))
    assert status == 0 and "mlp.pt2" in said and "1 would run" in said, said
    assert "0 hits, 1 compiled" in second.build()
    second.compare()
    assert (second.folder / "build/mlp/mlp.pt2").read_bytes() != package
    # An option.
    (second.folder / "buildd.toml").write_text(PROJECT + "options = { epilogue_fusion = false }\n")
    assert "0 hits, 1 compiled" in second.build()
    second.compare()


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_model_that_torch_cannot_load_is_told_with_its_file(user: Household) -> None:
    project = Checkout(user, "wrong")
    with zipfile.ZipFile(project.folder / "mlp.pt2", "w") as stream:
        stream.writestr("mlp/models/model.json", "{}")
        stream.writestr("mlp/archive_format", "pt2")
    status, said = user.buildd("build", "-C", str(project.folder))
    assert status == 1 and "mlp.pt2: error: cannot be loaded by torch" in said, said
    (project.folder / "buildd.toml").write_text(PROJECT + 'mode = "max-speed"\n')
    status, said = user.buildd("build", "-C", str(project.folder))
    assert status == 2 and "modes of this torch: default, " in said, said
