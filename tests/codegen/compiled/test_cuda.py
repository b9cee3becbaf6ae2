"""CUDA targets with the real nvcc: what comes out runs, and what the tool read is learned for every pass."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen.errors import RequestError
from codegen.plan import Plan
from tests.support.carry_out import carry_out, carry_out_all, plan_for, request_for
from tests.support.toolkit import real_toolkit, small_toolkit

pytestmark = pytest.mark.cuda

KERNEL = """
#include "always.h"
#ifdef __CUDA_ARCH__
#include "device.h"
#if __CUDA_ARCH__ >= 900
#include "hopper.h"
#endif
#else
#include "host.h"
#endif
__global__ void scale(float *x) { x[threadIdx.x] *= FACTOR; }
extern "C" int factor() { return FACTOR; }
extern "C" void launch(float *x) { scale<<<1, 32>>>(x); }
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def sample(folder: Path, keys: str = "", toolkit: Path | None = None) -> Path:
    """A project, for `small_toolkit` unless told otherwise."""
    headers = {f"include/{name}.h": "" for name in ("device", "hopper", "host")}
    text = f'[toolchain]\ncuda = "{toolkit or small_toolkit()}"\n'
    text += '[target.t]\nkind = "cuda"\nsources = ["src/k.cu"]\ninclude = ["include"]\n' + keys
    return write(folder, {"buildd.toml": text, "src/k.cu": KERNEL, "include/always.h": "#define FACTOR 3\n", **headers})


def plan(folder: Path) -> Plan:
    return plan_for(request_for(folder))


def test_a_shared_library_for_two_architectures_loads_and_knows_its_headers(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80", "sm_90a"]', real_toolkit())
    compiled, linked = carry_out_all(plan(folder), folder, tmp_path / "scratch")
    assert ctypes.CDLL(str(folder / "build/t/libt.so")).factor() == 3
    for name in ("always", "device", "hopper", "host"):
        assert f"include/{name}.h" in compiled.depfile, "a pass is not in the depfile"
    assert "libcudart_static.a" in linked.depfile and "build/t/obj/src/k.cu.o" in linked.depfile
    soname = subprocess.run(["readelf", "-d", folder / "build/t/libt.so"], capture_output=True, text=True).stdout
    assert "soname: [libt.so]" in soname


def test_a_static_library_and_an_executable(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\noutput = "static"\n')
    main = '#include <cstdio>\nextern "C" int factor();\nint main() { return printf("%d", factor()) != 1; }\n'
    app = '[target.app]\nkind = "cuda"\nsources = ["main.cu"]\noutput = "executable"\narch = ["sm_80"]\ndeps = ["t"]\n'
    write(folder, {"main.cu": main, "buildd.toml": (folder / "buildd.toml").read_text() + app})
    carry_out_all(plan(folder), folder, tmp_path / "scratch")
    assert subprocess.run([folder / "build/app/app"], capture_output=True, text=True).stdout == "3"


def test_an_executable_finds_the_shared_library_that_it_depends_on(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\n')
    main = 'extern "C" int factor();\nint main() { return factor(); }\n'
    app = '[target.app]\nkind = "cuda"\nsources = ["main.cu"]\noutput = "executable"\narch = ["sm_80"]\ndeps = ["t"]\n'
    write(folder, {"main.cu": main, "buildd.toml": (folder / "buildd.toml").read_text() + app})
    carry_out_all(plan(folder), folder, tmp_path / "scratch")
    moved = folder.rename(tmp_path / "elsewhere")
    assert subprocess.run([moved / "build/app/app"]).returncode == 3


def test_relocatable_device_code_links_across_sources(tmp_path: Path) -> None:
    first = "__device__ float twice(float x) { return 2 * x; }\n"
    second = "extern __device__ float twice(float);\n__global__ void k(float *x) { *x = twice(*x); }\n"
    second += 'extern "C" void run(float *x) { k<<<1, 1>>>(x); }\n'
    text = f'[toolchain]\ncuda = "{small_toolkit()}"\n'
    text += '[target.t]\nkind = "cuda"\nsources = ["*.cu"]\narch = ["sm_80"]\nrdc = true\n'
    folder = write(tmp_path / "project", {"buildd.toml": text, "a.cu": first, "b.cu": second})
    made = plan(folder)
    carry_out_all(made, folder, tmp_path / "scratch")
    ctypes.CDLL(str(folder / "build/t/libt.so"))
    # The device link compiles a stub with toolkit headers that the linker's dependency file cannot name.
    (tool,) = (tool for tool in made.tools if tool.name == made.actions[-1].tool)
    assert any(file.path.endswith("fatbinary_section.h") for file in tool.files)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("ptx", ["ptx/src/k.cu.sm_80.ptx", "ptx/src/k.cu.sm_90a.ptx"]),
        ("cubin", ["cubin/src/k.cu.sm_80.cubin", "cubin/src/k.cu.sm_90a.cubin"]),
        ("fatbin", ["fatbin/src/k.cu.fatbin"]),
    ],
)
def test_device_code_alone(tmp_path: Path, output: str, names: list[str]) -> None:
    folder = sample(tmp_path / "project", f'arch = ["sm_80", "sm_90a"]\noutput = "{output}"')
    made = plan(folder)
    assert [artifact.name for artifact in made.artifacts] == names
    ran = carry_out_all(made, folder, tmp_path / "scratch")
    contents = [(folder / artifact.path).read_bytes() for artifact in made.artifacts]
    assert all(contents) and "include/device.h" in ran[0].depfile
    if output == "ptx":
        assert b".target sm_80" in contents[0] and b".target sm_90a" in contents[1]


@pytest.mark.slow  # in steps, test_nvcc_steps.py has it
def test_two_checkouts_make_the_same_device_code(tmp_path: Path) -> None:
    """Bytes differ only in the name of nvcc's temporary file, which holds its process id."""
    plans, objects = [], []
    for name in ("one", "two"):
        folder = sample(tmp_path / name, 'arch = ["sm_80", "sm_90a"]\noutput = "object"\nflags = ["-O3"]\n')
        plans.append(plan(folder))
        carry_out_all(plans[-1], folder, tmp_path / f"scratch-{name}")
        objects.append(folder / "build/t/obj/src/k.cu.o")
    assert plans[0].actions == plans[1].actions
    anonymous = [re.sub(rb"tmpxft_[0-9a-f]{8}", b"tmpxft_", path.read_bytes()) for path in objects]
    assert anonymous[0] == anonymous[1]
    assert all(str(tmp_path).encode() not in content for content in anonymous)
    inspector = shutil.which("cuobjdump") or str(small_toolkit() / "bin" / "cuobjdump")
    if Path(inspector).exists():
        dumps = [subprocess.run([inspector, "-ptx", path], capture_output=True, text=True).stdout for path in objects]
        assert ".visible .entry" in dumps[0] and dumps[0].replace("one", "two") == dumps[1].replace("one", "two")


def test_mapped_paths_keep_the_checkout_out_of_debug_information(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\noutput = "object"\nflags = ["-g"]\nmap_paths = true\n')
    made = plan(folder)
    assert not made.actions[0].path_sensitive
    carry_out_all(made, folder, tmp_path / "scratch")
    content = (folder / "build/t/obj/src/k.cu.o").read_bytes()
    assert str(folder).encode() not in content and str(small_toolkit()).encode() not in content
    (folder / "buildd.toml").write_text((folder / "buildd.toml").read_text().replace("map_paths = true", ""))
    made = plan(folder)
    assert made.actions[0].path_sensitive, "-g brings the checkout in"
    carry_out_all(made, folder, tmp_path / "scratch-2")
    assert str(folder).encode() in (folder / "build/t/obj/src/k.cu.o").read_bytes()


def test_line_tables_of_the_device_cannot_be_mapped(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\nflags = ["-lineinfo"]\nmap_paths = true\n')
    assert plan(folder).actions[0].path_sensitive


def test_a_mistake_in_a_source_fails_with_the_compilers_words(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\n')
    (folder / "src/k.cu").write_text("__global__ void k() { undeclared = 1; }\n")
    (ran,) = carry_out(plan(folder), folder, tmp_path / "scratch")
    assert ran.status != 0 and "src/k.cu(1): error" in ran.said


def test_an_architecture_that_this_nvcc_does_not_have(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_35"]\n')
    with pytest.raises(RequestError) as caught:
        plan(folder)
    assert caught.value.code == "bad-arch" and "sm_80" in caught.value.next_step


def test_the_annotated_ptx_that_aitemplate_asks_for(tmp_path: Path) -> None:
    folder = sample(tmp_path / "project", 'arch = ["sm_80"]\n')
    environment = {**request_for(folder).environment, "AIT_ENABLE_PTXAS_INFO": "1", "AIT_CUDA_DEBUG_LEVEL": "1"}
    made = plan_for(request_for(folder, environment=environment))
    ran = carry_out_all(made, folder, tmp_path / "scratch")
    assert "registers" in ran[0].said and made.actions[0].path_sensitive
    assert (folder / "build/t/ptx/src/k.cu.sm_80.ptx").stat().st_size


@pytest.mark.parametrize(("flag", "said"), [("-O9x", "expected a number"), ("-std=c++99", "not defined for option")])
def test_a_flag_that_nvcc_rejects_is_told_once_and_with_its_line(tmp_path: Path, flag: str, said: str) -> None:
    folder = sample(tmp_path / "project", f'arch = ["sm_80"]\nflags = ["-lineinfo", "{flag}"]\n')
    with pytest.raises(RequestError, match=re.escape(f'nvcc rejects the flag "{flag}": ')) as caught:
        plan(folder)
    assert caught.value.code == "bad-flag" and said in caught.value.message
    line = (folder / "buildd.toml").read_text().splitlines().index(f'flags = ["-lineinfo", "{flag}"]') + 1
    assert caught.value.file == f"buildd.toml:{line}"


@pytest.mark.parametrize("flag", ["-Wno-such", "--bogus"])
def test_a_flag_that_nvcc_does_not_know_is_told_once_and_with_its_line(tmp_path: Path, flag: str) -> None:
    folder = sample(tmp_path / "project", f'arch = ["sm_80"]\nflags = ["-O3", "{flag}"]\n')
    with pytest.raises(RequestError) as caught:
        plan(folder)
    assert caught.value.code == "bad-flag" and flag in caught.value.message
    line = (folder / "buildd.toml").read_text().splitlines().index(f'flags = ["-O3", "{flag}"]') + 1
    assert caught.value.file == f"buildd.toml:{line}"
