"""A target's own sources: objects among them are linked, and AITemplate's defaults count for what it generated."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen.errors import RequestError
from codegen.plan import Plan
from tests.support.carry_out import carry_out_all, plan_for, request_for

OURS = 'extern "C" int theirs();\nextern "C" int ours() { return theirs() + 1; }\n'
THEIRS = '__global__ void k() {}\nextern "C" int theirs() { return 41; }\n'
DEFAULTS = {"-O3", "-DNDEBUG", "--use_fast_math", "-DAIT_USE_FAST_MATH=1"}


def project(folder: Path, files: dict[str, str], keys: str = "", kind: str = "cuda") -> Path:
    arch = "gfx90a" if kind == "hip" else "sm_80"
    table = f'[target.t]\nkind = "{kind}"\narch = ["{arch}"]\nsources = ["src/*"]\n{keys}\n'
    for name, text in {"buildd.toml": table, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def planned(folder: Path, **environment: str) -> Plan:
    path = os.environ.get("PATH", os.defpath)
    return plan_for(request_for(folder, file="buildd.toml", environment={"PATH": path, **environment}))


def flags_of(plan: Plan) -> set[str]:
    return {word for word in plan.actions[0].argv if isinstance(word, str)} & {*DEFAULTS, "-O1"}


@pytest.mark.cuda
@pytest.mark.parametrize("suffix", [".o", pytest.param(".obj", marks=pytest.mark.slow)])
def test_an_object_among_the_sources_is_linked(tmp_path: Path, suffix: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = project(tmp_path / "project", {"src/a.cu": OURS})
    (tmp_path / "theirs.cpp").write_text(THEIRS.replace("__global__ void k() {}", ""))
    made = folder / f"src/theirs{suffix}"
    subprocess.run(["g++", "-c", "-fPIC", tmp_path / "theirs.cpp", "-o", made], check=True)
    plan = planned(folder)
    assert [action.kind for action in plan.actions] == ["nvcc", "link"]
    assert f"src/theirs{suffix}" in plan.actions[1].inputs
    carry_out_all(plan, folder, tmp_path / "scratch")
    assert ctypes.CDLL(str(folder / "build/t/libt.so")).ours() == 42


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("keys", "says", "line"),
    [
        ('\ninclude = ["includ"]', 'there is no folder "includ", which `include` names; did you mean "include"?', 6),
        ('include = ["src/a.cu"]', '"src/a.cu" of `include` is no folder', 5),
        ('\nflags = ["-o", "x"]', '"-o" does not belong in `flags`', 6),
        ('\nflags = ["-rdc=true"]', '"-rdc=true" does not belong in `flags`', 6),
        ('\nflags = ["--relocatable-device-code", "true"]', '"--relocatable-device-code" does not belong', 6),
        ('define = ["A"]\noutput = "code-object"', 'cannot have the output "code-object"', 6),
        ('define = "A"', "sm_8O", 3),
        ('define = "A"', 'no file matches "lib/*"', 4),
    ],
)
def test_a_mistake_names_the_line_of_its_key(tmp_path: Path, keys: str, says: str, line: int) -> None:
    folder = project(tmp_path, {"src/a.cu": "", "include/a.h": ""}, keys)
    file = folder / "buildd.toml"
    text = file.read_text()
    file.write_text(
        text.replace("sm_80", "sm_8O") if "sm_" in says else text.replace("src/*", "lib/*") if "lib" in says else text
    )
    with pytest.raises(RequestError) as caught:
        planned(folder)
    assert says in caught.value.message and caught.value.file == f"buildd.toml:{line}"


@pytest.mark.cuda
def test_a_folder_of_headers_may_be_made_by_the_build(tmp_path: Path) -> None:
    planned(project(tmp_path, {"src/a.cu": ""}, 'include = ["build/gen", "./src"]'))


@pytest.mark.cuda
def test_an_object_needs_an_output_that_is_linked(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"src/a\.o is an object"):
        planned(project(tmp_path, {"src/a.o": "", "src/a.cu": ""}, 'output = "ptx"'))


@pytest.mark.cuda
def test_aitemplates_defaults_count_for_what_it_generated(tmp_path: Path) -> None:
    files = {"src/model_container_base.cu": "", "src/gemm_0.cu": ""}
    folder = project(tmp_path, files, "include = []")
    (folder / "buildd.toml").write_text((folder / "buildd.toml").read_text().replace("src/*", "src/*.cu"))
    before = planned(folder)
    assert flags_of(before) == set()
    header = folder / "src/model-generated.h"
    assert str(header) in before.read, "a plan is made again once it is there"
    header.write_text("")
    assert flags_of(planned(folder)) == DEFAULTS
    assert flags_of(planned(folder, AIT_USE_FAST_MATH="0", AIT_NDEBUG="0", AIT_COMPILER_OPT="-O1")) == {"-O1"}
    with (folder / "buildd.toml").open("a") as file:
        file.write('flags = ["-O1"]\n')
    assert flags_of(planned(folder)) == {*DEFAULTS, "-O1"} - {"-O3"}, "the target's own level goes before a default"


@pytest.mark.hip
def test_hipcc_gets_the_defaults_that_aitemplate_has_for_it(tmp_path: Path) -> None:
    files = {"src/model_container_base.hip": "", "src/model-generated.h": ""}
    folder = project(tmp_path, files, kind="hip")
    (folder / "buildd.toml").write_text((folder / "buildd.toml").read_text().replace("src/*", "src/*.hip"))
    assert flags_of(planned(folder)) == {"-O3", "-DNDEBUG"}
