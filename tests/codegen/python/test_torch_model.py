"""The torch kind: the plan without torch, what the worker refuses without it, and real models where it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codegen.errors import RequestError
from codegen.plan import Answer, Discovery, Plan, Probe
from codegen.project.kinds import REFUSED
from codegen.project.target import TorchTarget
from codegen.python.torch_export import WORKER as EXPORTER
from codegen.python.torch_model import WORKER
from tests.support.carry_out import plan_with
from tests.support.places import FROM_EACH_PLACE, with_set
from tests.support.torch_project import (
    IDENTITY,
    PROJECT,
    SOURCE,
    Checkout,
    pretended,
    request,
)
from tests.support.user import User
from tests.support.watcher import Session


@pytest.fixture
def compiler() -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++")


# ---------------------------------------------------------------- the plan


@pytest.mark.usefixtures("compiler")
def test_one_action_from_archive_to_package(tmp_path: Path) -> None:
    made = plan_with(request(tmp_path, options={"max_autotune": True}, threads=3), pretended)
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
        plans.append(plan_with(request(tmp_path / name), pretended))
    first, second = (msgspec.json.encode(made.actions) for made in plans)
    assert first == second and str(tmp_path).encode() not in first


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CUTLASS_DIR", "TORCHINDUCTOR_CK_DIR"])
def test_a_tree_of_kernels_is_keyed_by_content(tmp_path: Path, name: str) -> None:
    for file in ("include/cutlass/cutlass.h", "python/generator.py", "test/unit/test.cu", "README.md"):
        (tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / file).write_text("")
    for value in (str(tmp_path / "tree"), "tree"):
        (tool,) = plan_with(request(tmp_path, environment={name: value}), pretended).tools
        listed = {file.role: file.path for file in tool.files if file.role.startswith(name)}
        assert listed == {
            f"{name}/include/cutlass/cutlass.h": str(tmp_path / "tree/include/cutlass/cutlass.h"),
            f"{name}/python/generator.py": str(tmp_path / "tree/python/generator.py"),
        }


@FROM_EACH_PLACE
@pytest.mark.usefixtures("compiler")
def test_threads_and_vector_width_are_part_of_the_action(tmp_path: Path, place: str) -> None:
    def made(**environment: str) -> Plan:
        return plan_with(with_set(request(tmp_path), place, **environment), pretended)

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
    seen = dict(plan_with(request(tmp_path, environment=environment), pretended).actions[0].environment)
    assert set(seen) == {"TORCHINDUCTOR_MAX_AUTOTUNE", "CPATH", "PATH", "LC_ALL", "OPENBLAS_NUM_THREADS"}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"archive": "no.pt2"}, "missing-source", "no.pt2 does not exist"),
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
        ({"function": "Net"}, "bad-project", "function is for a model in a Python file"),
        ({"source": "net.py"}, "bad-project", "needs one of archive and source"),
        ({"archive": ""}, "bad-project", "needs one of archive and source"),
    ],
)
def test_a_wrong_target_is_refused(tmp_path: Path, changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(tmp_path, **changes), pretended)
    assert caught.value.code == code


@pytest.mark.usefixtures("compiler")
def test_code_is_exported_by_an_action_that_is_never_stored(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    named = {"scale": {"shape": ["rows"], "dtype": "float64"}}
    made = plan_with(request(tmp_path, **SOURCE, keyword_inputs=named, dims={"rows": [1, 64]}), pretended)
    export, compiled = made.actions
    assert export.uncacheable and not compiled.uncacheable
    assert (export.kind, export.inputs) == ("export", ("net.py",))
    assert [output.path for output in export.outputs] == ["build/mlp/mlp.exported.pt2"] == list(compiled.inputs)
    spec = json.loads(export.payload)
    assert spec["inputs"] == [{"shape": ["rows", 16], "dtype": "float32", "high": 2}]
    assert (spec["keyword_inputs"]["scale"]["dtype"], spec["dims"], spec["check"]) == (
        "float64",
        {"rows": [1, 64]},
        True,
    )
    assert b"net.py" not in compiled.payload, "what was exported counts, wherever it came from"
    assert [artifact.path for artifact in made.artifacts] == ["build/mlp/mlp.pt2"]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"source": "no.py"}, "missing-source", "no.py does not exist"),
        ({"source": "net.txt"}, "bad-project", "must be a .py file"),
        ({"source": "../net.py"}, "path-outside", "leaves the project"),
        ({"function": "a.b"}, "bad-project", "is not the name of a function"),
        ({"inputs": []}, "bad-project", "no example inputs"),
        ({"inputs": [{"shape": [3], "type": "float"}]}, "bad-project", "type"),
        ({"inputs": [{"shape": [3], "dtype": "float"}]}, "bad-project", 'no dtype "float"'),
        ({"inputs": [{"shape": [-1]}]}, "bad-project", "must not be below 0"),
        ({"inputs": [{"shape": ["a b"]}]}, "bad-project", "name of a size"),
        ({"inputs": [{"shape": [3], "dtype": "int64", "high": 0}]}, "bad-project", "high"),
        ({"dims": {"columns": [1, 2]}}, "bad-project", "not a size of an input"),
        ({"dims": {"rows": [5, 5]}}, "bad-project", "is not a range"),
        ({"check_tolerance": -1.0}, "bad-project", "check_tolerance"),
    ],
)
def test_a_wrong_source_is_refused(tmp_path: Path, changes: dict[str, Any], code: str, message: str) -> None:
    (tmp_path / "net.py").write_text("")
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(tmp_path, **{**SOURCE, **changes}), pretended)
    assert caught.value.code == code


GPU = {"name": "NVIDIA H200", "capability": "9.0", "processors": 132, "memory_bytes": 7, "include": ["/cuda/include"]}
CUDA_TORCH = json.dumps({**IDENTITY, "torch": "9.9 git abc cuda 13.0 hip None"})


def with_gpu(probe: Probe, gpu: dict[str, Any] | None = GPU) -> Answer:
    if probe.argv[-1] == "--identify":
        return Answer(status=0, stdout=CUDA_TORCH, stderr="")
    if probe.argv[-1] == "--identify-gpu":
        if gpu is None:
            return Answer(status=1, stdout="", stderr="error: RuntimeError: Found no NVIDIA driver")
        return Answer(status=0, stdout=json.dumps(gpu), stderr="")
    return pretended(probe)


@pytest.mark.usefixtures("compiler")
def test_a_package_for_a_gpu_is_keyed_by_the_gpu(tmp_path: Path) -> None:
    asked = request(tmp_path, device="cuda", environment={"CUDA_VISIBLE_DEVICES": "1"})
    made = plan_with(asked, with_gpu)
    assert json.loads(made.actions[0].payload)["device"] == "cuda"
    assert dict(made.actions[0].environment)["CUDA_VISIBLE_DEVICES"] == "1"
    (tool,) = made.tools
    assert dict(tool.facts)["gpu"].startswith("NVIDIA H200, 9.0, 132") and "/cuda/include" in tool.search
    other = plan_with(asked, lambda probe: with_gpu(probe, {**GPU, "processors": 66}))
    assert other.tools[0].facts != tool.facts, "a part of a divided GPU is another one"
    source = (
        plan_with(request(tmp_path, **{**SOURCE, "archive": ""}, device="cuda"), with_gpu) if _net(tmp_path) else made
    )
    assert json.loads(source.actions[0].payload)["device"] == "cuda"


def _net(folder: Path) -> bool:
    (folder / "net.py").write_text("")
    return True


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "Found no NVIDIA driver"),
        ({"device": "hip"}, 'not built for device "hip"'),
        ({"device": "tpu"}, 'no device "tpu"'),
        ({"options": {"triton.cudagraphs": True}}, "act on GPUs only"),
        ({"device": "cuda", "options": {"rocm.arch": "x"}}, "do not act on cuda"),
    ],
)
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    there = GPU if "options" in changes else None
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(tmp_path, **changes), lambda probe: with_gpu(probe, there))
    assert caught.value.next_step


@pytest.mark.parametrize("name", REFUSED[TorchTarget])
def test_what_torch_has_and_a_target_has_not_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=f'"{name}" in .* is no key: .') as caught:
        plan_with(request(tmp_path, **{name: 1}), pretended)
    assert REFUSED[TorchTarget][name] in caught.value.message and caught.value.next_step == "remove it"


@pytest.mark.usefixtures("compiler")
def test_torchs_own_names_are_taken_and_a_trace_has_its_parameters(tmp_path: Path) -> None:
    _net(tmp_path)
    table = {"source": "net.py", "archive": "", "func": "Net", "example_inputs": [{"shape": [2, 3]}]}
    checks = {"check_trace": False, "check_tolerance": 0.5, "strict": False, "check_inputs": [[{"shape": [4, 3]}]]}
    names = {"example_kwarg_inputs": {"y": {"shape": [3]}}}
    (action,) = plan_with(request(tmp_path, **table, **checks, **names, result="trace"), pretended).actions
    spec = json.loads(action.payload)
    assert action.outputs[0].path == "build/mlp/mlp.pt" and action.uncacheable
    assert (spec["function"], spec["check"], spec["check_tolerance"], spec["strict"]) == ("Net", False, 0.5, False)
    assert spec["check_inputs"][0][0]["shape"] == [4, 3] and list(spec["keyword_inputs"]) == ["y"]
    (action,) = plan_with(request(tmp_path, **table, result="trace"), pretended).actions
    assert json.loads(action.payload)["strict"] is True, "torch.jit.trace's default"
    for wrong, message in (
        ({"function": "Net"}, "another name of it"),
        ({"check_inputs": [[]]}, "as many tensors"),
        ({"options": {"max_autotune": True}}, "options does not apply"),
        ({"mode": "default"}, "mode does not apply"),
    ):
        with pytest.raises(RequestError, match=message):
            plan_with(request(tmp_path, **table, **wrong, result="trace"), pretended)


@pytest.mark.usefixtures("compiler")
def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "build/mlp").mkdir(parents=True)
    (tmp_path / "build/mlp/mlp.pt2").write_bytes(b"exported")
    with pytest.raises(RequestError, match="would overwrite its own archive") as caught:
        plan_with(request(tmp_path, archive="build/mlp/mlp.pt2"), pretended)
    assert caught.value.code == "output-conflict"


@pytest.mark.usefixtures("compiler")
def test_a_whole_number_serves_where_a_fraction_may_stand(tmp_path: Path) -> None:
    assert plan_with(request(tmp_path, options={"rate": 2}), pretended).actions


@pytest.mark.skipif(not shutil.which("clang++"), reason="no clang++")
@FROM_EACH_PLACE
def test_clang_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(RequestError, match="compiles with g"):
        plan_with(with_set(request(tmp_path), place, CXX="clang++"), pretended)


@FROM_EACH_PLACE
@pytest.mark.usefixtures("compiler")
def test_a_trace_is_an_artifact(tmp_path: Path, place: str) -> None:
    plain = plan_with(with_set(request(tmp_path), place), pretended)
    plan = plan_with(with_set(request(tmp_path), place, TORCH_TRACE="/any"), pretended)
    assert [artifact.name for artifact in plain.artifacts] == ["mlp.pt2"] and not plain.notices
    assert [artifact.path for artifact in plan.artifacts] == ["build/mlp/mlp.pt2", "build/mlp/mlp.torch_trace.log"]
    assert plan.notices == ("TORCH_TRACE: the trace of mlp is build/mlp/mlp.torch_trace.log",)
    assert plan.actions[0].environment == plain.actions[0].environment and len(plan.actions[0].argv) == 6


# ---------------------------------------------------------------- the worker


@pytest.mark.parametrize("worker", [WORKER, EXPORTER], ids=lambda path: path.stem)
def test_the_worker_imports_nothing_of_ours(worker: Path) -> None:
    lines = [line.strip() for line in worker.read_text(encoding="utf-8").splitlines()]
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
        "no zip": "is not an archive of torch.export.save",
        "cut off": "is not an archive of torch.export.save",
        "changed": "is damaged: the content of model/models/model.json in it has changed",
        "torch.save": "contains no exported program; write it with torch.export.save",
    }
    assert done.returncode == 1 and f"{archive}: error: {said[case]}" in done.stderr, done.stderr
    assert not (tmp_path / "out.pt2").exists()


# ---------------------------------------------------------------- real models


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_model_is_compiled_once_and_computes_what_its_archive_does(user: User) -> None:
    first = Checkout(user, "first")
    first.export(1)
    assert "0 hits, 1 compiled" in first.build()
    first.compare()
    package = (first.folder / "build/mlp/mlp.pt2").read_bytes()
    assert str(user.folder).encode() not in package
    shutil.rmtree(first.folder / "build")
    assert "1 hit, 0 compiled" in first.build()
    # By now a process has torch imported, and is what this one is forked from.
    assert "0 hits, 1 compiled" in first.build("--recache")
    assert (first.folder / "build/mlp/mlp.pt2").read_bytes() == package
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
    whatever_is_known_of_it_serves_all_commands(user, first, second)
    # An option.
    (second.folder / "buildd.toml").write_text(PROJECT + "options = { epilogue_fusion = false }\n")
    assert "0 hits, 1 compiled" in second.build()
    second.compare()


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_trace_of_torch_is_beside_the_package(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    # For this test alone: the user is that of the whole file.
    monkeypatch.setitem(user.environ, "TORCH_TRACE", "/nowhere")
    checkout = Checkout(user, "traced")
    checkout.export(1)
    trace = checkout.folder / "build/mlp/mlp.torch_trace.log"
    for again in ((), ("--recache",)):  # by a process of its own, and by a fork of a warm one
        trace.unlink(missing_ok=True)
        assert "0 hits, 1 compiled" in checkout.build(*again)
        assert "inductor_output_code" in trace.read_text() or "aot_inductor" in trace.read_text()
    shutil.rmtree(checkout.folder / "build")
    assert "1 hit, 0 compiled" in checkout.build() and trace.exists()
    _, log = user.buildd("log", "last")
    assert "TORCH_TRACE: the trace of mlp is build/mlp/mlp.torch_trace.log" in log


def whatever_is_known_of_it_serves_all_commands(user: User, first: Checkout, second: Checkout) -> None:
    """Watched, explained, warmed and carried to another store: nothing of it compiles again."""
    archive, package = "mlp.pt2", "build/mlp/mlp.pt2"
    watch = Session(user, "-C", str(first.folder))
    try:
        assert watch.round()["outcome"] == "built"
        # Another archive, which is renamed into place as torch.export.save of a careful script does it.
        shutil.copy(second.folder / archive, first.folder / "aside")
        os.replace(first.folder / "aside", first.folder / archive)
        assert watch.changed() == [archive]
        done, ran = watch.until_done()
        assert (done["outcome"], ran) == ("built", set())
    finally:
        watch.end()
    assert (first.folder / package).read_bytes() == (second.folder / package).read_bytes()
    status, said = user.buildd("explain", "-C", str(first.folder))
    assert status == 0 and "hit mlp/mlp.pt2: same inputs" in said and "0 would run" in said, said
    status, said = user.buildd("warm", "--prove", "-C", str(first.folder))
    assert status == 0 and "nothing would run" in said, said
    bundle, store = str(user.folder / "bundle"), user.environ["BUILDD_DIR"]
    status, said = user.buildd("cache", "export", bundle, "mlp", "-C", str(first.folder))
    assert status == 0, said
    user.environ["BUILDD_DIR"] = str(user.folder / "elsewhere")
    try:
        assert user.buildd("warm", "--prove", "-C", str(first.folder))[0] == 1
        status, said = user.buildd("cache", "import", bundle)
        assert status == 0, said
        status, said = user.buildd("warm", "--prove", "-C", str(first.folder))
        assert status == 0, said
    finally:
        user.environ["BUILDD_DIR"] = store


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_a_model_that_torch_cannot_load_is_told_with_its_file(user: User) -> None:
    project = Checkout(user, "wrong")
    with zipfile.ZipFile(project.folder / "mlp.pt2", "w") as stream:
        stream.writestr("mlp/models/model.json", "{}")
        stream.writestr("mlp/archive_format", "pt2")
    status, said = user.buildd("build", "-C", str(project.folder))
    assert status == 1 and "mlp.pt2: error: cannot be loaded by torch" in said, said
    (project.folder / "buildd.toml").write_text(PROJECT + 'mode = "max-speed"\n')
    status, said = user.buildd("build", "-C", str(project.folder))
    assert status == 2 and "modes of this torch: default, " in said, said


NET = """
import torch
from models.parts import activation

class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.table, self.last = torch.nn.Embedding(50, width), torch.nn.Linear(width, 4)
    def forward(self, ids, scale):
        print("it may print")
        return activation(self.last(self.table(ids))) * scale

def distances(x, y):
    return (x[:, None] - y[None]).square().sum(-1).sqrt()

def noisy(x):
    return x + torch.randn_like(x)

def breaks(x):
    return x + 1 if x.sum() > 0 else x - 1

def built(depth):
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(depth)))

def quits():
    raise SystemExit(3)

scripted = torch.jit.script(torch.nn.Linear(2, 2))
"""
NET_PROJECT = """
[target.net]
kind = "torch"
source = "models/net.py"
function = "Net"
arguments = { width = 16 }
inputs = [{ shape = ["batch", "length"], dtype = "int64", high = 50 }]
keyword_inputs = { scale = { shape = ["batch", 1, 4] } }
dims = { batch = [1, 64] }
"""
CHECK_NET = """
import sys
import torch
sys.path.insert(0, ".")
torch.manual_seed(0)
from models.net import Net

model, compiled = Net(16).eval(), torch._inductor.aoti_load_package("build/net/net.pt2")
with torch.no_grad():
    for batch, length in ((1, 5), (7, 2), (64, 64)):
        ids, scale = torch.randint(0, 50, (batch, length)), torch.randn(batch, 1, 4)
        torch.testing.assert_close(compiled(ids, scale=scale), model(ids, scale=scale), rtol=1e-5, atol=1e-6)
"""


def with_net(user: User, name: str) -> Checkout:
    project = Checkout(user, name)
    (project.folder / "models").mkdir()
    (project.folder / "models/__init__.py").write_text("")
    (project.folder / "models/net.py").write_text(NET)
    (project.folder / "models/parts.py").write_text("import torch\n\ndef activation(x):\n    return torch.relu(x)\n")
    (project.folder / "buildd.toml").write_text(NET_PROJECT)
    return project


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_code_is_exported_each_time_and_what_follows_hits(user: User) -> None:
    project = with_net(user, "code")
    assert "0 hits, 2 compiled" in project.build()
    project.python(CHECK_NET)
    assert "1 hit, 1 compiled" in project.build()
    status, said = user.buildd("cache", "export", str(user.folder / "net"), "net", "-C", str(project.folder))
    assert status == 0 and ": 1 result, 1 blob" in said, said
    # Another line changes no graph; another operation in an imported module does.
    parts = project.folder / "models/parts.py"
    parts.write_text("# A comment.\n" + parts.read_text())
    assert "1 hit, 1 compiled" in project.build()
    parts.write_text(parts.read_text().replace("relu", "tanh"))
    assert "0 hits, 2 compiled" in project.build()
    project.python(CHECK_NET)


TOO_BIG = """
import os, signal
import torch

def refused():
    return torch.nn.Linear(1 << 30, 1 << 24)

def killed():
    # As the kernel does where memory is promised and not there.
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["refused", "killed"])
def test_a_model_too_big_for_memory_is_told(user: User, how: str) -> None:
    project = Checkout(user, f"big-{how}")
    (project.folder / "net.py").write_text(TOO_BIG)
    (project.folder / "buildd.toml").write_text(
        f'[target.big]\nkind = "torch"\nsource = "net.py"\nfunction = "{how}"\nfactory = true\n'
        "inputs = [{ shape = [4, 4] }]\n"
    )
    status, said = user.buildd("build", "-C", str(project.folder), timeout_s=600)
    assert status == 1 and "runs again alone" in said and "ran out of memory at" in said, said
    assert "give the machine or the cgroup more memory" in said, said


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_what_cannot_be_exported_is_told_with_its_line(user: User, tmp_path: Path) -> None:
    project = with_net(user, "refused")
    usual = {
        "device": "cpu",
        "check_inputs": [],
        "factory": False,
        "arguments": {},
        "inputs": [{"shape": ["n", 4]}],
        "keyword_inputs": {},
        "dims": {},
    }

    def export(function: str, **changes: Any) -> str:
        spec = {**usual, "source": "models/net.py", "function": function, "strict": False, "check": True, **changes}
        done = subprocess.run(
            [sys.executable, str(EXPORTER), str(tmp_path / "inputs"), str(tmp_path / "model.pt2")],
            input=json.dumps({**spec, "check_tolerance": 1e-5}),
            cwd=project.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        # Before its end torch may tell of graphs.
        last = "" if done.returncode == 0 else done.stderr.splitlines()[-1]
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return last

    assert export("nothing").startswith("models/net.py: error: there is no nothing; it has Net, ")
    assert "computes other results than the model (does it use random numbers" in export("noisy")
    assert re.match(r"models/net.py:\d+: error: cannot be exported: ", export("breaks"))
    assert re.match(r"models/net.py:\d+: error: quits\(\) failed: SystemExit: 3", export("quits", factory=True))
    assert "is TorchScript" in export("scripted")
    assert "takes no arguments" in export("noisy", arguments={"width": 1})
    assert export("built", factory=True, arguments={"depth": 2}) == ""
    assert export("distances", inputs=[{"shape": ["n", 4]}, {"shape": ["m", 4]}]) == ""
    listed = (tmp_path / "inputs").read_text().splitlines()
    assert [os.path.relpath(path, project.folder) for path in listed] == [
        "models/__init__.py",
        "models/net.py",
        "models/parts.py",
    ]
    (project.folder / "models/parts.py").write_text("import torch\ndef activation(x:\n")
    assert export("Net").startswith("models/parts.py:2: error: ")
    (project.folder / "models/parts.py").write_text("import nothing_of_the_kind\n")
    assert export("Net").startswith("models/parts.py:1: error: cannot be imported: ModuleNotFoundError")
