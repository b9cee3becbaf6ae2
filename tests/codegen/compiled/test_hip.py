"""HIP targets with the real hipcc: what comes out, and that clang's header list covers host and device."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codegen.compiled.hip import architectures
from codegen.errors import RequestError
from codegen.plan import Discovery, Plan
from tests.support.carry_out import carry_out_all, plan_for, request_for

KERNEL = """
#include <hip/hip_runtime.h>
#include "always.h"
#ifdef __HIP_DEVICE_COMPILE__
#include "device.h"
#ifdef __gfx90a__
#include "mi200.h"
#endif
#else
#include "host.h"
#endif
extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= FACTOR; }
extern "C" int factor() { return FACTOR; }
"""


def sample(folder: Path, keys: str = "") -> Path:
    text = '[project]\nname = "p"\n[target.t]\nkind = "hip"\nsources = ["src/k.hip"]\ninclude = ["include"]\n' + keys
    files = {"buildd.toml": text, "src/k.hip": KERNEL, "include/always.h": "#define FACTOR 3\n"}
    files |= {f"include/{name}.h": "" for name in ("device", "mi200", "host")}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def plan(folder: Path) -> Plan:
    return plan_for(request_for(folder))


@pytest.mark.hip
def test_a_shared_library_knows_the_headers_of_all_passes(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["gfx90a"]')
    made = plan(folder)
    assert made.actions[0].discovery is Discovery.CLANG
    compiled, linked = carry_out_all(made, folder, tmp_path / "scratch")
    for name in ("always", "device", "mi200", "host"):
        assert f"include/{name}.h" in compiled.depfile, "a pass is not in the header list"
    assert "libamdhip64.so" in linked.depfile
    assert b"gfx90a" in (folder / "build/t/libt.so").read_bytes()


@pytest.mark.hip
def test_a_code_object_and_an_executable(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["gfx90a"]\noutput = "code-object"\n')
    more = """
[target.app]
kind = "hip"
sources = ["main.cpp"]
output = "executable"
arch = ["gfx90a"]
deps = ["lib"]

[target.lib]
kind = "hip"
sources = ["src/k.hip"]
include = ["include"]
output = "static"
arch = "gfx90a"
"""
    (folder / "main.cpp").write_text('extern "C" int factor();\nint main() { return factor(); }\n')
    (folder / "buildd.toml").write_text((folder / "buildd.toml").read_text() + more)
    carry_out_all(plan(folder), folder, tmp_path / "scratch")
    assert b"gfx90a" in (folder / "build/t/code-object/src/k.hip.hsaco").read_bytes()
    assert subprocess.run([folder / "build/app/app"]).returncode == 3


@pytest.mark.hip
@pytest.mark.slow
def test_two_checkouts_make_the_same_bytes(tmp_path: Path) -> None:
    plans, contents = [], []
    for name in ("one", "two"):
        keys = 'arch = ["gfx90a"]\noutput = "object"\nflags = ["-g"]\nmap_paths = true\n'
        folder = sample(tmp_path / name, keys)
        plans.append(plan(folder))
        carry_out_all(plans[-1], folder, tmp_path / f"scratch-{name}")
        contents.append((folder / "build/t/obj/src/k.hip.o").read_bytes())
    assert plans[0].actions == plans[1].actions and not plans[0].actions[0].path_sensitive
    assert contents[0] == contents[1]


@pytest.mark.parametrize("asked", ["gfx999", "gfx90a:foo+", "", "native"])
def test_what_is_no_architecture_is_refused(asked: str) -> None:
    with pytest.raises(RequestError) as caught:
        architectures((asked,), ("gfx906", "gfx90a"), "buildd.toml:3")
    assert caught.value.code == "bad-arch" and "gfx90a" in caught.value.next_step


def test_an_architecture_of_nvidias_needs_another_target() -> None:
    with pytest.raises(RequestError, match="this target is compiled for AMD") as caught:
        architectures(("gfx90a", "sm_90"), ("gfx906", "gfx90a"), "buildd.toml:3")
    assert caught.value.code == "bad-arch" and 'kind = "cuda"' in caught.value.next_step


def test_the_beginning_of_names_is_answered_with_those() -> None:
    with pytest.raises(RequestError) as caught:
        architectures(("gfx1",), ("gfx906", "gfx90a", "gfx1030", "gfx1100"), "buildd.toml:3")
    assert "did you mean" not in caught.value.message
    assert caught.value.next_step.startswith("choose one of gfx1030, gfx1100 (")


def test_architectures_are_sorted_and_counted_once() -> None:
    found = architectures(("gfx90a:xnack-", "gfx906", "gfx906"), ("gfx906", "gfx90a"), "")
    assert found == ("gfx906", "gfx90a:xnack-")


@pytest.mark.hip
def test_a_flag_that_hipcc_does_not_know_is_told_once_and_with_its_line(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["gfx90a"]\nflags = ["-fbogus"]\n')
    with pytest.raises(RequestError) as caught:
        plan(folder)
    assert caught.value.code == "bad-flag" and '"-fbogus"' in caught.value.message
    assert caught.value.file == "buildd.toml:8", (folder / "buildd.toml").read_text()
