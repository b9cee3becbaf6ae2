"""The triton kind: the plan without Triton, and real compiles for NVIDIA and AMD without a GPU."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.artifacts.kernel_reports import without_report
from buildd.builds.command import DEPFILE, launch_of, output_path
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.include_search import Surveyor
from buildd.processes.runner import Runner
from codegen.errors import RequestError
from codegen.plan import Action, Answer, Discovery, Plan, Probe
from codegen.python.triton_kernel import WORKER, goal_of
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.support.carry_out import plan_with, run_probe
from tests.support.paths import DATA

SIGNATURE = {"x_ptr": "*fp32:16", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
IDENTITY = {
    "triton": "9.9",
    "python": "3.11.7 cpython-311",
    "backends": ["amd", "nvidia"],
    "files": {"python": "/usr/bin/env", "triton/_C/libtriton.so": "/usr/bin/env"},
    "variables": {},
}


def project(folder: Path) -> Path:
    """A checkout with the kernel of tests/data under kernels/."""
    kernels = folder / "kernels"
    kernels.mkdir(parents=True)
    shutil.copy(DATA / "triton_add.py", kernels / "add.py")
    (kernels / "helper.py").write_text("import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n")
    (kernels / "factor.json").write_text('{"factor": 3}')
    return folder


def request(folder: Path, *, environment: dict[str, str] | None = None, **changes: Any) -> Request:
    table = {
        "kind": "triton",
        "source": "kernels/add.py",
        "kernel": "add_kernel",
        "signature": SIGNATURE,
        "constants": {"BLOCK": 256},
        "arch": ["sm_90", "gfx942"],
        **changes,
    }
    return Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(folder),
        file="",
        specs={"add": spec_from(table)},
        environment=environment or {},
        interpreter=sys.executable,
    )


def pretended(probe: Probe) -> Answer:
    """What a machine with Triton would answer."""
    if probe.argv[-1] == "--identify":
        return Answer(status=0, stdout=json.dumps(IDENTITY), stderr="")
    return run_probe(probe)


# ---------------------------------------------------------------- the plan


def test_one_action_an_architecture_with_every_stage(tmp_path: Path) -> None:
    made = plan_with(request(project(tmp_path)), pretended)
    cuda, hip = made.actions
    assert [action.name for action in made.actions] == ["add/add_kernel.sm_90", "add/add_kernel.gfx942"]
    assert [output.path for output in cuda.outputs] == [
        f"build/add/add_kernel.sm_90.{suffix}" for suffix in ("cubin", "ptx", "ttir", "ttgir", "llir", "json")
    ]
    assert [output.name for output in hip.outputs] == ["hsaco", "amdgcn", "ttir", "ttgir", "llir", "metadata"]
    assert cuda.kind == "triton"
    assert cuda.discovery is Discovery.REPORTED
    assert cuda.inputs == ("kernels/add.py",)
    spec = json.loads(cuda.payload)
    assert (spec["backend"], spec["arch"], spec["warp_size"]) == ("cuda", 90, 32)
    assert json.loads(hip.payload)["warp_size"] == 64
    assert len(made.artifacts) == 12
    assert made.tools[0].facts[0] == ("triton", "9.9")


def test_lists_make_a_grid_of_configurations(tmp_path: Path) -> None:
    changes = {"constants": {"BLOCK": [256, 512], "SUM": False}, "num_warps": [4, 8], "num_ctas": 2, "maxnreg": 64}
    made = plan_with(request(project(tmp_path), arch=["sm_90"], **changes), pretended)
    assert [action.name for action in made.actions] == [
        f"add/add_kernel.BLOCK-{block},num_warps-{warps}.sm_90" for block in (256, 512) for warps in (4, 8)
    ]
    specs = [json.loads(action.payload) for action in made.actions]
    assert [(spec["constants"]["BLOCK"], spec["num_warps"]) for spec in specs] == [
        (256, 4), (256, 8), (512, 4), (512, 8)
    ]  # fmt: skip
    assert {(spec["constants"]["SUM"], spec["num_ctas"], spec["maxnreg"]) for spec in specs} == {(False, 2, 64)}
    assert specs[1]["label"] == "BLOCK=256,num_warps=8"
    assert len({output.path for action in made.actions for output in action.outputs}) == 4 * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_warps": [4, 6]}, "power of two"),
        ({"num_warps": []}, "empty list"),
        ({"num_warps": [4, 4]}, "twice"),
        ({"num_stages": [0]}, "at least 1"),
        ({"num_ctas": 3}, "power of two"),
        ({"num_ctas": 2, "arch": ["sm_80"]}, "sm_90 or newer"),
        ({"maxnreg": 300}, "255"),
        ({"maxnreg": 64}, "NVIDIA"),
        ({"constants": {"BLOCK": list(range(300))}}, "300 configurations"),
        ({"constants": {"BLOCK": ["a/b", "a b"]}}, "same files"),
        ({"constants": {"BLOCK": 1, "num_warps": 4}}, "not a constant"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        plan_with(request(project(tmp_path), **changes), pretended)
    assert refused.value.code == "bad-project"


def test_nothing_in_the_action_names_this_machine(tmp_path: Path) -> None:
    first = plan_with(request(project(tmp_path / "a")), pretended)
    second = plan_with(request(project(tmp_path / "b")), pretended)
    assert msgspec.json.encode(first.actions) == msgspec.json.encode(second.actions)
    assert str(tmp_path).encode() not in msgspec.json.encode(first.actions)
    assert os.path.dirname(sys.executable).encode() not in msgspec.json.encode(first.actions)


def test_a_table_in_another_order_is_the_same_action(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turned = dict(reversed(SIGNATURE.items()))
    assert (
        plan_with(request(folder), pretended).actions == plan_with(request(folder, signature=turned), pretended).actions
    )


def test_only_tritons_code_choices_reach_the_worker(tmp_path: Path) -> None:
    environment = {
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_CACHE_DIR": "/home/me/.triton",
        "TRITON_INTERPRET": "1",
        "CPATH": "/inc",
        "HOME": "/home/me",
    }
    seen = dict(plan_with(request(project(tmp_path), environment=environment), pretended).actions[0].environment)
    assert {name for name in seen if name not in ("PATH", "LC_ALL")} == {"TRITON_DISABLE_LINE_INFO"}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"arch": []}, "bad-arch", "names no architecture"),
        ({"arch": ["sm_9"]}, "bad-arch", "sm_9"),
        ({"arch": ["sm_20"]}, "bad-arch", "sm_20"),
        ({"arch": ["native"]}, "bad-arch", "native"),
        ({"source": "kernels/no.py"}, "missing-source", "kernels/no.py"),
        ({"source": "../kernels/add.py"}, "path-outside", "leaves the project"),
        ({"num_warps": 3}, "bad-project", "power of two"),
        ({"num_stages": 0}, "bad-project", "num_stages"),
    ],
)
def test_a_wrong_target_is_refused(tmp_path: Path, changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(project(tmp_path), **changes), pretended)
    assert caught.value.code == code


def test_an_interpreter_without_triton_is_said_with_what_to_do(tmp_path: Path) -> None:
    def without(probe: Probe) -> Answer:
        if probe.argv[-1] == "--identify":
            probe = msgspec.structs.replace(probe, argv=(probe.argv[0], "-I", "-S", *probe.argv[1:]))
        return run_probe(probe)

    with pytest.raises(RequestError, match="triton cannot be imported") as caught:
        plan_with(request(project(tmp_path)), without)
    assert caught.value.code == "compiler-not-found"
    assert "pip install" in caught.value.next_step


def test_architectures() -> None:
    assert [goal_of(name).warp_size for name in ("sm_80", "gfx90a", "gfx942", "gfx1100", "gfx1201")] == [
        32,
        64,
        64,
        32,
        32,
    ]
    assert goal_of("sm_100a").arch == 100


def test_the_worker_imports_nothing_of_ours() -> None:
    text = WORKER.read_text(encoding="utf-8")
    assert not [
        line for line in text.splitlines() if line.strip().startswith(("from buildd", "from codegen", "import msgspec"))
    ]


def test_what_python_would_import_instead_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/helper.py").write_text("")
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "shared/deep/more.py").write_text("")

    def present() -> tuple[str, ...]:
        with_search = ["kernels", "."]
        used = ["kernels/helper.py", "shared/deep/more.py"]
        return Surveyor(Snapshot(Files(), str(tmp_path)), with_search, []).survey(used, ["kernels/add.py"]).present

    assert present() == ()
    for rival in (
        "kernels/helper/__init__.py",
        "kernels/__init__.py",
        "shared/__init__.py",
        "kernels/shared/deep/more.py",
    ):
        path = tmp_path / rival
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        assert rival in present(), rival


def test_a_source_in_a_package_is_imported_with_it(tmp_path: Path) -> None:
    folder = project(tmp_path)
    assert json.loads(plan_with(request(folder), pretended).actions[0].payload)["module"] == "add"
    (folder / "kernels/__init__.py").write_text("")
    assert json.loads(plan_with(request(folder), pretended).actions[0].payload)["module"] == "kernels.add"


# ---------------------------------------------------------------- real compiles


def run(
    action: Action, made: Plan, folder: Path, private: Path
) -> tuple[subprocess.CompletedProcess[bytes], dict[str, bytes]]:
    """Carry an action out by hand, as the runner would."""
    private.mkdir(parents=True)
    for output in action.outputs:
        Path(output_path(str(private), action, output.name)).parent.mkdir(exist_ok=True)
    launch = launch_of(action, made.tools[0], project=str(folder), private=str(private), where=str)
    done = subprocess.run(
        launch.argv,
        cwd=launch.cwd,
        env=dict(launch.environment),
        input=launch.payload,
        capture_output=True,
        timeout=120,
        check=False,
    )
    files = {o.name: Path(output_path(str(private), action, o.name)) for o in action.outputs}
    return done, {name: path.read_bytes() for name, path in files.items() if path.exists()}


@pytest.fixture(scope="module")
def identity() -> Callable[[Probe], Answer]:
    """Really asks, each probe once for the module."""
    known: dict[Probe, Answer] = {}

    def answer(probe: Probe) -> Answer:
        if probe not in known:
            known[probe] = run_probe(probe)
        return known[probe]

    return answer


@pytest.fixture
def triton() -> None:
    pytest.importorskip("triton")


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_two_checkouts_give_the_same_bytes_and_no_path(tmp_path: Path, identity: Callable[[Probe], Answer]) -> None:
    results: list[dict[str, bytes]] = []
    for name in ("first", "second-checkout"):
        folder = project(tmp_path / name)
        made = plan_with(request(folder), identity)
        gathered: dict[str, bytes] = {}
        for action in made.actions:
            done, files = run(action, made, folder, tmp_path / f"{name}.{action.name.replace('/', '.')}")
            assert done.returncode == 0, done.stderr.decode()
            assert done.stdout + without_report(done.stderr) == b""
            assert len(files) == len(action.outputs)
            gathered |= {f"{action.name}.{stage}": content for stage, content in files.items()}
        assert not (folder / "kernels/__pycache__").exists()
        results.append(gathered)
    assert results[0] == results[1]
    binary = results[0]["add/add_kernel.sm_90.cubin"], results[0]["add/add_kernel.gfx942.hsaco"]
    assert all(content.startswith(b"\x7fELF") for content in binary)
    assert b"gfx942" in results[0]["add/add_kernel.gfx942.amdgcn"]
    assert b".target sm_90a" in results[0]["add/add_kernel.sm_90.ptx"]
    assert json.loads(results[0]["add/add_kernel.sm_90.metadata"])["name"] == "add_kernel"
    import triton

    site = os.path.dirname(os.path.dirname(triton.__file__)).encode()
    for name, content in results[0].items():
        assert str(tmp_path).encode() not in content, name
        assert site not in content, name


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_the_files_that_were_read_are_reported(tmp_path: Path, identity: Callable[[Probe], Answer]) -> None:
    folder = project(tmp_path / "p")
    made = plan_with(request(folder, arch=["sm_90"]), identity)
    done, _ = run(made.actions[0], made, folder, tmp_path / "job")
    assert done.returncode == 0, done.stderr.decode()
    read = (tmp_path / "job" / DEPFILE).read_text().splitlines()
    assert {os.path.relpath(path, folder) for path in read} == {
        "kernels/add.py",
        "kernels/factor.json",
        "kernels/helper.py",
    }
    # The stages are where they are wanted, and nowhere else.
    beside = {path.suffix for path in (tmp_path / "job" / "triton").rglob("*") if path.is_file()}
    assert beside == {".source", ".json"}


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_an_edit_of_a_helper_within_a_second_is_compiled(tmp_path: Path, identity: Callable[[Probe], Answer]) -> None:
    folder = project(tmp_path / "p")
    made = plan_with(request(folder, arch=["sm_90"]), identity)
    stamp = os.stat(folder / "kernels/helper.py")
    _, before = run(made.actions[0], made, folder, tmp_path / "one")
    text = (folder / "kernels/helper.py").read_text()
    (folder / "kernels/helper.py").write_text(text.replace("x + x", "x - x"))
    os.utime(folder / "kernels/helper.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    _, after = run(made.actions[0], made, folder, tmp_path / "two")
    assert b"arith.addf" in before["ttir"]
    assert before["ttir"] != after["ttir"]
    assert b"arith.subf" in after["ttir"]


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_relative_imports_work_in_a_package(tmp_path: Path, identity: Callable[[Probe], Answer]) -> None:
    folder = project(tmp_path / "p")
    (folder / "kernels/__init__.py").write_text("")
    text = (folder / "kernels/add.py").read_text()
    (folder / "kernels/add.py").write_text(text.replace("from helper import", "from .helper import"))
    made = plan_with(request(folder, arch=["sm_90"]), identity)
    done, _ = run(made.actions[0], made, folder, tmp_path / "job")
    assert done.returncode == 0, done.stderr.decode()
    assert str(folder / "kernels/__init__.py") in (tmp_path / "job" / DEPFILE).read_text().splitlines()


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_an_autotuned_kernel_is_compiled_with_the_constants_given(
    tmp_path: Path, identity: Callable[[Probe], Answer]
) -> None:
    folder = project(tmp_path / "p")
    wanted = request(
        folder,
        kernel="tuned_kernel",
        signature={"x_ptr": "*fp32", "n": "i32"},
        constants={"BLOCK": 128},
        arch=["sm_80"],
    )
    made = plan_with(wanted, identity)
    done, files = run(made.actions[0], made, folder, tmp_path / "job")
    assert done.returncode == 0, done.stderr.decode()
    assert b"tensor<128x" in files["ttir"]


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("changes", "edit", "message"),
    [
        (
            {"signature": {"x_ptr": "*fp32"}},
            "",
            "kernels/add.py:14: error: add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK, SUM): "
            "signature and constants lack y_ptr (signature), out_ptr (signature), n (signature)",
        ),
        ({"signature": {**SIGNATURE, "z": "i32"}}, "", "signature names z, which is not an argument"),
        ({"signature": {**SIGNATURE, "n": "integer"}}, "", 'n: "integer" is not a type'),
        ({"signature": {**SIGNATURE, "BLOCK": "i32"}, "constants": {}}, "", "BLOCK is a tl.constexpr"),
        ({"constants": {}}, "", "signature and constants lack BLOCK (constants)"),
        ({"kernel": "other"}, "", "kernels/add.py: error: there is no kernel other; it has add_kernel"),
        ({"kernel": "plain_function"}, "", "plain_function is not a @triton.jit function"),
        ({}, "def f(:\n", "kernels/add.py:1: error: invalid syntax"),
        ({}, "\nimport nothing_here\n", "kernels/add.py:2: error: ModuleNotFoundError: No module named 'nothing_here'"),
        ({}, "raise SystemExit(3)\n", "kernels/add.py:1: error: SystemExit: 3"),
        (
            {"kernel": "broken_kernel", "signature": {"x_ptr": "*fp32"}, "constants": {"BLOCK": 64}},
            "",
            "kernels/add.py:27: error: ",
        ),
    ],
)
def test_each_mistake_is_one_clear_message(
    tmp_path: Path, identity: Callable[[Probe], Answer], changes: dict[str, Any], edit: str, message: str
) -> None:
    folder = project(tmp_path / "p")
    if edit:
        (folder / "kernels/add.py").write_text(edit)
    made = plan_with(request(folder, arch=["sm_90"], **changes), identity)
    done, files = run(made.actions[0], made, folder, tmp_path / "job")
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert files == {}


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_an_error_in_a_helper_names_the_helper(tmp_path: Path, identity: Callable[[Probe], Answer]) -> None:
    folder = project(tmp_path / "p")
    (folder / "kernels/helper.py").write_text(
        "import triton\n\n\n@triton.jit\ndef twice(x):\n    y = x + x\n    return y.nonsense()\n"
    )
    made = plan_with(request(folder, arch=["sm_90"]), identity)
    done, _ = run(made.actions[0], made, folder, tmp_path / "job")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("kernels/helper.py:7: error: ")


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_the_identity_covers_what_compiles(identity: Callable[[Probe], Answer], tmp_path: Path) -> None:
    (tool,) = plan_with(request(project(tmp_path)), identity).tools
    roles = {file.role for file in tool.files}
    assert {"worker", "python", "triton/_C/libtriton.so", "triton/compiler/compiler.py"} <= roles
    assert any(role.endswith("/bin/ptxas") for role in roles)
    assert any(role.endswith("ocml.bc") for role in roles)
    assert all(os.path.isfile(file.path) for file in tool.files)


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_a_process_that_has_triton_imported_compiles_the_same(
    tmp_path: Path, identity: Callable[[Probe], Answer]
) -> None:
    folder = project(tmp_path / "p")
    source = folder / "kernels/add.py"
    source.write_text(source.read_text() + "\nimport sys\nprint('buildd worker' in sys.modules)\n")
    made = plan_with(request(folder), identity)
    assert all(action.warm for action in made.actions)

    def written(private: Path, action: Action) -> dict[str, bytes]:
        names = [DEPFILE, *(os.path.basename(output_path(str(private), action, o.name)) for o in action.outputs)]
        return {name: (private / name).read_bytes() for name in names}

    async def compiled(runner: Runner, action: Action, private: Path) -> bool:
        private.mkdir()
        launch = launch_of(action, made.tools[0], project=str(folder), private=str(private), where=str)
        ended = await runner.run(replace(launch, warm="triton"), lambda stream, line: None)
        assert ended.ok and not without_report(ended.stderr), ended.stderr
        return ended.stdout == b"True\n"

    async def story() -> None:
        runner = Runner()
        deadline_s = time.monotonic() + 100
        try:
            for number, action in enumerate(made.actions):
                done, _ = run(action, made, folder, tmp_path / f"by-hand-{number}")
                assert done.stdout == b"False\n", done.stderr
                for turn in itertools.count():
                    private = tmp_path / f"{number}-{turn}"
                    is_warm = await compiled(runner, action, private)
                    assert written(private, action) == written(tmp_path / f"by-hand-{number}", action)
                    if is_warm:
                        break
                    assert time.monotonic() < deadline_s
        finally:
            await runner.close()

    asyncio.run(story())


@pytest.mark.triton
@pytest.mark.usefixtures("triton")
def test_a_process_that_is_forked_from_has_asked_ptxas_and_set_up_llvm() -> None:
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.spec_from_file_location('buildd worker', sys.argv[1])\n"
        "worker = importlib.util.module_from_spec(found)\n"
        "found.loader.exec_module(worker)\n"
        "import os, triton\n"
        "compiled, tasks = [], len(os.listdir('/proc/self/task'))\n"
        "triton.knobs.compilation.listener = lambda **said: compiled.append(said['metadata']['target'].arch)\n"
        "worker.warm_up()\n"
        "assert compiled == [80, 90, 'gfx942'] and 'TRITON_CACHE_DIR' not in os.environ, compiled\n"
        "assert len(os.listdir('/proc/self/task')) == tasks == 1, 'nothing could be forked from it'\n"
        "from triton.backends.nvidia.compiler import get_ptxas_version\n"
        "before = get_ptxas_version.cache_info().misses\n"
        "assert 'release' in get_ptxas_version(90)\n"
        "print(before, get_ptxas_version.cache_info().misses - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(WORKER)], capture_output=True, text=True, check=True)
    before, more = map(int, done.stdout.split())
    assert before > 0 and more == 0
