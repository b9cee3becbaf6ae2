"""`buildd init`: what it writes for folders of sources, and that what it writes builds."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from buildd.commands import init
from codegen.errors import RequestError
from tests.support.carry_out import carry_out, carry_out_all, plan_for, request_for

PROJECT = {
    "src/scale.cu": '#include "scale.h"\n#include "detail/kernel.cu"\n'
    'extern "C" int scaled(int x) { return x * FACTOR; }\n',
    "src/detail/kernel.cu": '#include "scale.h"\n__global__ void scale(int *x) { *x *= FACTOR; }\n',
    "src/more.cpp": "#include <proj/more.hpp>\nint more() { return 1; }\n",
    "include/scale.h": "#define FACTOR 3\n",
    "include/proj/more.hpp": "int more();\n",
    "tools/main.cpp": '#include <cstdio>\n#include <proj/more.hpp>\nextern "C" int scaled(int);\n'
    'int main() { std::printf("%d", scaled(7) + more()); }\n',
    "tests/test_scale.cpp": '#include "gtest/gtest.h"\nint main() {}\n',
    "python/bind.cpp": "#include <torch/extension.h>\n",
    "build/old.cu": "this is no source",
    ".venv/pyvenv.cfg": "",
    "env/pyvenv.cfg": "",
    "env/package.cu": "nor is this",
}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def made(folder: Path, *arguments: str) -> dict[str, Any]:
    assert init.run(["-C", str(folder), *arguments]) == 0
    return tomllib.loads((folder / "buildd.toml").read_text())


def test_a_library_a_program_and_their_include_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = made(written(tmp_path / "my proj", PROJECT), "--arch", "sm_80,sm_90a")
    assert table["project"] == {"name": "my-proj"}
    assert table["target"] == {
        "my-proj": {
            "kind": "cuda",
            "sources": ["src/*.cpp", "src/*.cu"],
            "include": ["include"],
            "flags": ["-O3"],
            "arch": ["sm_80", "sm_90a"],
        },
        "main": {
            "kind": "cuda",
            "sources": ["tools/main.cpp"],
            "output": "executable",
            "deps": ["my-proj"],
            "include": ["include"],
            "flags": ["-O3"],
            "arch": ["sm_80", "sm_90a"],
        },
    }
    said = capsys.readouterr().out
    assert "my-proj, main" in said and "next: buildd build" in said
    assert 'left out tests/test_scale.cpp: it includes "gtest/gtest.h", which is not below this folder' in said
    assert 'left out python/bind.cpp: it includes torch: write a target of kind "extension"' in said


def test_a_guess_is_called_one_and_the_folder_of_another_tool_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "proj", {"k.cu": "__global__ void k() {}\n", "build/CMakeCache.txt": ""})
    assert made(folder, "--arch", "sm_90a")["project"] == {"name": "proj", "build_dir": "build-buildd"}
    assert "are a guess" not in capsys.readouterr().out and "guess" not in (folder / "buildd.toml").read_text()
    (folder / "buildd.toml").unlink()
    assert made(folder, "--arch", "gfx90a")["target"]["proj"]["arch"] == ["sm_80"]
    assert "are a guess" in capsys.readouterr().out and "# a guess" in (folder / "buildd.toml").read_text()


@pytest.mark.cuda
def test_what_it_writes_builds(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = written(tmp_path / "proj", PROJECT)
    made(folder)
    carry_out_all(plan_for(request_for(folder, file="buildd.toml")), folder, tmp_path / "scratch")
    assert subprocess.run([folder / "build/main/main"], capture_output=True, text=True, check=True).stdout == "22"


@pytest.mark.hip
def test_hip_sources_are_for_hipcc(tmp_path: Path) -> None:
    files = {"a.hip": "__attribute__((device)) int a() { return 1; }\n", "b.cpp": "int b() { return 2; }\n"}
    folder = written(tmp_path / "proj", files)
    (target,) = made(folder)["target"].values()
    assert (target["kind"], target["sources"], target["arch"]) == ("hip", ["*.hip", "*.cpp"], ["gfx90a"])
    carry_out_all(plan_for(request_for(folder, file="buildd.toml")), folder, tmp_path / "scratch")
    assert (folder / "build/proj/libproj.so").is_file()


@pytest.mark.parametrize(
    "name",
    [pytest.param("a.cu", marks=pytest.mark.cuda), pytest.param("a.hip", marks=[pytest.mark.hip, pytest.mark.slow])],
)
def test_the_flag_that_it_proposes_makes_a_link_with_undefined_symbols_fail(tmp_path: Path, name: str) -> None:
    text = "__attribute__((device)) int k() { return 2; }\nint gone();\nint a() { return gone(); }\n"
    folder = written(tmp_path / "proj", {name: text})
    (target,) = made(folder)["target"].values()
    assert target["flags"] == ["-O3"] and "link_flags" not in target
    carry_out_all(plan_for(request_for(folder, file="buildd.toml")), folder, tmp_path / "first")
    place = folder / "buildd.toml"
    place.write_text(place.read_text().replace("# link_flags", "link_flags"))
    *_, link = carry_out(plan_for(request_for(folder, file="buildd.toml")), folder, tmp_path / "second")
    assert link.status != 0 and "undefined" in link.said and "gone" in link.said
    (folder / name).write_text(text.replace("int gone();", "int gone() { return 1; }"))
    carry_out_all(plan_for(request_for(folder, file="buildd.toml")), folder, tmp_path / "third")


def test_names_and_files_that_differ(tmp_path: Path) -> None:
    files = {
        "x/one.cu": "int main(){}",
        "x/two.cu": "",
        "x/proj.cu": "int main() {}",
        "k.hip": "",
        "x/three.cu": '#include "gone.h"\n',
    }
    targets = made(written(tmp_path / "proj", files))["target"]
    assert targets["proj"]["sources"] == ["x/two.cu"] and targets["proj-hip"]["sources"] == ["*.hip"]
    assert targets["one"]["deps"] == ["proj"] and targets["proj-program"]["sources"] == ["x/proj.cu"]
    assert made(written(tmp_path / "blas", {"a.cu": "#include <cublas_v2.h>\n"}))["target"]["blas"]["libraries"] == [
        "cublas"
    ]


def test_nothing_is_overwritten_and_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "proj", {"a.cu": "", "buildd.toml": "# mine\n"})
    with pytest.raises(RequestError, match="already"):
        init.run(["-C", str(folder)])
    assert (folder / "buildd.toml").read_text() == "# mine\n"
    (folder / "buildd.toml").unlink()
    (folder / "buildd.toml").symlink_to("nowhere")
    with pytest.raises(RequestError, match="already"):
        init.run(["-C", str(folder)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="no CUDA, HIP or C"):
        init.run(["-C", str(tmp_path / "empty")])
    assert not (tmp_path / "empty/buildd.toml").exists()


def test_a_header_outside_is_no_reason_to_leave_a_source_out_if_it_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, {"kern/check.h": ""})
    sources = {"a.cu": '#include "../kern/check.h"\n', "b.cu": '#include "../kern/gone.h"\n'}
    table = made(written(tmp_path / "own", sources))
    assert table["target"]["own"]["sources"] == ["a.cu"]
    said = capsys.readouterr().out
    assert 'left out b.cu: it includes "../kern/gone.h"' in said and "to add one, write it into `sources`" in said
    assert said.endswith("next: buildd build, or buildd watch, which builds on every save\n")


def test_headers_alone_are_told_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        init.run(["-C", str(written(tmp_path, {"mk/scan.cuh": "#pragma once\n"}))])
    assert caught.value.message.startswith(f"only headers below {tmp_path}, such as mk/scan.cuh")
    assert "a source that includes them" in caught.value.next_step


def test_a_cu_file_that_includes_hips_headers_is_for_hipcc(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        {
            "src/ours.cu": '#include "common.h"\n__global__ void f() {}\n',
            "src/common.h": "#include <hip/hip_runtime.h>\n",
            "src/both.cu": "#ifdef __HIP__\n#include <hip/hip_runtime.h>\n#else\n#include <cuda_runtime.h>\n#endif\n",
            "src/more.cpp": "int more() { return 1; }\n",
        },
    )
    text, _ = init.project_text("p", init.sort_out(init.sources_in(folder), folder), [])
    targets = tomllib.loads(text)["target"]
    assert targets["p-hip"]["kind"] == "hip" and targets["p-hip"]["sources"] == ["src/ours.cu"]
    assert targets["p"]["kind"] == "cuda" and targets["p"]["sources"] == ["src/both.cu", "src/*.cpp"]
    assert "docs/" not in text, "an installed buildd has no such folder"
    (folder / "src/both.cu").unlink()
    text, _ = init.project_text("p", init.sort_out(init.sources_in(folder), folder), [])
    (target,) = tomllib.loads(text)["target"].values()
    assert target["kind"] == "hip" and sorted(target["sources"]) == ["src/*.cpp", "src/*.cu"]
