"""Request -> Plan: what a plan promises whatever the kind, and that it is fast. A shim nvcc answers probes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from codegen.errors import RequestError
from codegen.generate import make_plan
from codegen.plan import Discovery, Knowledge, Place, Plan, Ref, Unwanted
from codegen.project.project_file import load_project
from tests.support.carry_out import plan_for, request_for
from tests.support.paths import FAKES


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A CUDA toolkit of which only the driver answers, as the real one would."""
    root = tmp_path / "toolkit"
    for name in ("bin/nvcc.profile", "bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "include/cccl").mkdir(parents=True)
    (root / "lib").mkdir()
    shutil.copy2(FAKES / "fake-nvcc", root / "bin" / "nvcc")
    return root


def make(folder: Path, toolkit: Path, text: str, *targets: str, **fields: object) -> Plan:
    (folder / "include").mkdir(parents=True, exist_ok=True)
    (folder / "buildd.toml").write_text(text)
    environment = {"PATH": os.environ["PATH"], "CUDA_HOME": str(toolkit)}
    return plan_for(request_for(folder, *targets, environment=environment, **fields), Knowledge())


def sources(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


LIBRARY = """
[target.kernels]
kind = "cuda"
sources = ["src/*.cu"]
output = "static"
include = ["include"]
define = ["N=3"]
flags = ["-O3"]
arch = ["sm_90a", "80"]

[target.app]
kind = "cuda"
sources = ["main.cu"]
output = "executable"
arch = ["sm_80"]
deps = ["kernels"]
libraries = ["m"]
"""


def test_a_library_and_its_user(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/b.cu", "src/a.cu", "main.cu")
    plan = make(folder, toolkit, LIBRARY)
    assert plan.targets == ("kernels", "app")
    assert [action.name for action in plan.actions] == [
        "kernels/src/a.cu.o",
        "kernels/src/b.cu.o",
        "kernels/libkernels.a",
        "app/main.cu.o",
        "app/app",
    ]
    compiled, _, archived, _, linked = plan.actions
    assert compiled.argv[0] == Ref(place=Place.ROOT, name="cuda", suffix="/bin/nvcc")
    assert compiled.argv[1:] == (
        "-c",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]",
        "-Xptxas=-v",
        "-Xcompiler=-fPIC",
        "-DN=3",
        "-Iinclude",
        "-O3",
        "-o",
        Ref(place=Place.OUTPUT, name="object"),
        "src/a.cu",
    )
    assert compiled.discovery is Discovery.GCC and compiled.search == ("include",) and not compiled.path_sensitive
    assert archived.argv[1] == "rcsD" and archived.inputs == (
        "build/kernels/obj/src/a.cu.o",
        "build/kernels/obj/src/b.cu.o",
    )
    assert linked.discovery is Discovery.LINKER
    assert linked.inputs == ("build/app/obj/main.cu.o", "build/kernels/libkernels.a")
    assert "-lm" in linked.argv and "-nodlink" in linked.argv and linked.outputs[0].executable
    assert [(artifact.target, artifact.path) for artifact in plan.artifacts] == [
        ("kernels", "build/kernels/libkernels.a"),
        ("app", "build/app/app"),
    ]
    assert str(folder / "src") in plan.read and str(folder / "buildd.toml") in plan.read


def test_a_plan_holds_no_path_of_its_checkout_or_toolkit(tmp_path: Path, toolkit: Path) -> None:
    """Else a second checkout, or CI, could never hit."""
    plans = []
    for name in ("one", "two"):
        sources(tmp_path / name, "src/a.cu", "main.cu")
        plans.append(make(tmp_path / name, toolkit, LIBRARY))
    assert plans[0].actions == plans[1].actions
    for action in plans[0].actions:
        assert str(tmp_path) not in "".join(str(argument) for argument in action.argv)


def test_dependencies_are_made_but_only_what_was_asked_for_is_an_artifact(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/a.cu", "main.cu")
    plan = make(folder, toolkit, LIBRARY, "app")
    assert {artifact.target for artifact in plan.artifacts} == {"app"}
    assert "kernels/libkernels.a" in [action.name for action in plan.actions]


def test_architectures_of_the_request_win(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/a.cu", "main.cu")
    plan = make(folder, toolkit, LIBRARY, "app", arch=("sm_90",))
    assert "-gencode=arch=compute_90,code=[sm_90,compute_90]" in plan.actions[0].argv


def test_an_architecture_that_no_target_takes_is_refused(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/a.cu", "main.cu")
    with pytest.raises(RequestError) as caught:
        make(folder, toolkit, LIBRARY, arch=("gfx90a",))
    assert caught.value.code == "bad-arch" and "gfx90a" in caught.value.message


ONE_TEXT = ['"gemm"', '"rowwise"\nop = "softmax"\nshape = [0, 64]']
"""Kinds whose kernels are made for GPUs of either vendor."""


def kernels(folder: Path, kind: str, own: str, *arch: str) -> set[str]:
    (folder / "buildd.toml").write_text(f"[target.a]\nkind = {kind}\n{own}")
    plan = plan_for(request_for(folder, arch=arch))
    return {os.path.splitext(file.path)[1] for file in plan.files if "/kernels/" in file.path}


@pytest.mark.hip
@pytest.mark.parametrize("kind", ONE_TEXT)
def test_the_request_says_the_vendor_where_the_target_does_not(tmp_path: Path, kind: str) -> None:
    assert kernels(tmp_path, kind, "", "gfx90a") == {".hip"}
    assert kernels(tmp_path, kind, 'arch = ["gfx1100"]', "gfx90a") == {".hip"}


@pytest.mark.parametrize("kind", ONE_TEXT)
def test_two_vendors_at_once_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(
        RequestError, match=r'target "a" names no architecture, .* two vendors: sm_80, gfx90a'
    ) as caught:
        kernels(tmp_path, kind, "", "sm_80", "gfx90a")
    assert caught.value.next_step.startswith("name one vendor's with --arch, or")
    with pytest.raises(RequestError, match='target "a" has architectures of two vendors') as caught:
        kernels(tmp_path, kind, 'arch = ["sm_80", "gfx90a"]')
    assert caught.value.next_step.startswith("define one target per vendor")
    for own, asked in (("sm_80", "gfx90a"), ("gfx90a", "sm_80")):
        with pytest.raises(RequestError, match=f'no target of this request can be built for "{asked}"'):
            kernels(tmp_path, kind, f'arch = ["{own}"]', asked)


def test_the_project_can_set_variables_and_the_client_wins(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/a.cu", "main.cu")
    text = '[environment]\nAIT_NDEBUG = 1\nNVCC_APPEND_FLAGS = "-lineinfo"\n' + LIBRARY
    plan = make(folder, toolkit, text, "app")
    assert "-DNDEBUG" in plan.actions[0].argv
    assert dict(plan.actions[0].environment)["NVCC_APPEND_FLAGS"] == "-lineinfo"
    assert plan.actions[0].path_sensitive
    assert any("AIT_NDEBUG" in notice for notice in plan.notices)
    environment = {"PATH": os.environ["PATH"], "CUDA_HOME": str(toolkit), "NVCC_APPEND_FLAGS": ""}
    plan = plan_for(request_for(folder, "app", environment=environment), Knowledge())
    assert not plan.actions[0].path_sensitive


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (('"80"', '"sm_8"'), "bad-arch", 9),
        (('"80"', '"sm_52"'), "bad-arch", 9),
        (('"80"', '"all"'), "bad-arch", 9),
        (('arch = ["sm_90a", "80"]', ""), "bad-arch", 2),
        (('"src/*.cu"', '"src/*.cu", "src/../src/gone.cu"'), "missing-source", 4),
        (('"static"', '"code-object"'), "bad-project", 5),
        (('flags = ["-O3"]', 'flags = ["-o", "x.o"]'), "bad-flag", 8),
        (('flags = ["-O3"]', 'flags = ["-arch=sm_80"]'), "bad-flag", 8),
        (('flags = ["-O3"]', 'flags = ["-ccbin"]'), "bad-flag", 8),
    ],
)
def test_wrong_targets_are_refused_where_they_stand(
    tmp_path: Path, toolkit: Path, change: tuple[str, str], code: str, line: int
) -> None:
    folder = tmp_path / "project"
    sources(folder, "src/a.cu", "main.cu")
    with pytest.raises(RequestError) as caught:
        make(folder, toolkit, LIBRARY.replace(*change))
    assert caught.value.code == code
    assert caught.value.file == f"buildd.toml:{line}" and caught.value.next_step


def test_two_results_with_one_path_are_refused(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    sources(folder, "a.cu")
    text = '[target.t]\nkind = "cuda"\nsources = ["a.cu"]\narch = ["sm_80"]\noutput_name = "obj"\noutput = "executable"'
    make(folder, toolkit, text)
    text = text.replace('"a.cu"', '"a.cu", "../project/a.cu", "__/project/a.cu"')
    sources(folder, "__/project/a.cu")
    with pytest.raises(RequestError) as caught:
        make(folder, toolkit, text)
    assert caught.value.code == "output-conflict"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        plan_for(request_for(tmp_path / "nowhere"), Knowledge())
    assert caught.value.code == "bad-project"


def test_ten_thousand_sources_share_what_is_the_same(tmp_path: Path, toolkit: Path) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for number in range(10_000):
        (folder / "src" / f"k{number:05}.cu").touch()
    text = '[target.big]\nkind = "cuda"\nsources = ["src/*.cu"]\narch = ["sm_80"]\n'
    (folder / "buildd.toml").write_text(text)
    request = request_for(folder, environment={"PATH": os.environ["PATH"], "CUDA_HOME": str(toolkit)})
    plan = plan_for(request, Knowledge())
    assert len(plan.actions) == 10_002
    first, second, link = plan.actions[0], plan.actions[1], plan.actions[-1]
    assert first.environment is second.environment and first.search is second.search
    assert len(link.argv) < 40, "a long link line does not fit into nvcc's shell"


def test_a_plan_that_nobody_waits_for_ends_before_the_next_target(tmp_path: Path, toolkit: Path) -> None:
    sources(tmp_path, "a.cpp")
    request = request_for(tmp_path, file="", specs={"a": {"kind": "cuda", "sources": ["a.cpp"]}})
    with pytest.raises(Unwanted):
        make_plan(request, Knowledge(is_unwanted=lambda: True))


def test_a_chain_of_dependencies_may_be_long(tmp_path: Path) -> None:
    text = "".join(f'[target.t{n}]\nkind = "cuda"\nsources = ["a.cpp"]\ndeps = ["t{n + 1}"]\n' for n in range(2_000))
    (tmp_path / "buildd.toml").write_text(f'{text}[target.t2000]\nkind = "cuda"\nsources = ["a.cpp"]\n')
    project = load_project(request_for(tmp_path, "t0"))
    assert [target.name for target in project.targets] == [f"t{n}" for n in range(2_000, -1, -1)]
