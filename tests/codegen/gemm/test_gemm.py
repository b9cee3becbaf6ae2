"""GEMM targets: what is refused, that the text is deterministic, and that it compiles."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.editor import compdb
from codegen.errors import RequestError
from codegen.gemm.candidates import Ranked
from codegen.gemm.gemm import entry_file, interface, sources_of
from codegen.gemm.kernel import GemmKernel
from codegen.gemm.kernel_options import Candidate, problem_of
from codegen.gemm.spec import EPILOGUES, LAYOUTS, is_measurable, is_plain, kernel_for, tolerance
from codegen.plan import GeneratedFile
from codegen.project.target import GemmTarget
from codegen.tuning.survey import Case, candidate_spec, survey
from tests.support.carry_out import KNOWLEDGE, answered, carry_out_all, plan_for, request_for

NAVIGABLE = {"PATH": "/usr/bin:/bin", "AIT_ENABLE_CUDA_SOURCE_NAVIGATION_FIX": "1"}


def spec(**keys: Any) -> GemmTarget:
    return msgspec.convert({"name": "g", "where": "buildd.toml:2", **keys}, GemmTarget)


def generated(target: GemmTarget, kernels: list[GemmKernel], build: str) -> list[GeneratedFile]:
    """The entry point, and the sources of each kernel."""
    sources = [file for kernel in kernels for file, _ in sources_of(kernel, build)]
    return [entry_file(target, kernels, build), *sources]


def test_equal_specs_give_equal_text() -> None:
    target = spec(m=128, epilogue="bias_relu")
    texts = [generated(target, [kernel_for(target, arch) for arch in ("sm_80", "sm_90a")], "gen") for _ in range(2)]
    assert texts[0] == texts[1]
    entry, sm80, sm90, launch = texts[0]
    assert [file.path for file in texts[0]] == [
        "gen/g/gen/g.cpp",
        "gen/kernels/gemm_sm80_half_float_half_rcr_bias_relu_128x128x32_w64x64x32_s4_a8_d8.cu",
        "gen/kernels/gemm_sm90a_half_float_half_rcr_bias_relu_128x128x64_c2x1x1_cooperative_s0_a8_d8.cu",
        "gen/kernels/gemm_sm90a_half_float_half_rcr_bias_relu_128x128x64_c2x1x1_cooperative_s0_a8_d8.cpp",
    ]
    assert b"if (m != 128) return -4" in entry.content and b"if (n" not in entry.content
    other = generated(spec(name="h", epilogue="bias_relu"), [kernel_for(target, "sm_80")], "gen")
    assert other[1] == sm80 and other[0] != entry, "a kernel's text says nothing of its target"
    assert entry.content.index(b"found == 90") < entry.content.index(b"found >= 80")
    assert all(b"struct Store" in file.content for file in (sm90, launch)), "of one type"
    assert all(b"{{" not in file.content.replace(b"{{}", b"") for file in texts[0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_combination_of_half_precision_has_a_text(arch: str, layout: str, epilogue: str, dtype: str) -> None:
    target = spec(layout=layout, epilogue=epilogue, dtype=dtype)
    assert len(generated(target, [kernel_for(target, arch)], "gen")) == (3 if arch == "sm_90a" else 2)


@pytest.mark.parametrize(
    ("keys", "arch", "allowed"),
    [
        ({"dtype": "fp8"}, "sm_80", "fp16, bf16"),
        ({"layout": "rcc"}, "sm_80", "rcr, rrr, ccr"),
        ({"epilogue": "bias_rleu"}, "sm_80", "bias_relu"),
        ({"output_dtype": "bf16"}, "sm_80", "fp16, fp32"),
        ({"dtype": "bf16", "accumulator": "fp16"}, "sm_80", "fp32"),
        ({"dtype": "int8", "layout": "rrr"}, "sm_80", "rcr"),
        ({"dtype": "int8", "epilogue": "gelu"}, "sm_80", "bias_relu"),
        ({"dtype": "tf32", "layout": "rrr"}, "sm_90a", "rcr"),
        ({"dtype": "fp32"}, "sm_90a", "tf32"),
        ({}, "sm_70", "sm_80"),
        ({}, "sm_100", "sm_90a"),
        ({"k": 33}, "sm_80", "multiple of 2"),
        ({"k": 36}, "sm_90a", "multiple of 8"),
        ({"n": 12}, "sm_90a", "multiple of 8"),
        ({"dtype": "int8", "k": 24}, "sm_80", "multiple of 16"),
        ({"k": 36, "alignment": 8}, "sm_80", "alignment"),
        ({"alignment": 3}, "sm_80", "power of two"),
        ({"tile": [128, 100, 32]}, "sm_80", "multiples of 32"),
        ({"tile": [128, 128, 20]}, "sm_80", "multiple of 32"),
        ({"tile": [0, 128, 32]}, "sm_80", "tile"),
        ({"tile": [256, 256, 32], "warps": [2, 2, 1]}, "sm_80", "more warps"),
        ({"tile": [128, 128, 32], "warps": [3, 1, 1]}, "sm_80", "warps"),
        ({"tile": [128, 256, 64], "warps": [2, 4, 1], "stages": 5}, "sm_80", "163 KiB"),
        ({"tile": [128, 256, 64], "warps": [2, 4, 1], "stages": 3}, "sm_86", "99 KiB"),
        ({"stages": 1}, "sm_80", "2 or more"),
        ({"stages": -1}, "sm_80", "0 stands for"),
        ({"tile": [96, 128, 64]}, "sm_90a", "64, 128 or 256"),
        ({"warps": [2, 2, 1]}, "sm_90a", "remove"),
        ({"schedule": "pong"}, "sm_90a", "cooperative, pingpong"),
        ({"schedule": "pingpong", "tile": [256, 128, 64]}, "sm_90a", "64 or 128"),
        ({"schedule": "cooperative", "tile": [64, 128, 64]}, "sm_90a", "128 or 256"),
        ({"cluster": [3, 1, 1]}, "sm_90a", "for example"),
        ({"stages": 9}, "sm_90a", "227 KiB"),
        ({"m": -1}, "sm_80", "0 stands for"),
        ({"dtype": "fp8_e4m3"}, "sm_80", "sm_90a"),
        ({"dtype": "fp8_e5m2", "layout": "rrr"}, "sm_90a", "rcr"),
        ({"dtype": "fp8_e4m3", "k": 24}, "sm_90a", "multiple of 16"),
        ({"dtype": "int8", "epilogue": "multiply"}, "sm_80", "bias_relu"),
        ({"epilogue": "add"}, "sm_80", "bias_add"),
        ({"epilogue": "relu_bias"}, "sm_80", "bias_relu"),
        ({"split_k": 0}, "sm_80", "1 to 32"),
        ({"split_k": 2, "batched": True}, "sm_80", "remove one of them"),
        ({"split_k": 2, "epilogue": "bias_multiply"}, "sm_90a", "remove one of them"),
        ({"split_k": 2, "tile": [64, 128, 64]}, "sm_90a", "128 or 256"),
        ({"dtype": "tf32"}, "sm_100a", "fp16, bf16, fp8_e4m3, fp8_e5m2"),
        ({"dtype": "fp8_e4m3", "layout": "rrr"}, "sm_100a", "rcr"),
        ({"tile": [128, 128, 64]}, "sm_100a", "leave `tile` out"),
        ({"batched": True}, "sm_100a", "leave `batched` out"),
        ({"grouped": True}, "sm_100a", 'arch = ["sm_90"]'),
        ({"split_k": 2}, "sm_100a", "its own target"),
        ({"epilogue": "bias_add"}, "sm_100a", "its own target"),
        ({"n": 12}, "sm_100a", "multiple of 8"),
        ({"grouped": True}, "sm_90a", 'arch = ["sm_90"]'),
        ({"grouped": True, "dtype": "tf32"}, "sm_80", "fp16, bf16"),
        ({"grouped": True, "batched": True}, "sm_80", "remove one of them"),
        ({"grouped": True, "split_k": 2}, "sm_80", "remove one of them"),
        ({"grouped": True, "epilogue": "add_"}, "sm_80", "bias_add"),
        ({"grouped": True, "epilogue": "relu_add"}, "sm_80", "remove one of them"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(keys: dict[str, Any], arch: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        kernel_for(spec(**keys), arch)
    assert caught.value.code in ("bad-gemm", "bad-arch")
    assert allowed in caught.value.next_step and caught.value.file == "buildd.toml:2"


@pytest.mark.parametrize(("rows", "schedule"), [(64, "pingpong"), (128, "pingpong"), (128, "cooperative"), (256, "")])
def test_a_schedule_is_taken_and_named(rows: int, schedule: str) -> None:
    kernel = kernel_for(spec(tile=[rows, 128, 64], schedule=schedule), "sm_90a")
    assert kernel.schedule == (schedule or "cooperative") and kernel.schedule in kernel.name


@pytest.mark.parametrize(
    ("keys", "arch", "align", "align_d"),
    [
        ({}, "sm_80", 8, 8),
        ({"k": 36}, "sm_80", 4, 8),
        ({"k": 34, "n": 31}, "sm_80", 2, 1),
        ({"dtype": "tf32", "k": 33}, "sm_80", 1, 4),
        ({"layout": "ccr", "m": 20, "k": 12}, "sm_80", 4, 8),
        ({"output_dtype": "fp32", "n": 4}, "sm_90a", 8, 4),
    ],
)
def test_alignment_is_what_the_sizes_allow(keys: dict[str, Any], arch: str, align: int, align_d: int) -> None:
    kernel = kernel_for(spec(**keys), arch)
    assert (kernel.align, kernel.align_d) == (align, align_d)


@pytest.mark.cuda
def test_without_a_gpu_ait_build_docs_names_the_architecture(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text('[target.g]\nkind = "gemm"\n')
    with pytest.raises(RequestError, match="names no architecture"):
        plan_for(request_for(tmp_path))
    plan = plan_for(request_for(tmp_path, environment={"PATH": "/usr/bin:/bin", "AIT_BUILD_DOCS": "0"}))
    assert any("_sm80_" in action.name for action in plan.actions), "any value counts"


@pytest.mark.cuda
def test_a_candidate_is_compiled_to_what_the_target_is_built_of(tmp_path: Path) -> None:
    """What was measured is what is used: the same sources, by the same commands."""
    (tmp_path / "buildd.toml").write_text("""
[target.g]
kind = "gemm"
m = 512
n = 512
k = 256
arch = ["sm_90a"]
tile = [64, 128, 64]
cluster = [1, 2, 1]
schedule = "pingpong"
""")
    plan = plan_for(request_for(tmp_path))
    candidate = Candidate(tile=(64, 128, 64), cluster=(1, 2, 1), schedule="pingpong")
    target = spec(m=512, n=512, k=256)
    ranked = Ranked(candidate=candidate, kernel=kernel_for(candidate.of(target), "sm_90a").name, estimate_us=1.0)
    name, table = candidate_spec(Case("g", "sm_90a", "", (512, 512, 256), target, (ranked,)), ranked)
    tried = plan_for(request_for(tmp_path, name, specs={name: table}))
    kernels = [
        {action.inputs: action.argv for action in one.actions if "/kernels/" in action.name} for one in (plan, tried)
    ]
    assert kernels[0] == kernels[1] and len(kernels[0]) == 2
    texts = [{file.path: file.content for file in one.files if "/kernels/" in file.path} for one in (plan, tried)]
    assert texts[0] == texts[1] and len(texts[0]) == 3, "the kernel, its launch, and a header of CUTLASS"


@pytest.mark.cuda
def test_kernels_in_one_source_where_that_is_asked_for(tmp_path: Path) -> None:
    specs = {"g": {"kind": "gemm", "arch": ["sm_80", "sm_90a"]}}
    environment = {"PATH": NAVIGABLE["PATH"], "BUILDD_SPLIT_KERNELS": "0"}
    plan = plan_for(request_for(tmp_path, file="", specs=specs, environment=environment))
    sources = [file.path for file in plan.files if "/kernels/gemm" in file.path]
    assert len(sources) == 2 and all(path.endswith(".cu") for path in sources)
    plan = plan_for(request_for(tmp_path, file="", specs=specs, environment={"PATH": NAVIGABLE["PATH"]}))
    sources = [file.path for file in plan.files if "/kernels/gemm" in file.path]
    launches = [action.name for action in plan.actions if action.name.endswith("d8.cpp.o")]
    assert len(sources) == 3 and len(launches) == 1 and "sm90a" in launches[0]


@pytest.mark.cuda
def test_generated_sources_as_headers_for_editors(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text('[target.g]\nkind = "gemm"\narch = ["sm_80"]\n')
    plain = plan_for(request_for(tmp_path, environment={"PATH": NAVIGABLE["PATH"]}))
    plan = plan_for(request_for(tmp_path, environment=NAVIGABLE))
    sources = [file for file in plain.files if file.path.endswith(".cu")]
    assert plan.actions == plain.actions and len(plan.files) == len(plain.files) + len(sources) > len(plain.files)
    files = {file.path: file.content for file in plan.files}
    for file in sources:
        assert files[f"{file.path}.h"] == file.content
        assert files[file.path].decode() == f'#include "{Path(file.path).name}.h"\n'


@pytest.mark.cuda
def test_headers_are_included_from_where_they_are(tmp_path: Path) -> None:
    """AIT_ENABLE_INCLUDE_FROM_SOURCETREE is always on: nothing is copied, and editors are led to the very files."""
    (tmp_path / "buildd.toml").write_text('[target.g]\nkind = "gemm"\narch = ["sm_80"]\n')
    environment = {"PATH": "/usr/bin:/bin"}
    plan = plan_for(request_for(tmp_path, environment=environment))
    asked = plan_for(request_for(tmp_path, environment={**environment, "AIT_ENABLE_INCLUDE_FROM_SOURCETREE": "1"}))
    assert (asked.actions, asked.files) == (plan.actions, plan.files)
    database = json.loads(json.dumps(compdb.entries(plan, str(tmp_path), compilers=True)))
    included = [word[2:] for entry in database for word in entry["arguments"] if word.startswith("-I")]
    cutlass = [folder for folder in included if (Path(folder) / "cutlass" / "cutlass.h").is_file()]
    assert cutlass and not any(folder.startswith(str(tmp_path)) for folder in included)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("keys", "operands", "sizes"),
    [
        ({}, "a, b, c, d, ", "m, n, k, "),
        ({"batched": True}, "a, b, c, d, ", "m, n, k, batch, "),
        ({"split_k": 4}, "a, b, c, d, ", "m, n, k, "),
        ({"epilogue": "silu_multiply"}, "a, b, c, d, ", "m, n, k, "),
        ({"epilogue": "bias_add", "batched": True}, "a, b, c, bias, d, ", "m, n, k, batch, "),
    ],
)
def test_options_are_in_the_kernels_name_and_the_entry_point_calls_it_as_it_is(
    arch: str, keys: dict[str, Any], operands: str, sizes: str
) -> None:
    kernel = kernel_for(spec(**keys), arch)
    entry, *_, source = (file.content.decode() for file in generated(spec(**keys), [kernel], "gen"))
    assert f"{kernel.name}_run({operands}{sizes}alpha, beta, workspace, stream)" in entry
    heads = {
        line for text in (entry, source) for line in text.splitlines() if f"{kernel.name}_run(const void* a" in line
    }
    assert len({line.partition("_run(")[2] for line in heads}) == 1, "declared as it is defined"
    assert (kernel.name == kernel_for(spec(), arch).name) is not bool(keys)


@pytest.mark.parametrize(
    ("keys", "light"),
    [
        ({}, True),
        ({"dtype": "bf16", "epilogue": "bias_gelu", "batched": True}, True),
        ({"dtype": "fp8_e4m3", "output_dtype": "bf16"}, True),
        ({"split_k": 2}, True),
        ({"epilogue": "silu_multiply"}, False),
        ({"output_dtype": "fp32"}, False),
        ({"dtype": "tf32", "layout": "rcr"}, False),
    ],
)
def test_kernels_of_sm_90a_that_store_halves_have_an_epilogue_of_ours(keys: dict[str, Any], light: bool) -> None:
    kernel = kernel_for(spec(**keys), "sm_90a")
    _, source, launch = (file.content for file in generated(spec(**keys), [kernel], "gen"))
    for text in (source, launch):
        assert (b"stmatrix" in text) is light
        assert (b"collective_builder.hpp" in text) is not light, "nor are CUTLASS's headers for it read"


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_sm_100a_has_a_kernel_and_an_entry_of_its_own(dtype: str) -> None:
    target = spec(dtype=dtype, epilogue="bias_gelu")
    both = [kernel_for(target, arch) for arch in ("sm_90a", "sm_100a")]
    entry, *_, source = (file.content.decode() for file in generated(target, both, "gen"))
    assert f"found == 100) return {both[1].name}_run(" in entry and "found == 90)" in entry
    assert "arch::Sm100" in source and "LinCombPerColBiasEltAct" in source
    for layout in LAYOUTS if dtype in ("fp16", "bf16") else ():
        assert kernel_for(spec(dtype=dtype, layout=layout), "sm_100a").name != both[1].name


def test_a_grouped_kernel_has_sizes_of_each_problem() -> None:
    target = spec(grouped=True, epilogue="bias", n=64, k=32)
    entry, source = (file.content.decode() for file in generated(target, [kernel_for(target, "sm_80")], "gen"))
    name = kernel_for(target, "sm_80").name
    assert "_grouped_" in name and name != kernel_for(spec(epilogue="bias", n=64, k=32), "sm_80").name
    assert f"{name}_run(a, b, c, d, sizes, groups, alpha, beta, workspace, stream)" in entry
    assert "sizes[3 * i + 1] != 64" in entry and "sizes[3 * i + 2] != 32" in entry and "3 * i + 0]" not in entry
    heads = [
        line.partition("_run(")[2] for text in (entry, source) for line in text.splitlines() if "* const* a" in line
    ]
    assert len(heads) == 3 and len(set(heads)) == 1, "declared as it is defined"
    assert problem_of(target, "sm_80").endswith(" grouped")


def test_only_what_the_measuring_program_calls_is_measured() -> None:
    assert is_plain(spec(epilogue="bias_tanh", layout="ccr"))
    assert is_plain(spec(split_k=2)) and tolerance(spec(split_k=8)) > tolerance(spec(split_k=2)) == tolerance(spec())
    assert is_plain(spec(dtype="fp8_e4m3"))
    assert is_measurable(spec(batched=True)) and not is_plain(spec(batched=True))
    for keys in ({"grouped": True}, {"epilogue": "multiply"}):
        assert not is_measurable(spec(**keys))


def build(tmp_path: Path, keys: str, environment: dict[str, str] | None = None) -> ctypes.CDLL:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "buildd.toml").write_text('[target.my-gemm]\nkind = "gemm"\n' + keys)
    plan = plan_for(request_for(folder, environment=environment) if environment else request_for(folder))
    assert [artifact.path for artifact in plan.artifacts] == ["build/my-gemm/libmy-gemm.so"]
    carry_out_all(plan, folder, tmp_path / "scratch")
    return ctypes.CDLL(str(folder / "build/my-gemm/libmy-gemm.so"))


@pytest.mark.cuda
def test_a_gemm_for_sm_80_compiles_and_loads(tmp_path: Path) -> None:
    library = build(tmp_path, 'epilogue = "bias_relu"\nk = 64\narch = ["sm_80"]\n', NAVIGABLE)
    (kernel,) = (tmp_path / "project/build/kernels").glob("*.cu")
    assert kernel.read_text() == f'#include "{kernel.name}.h"\n'
    library.my_gemm_workspace_bytes.restype = ctypes.c_size_t
    assert library.my_gemm_workspace_bytes(256, 256, 64) == 0
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    assert library.my_gemm_run(None, None, None, None, 8, 8, 65, one, zero, None, None) == -4


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute of one core, on a machine that may have eight of them to do
def test_a_gemm_for_sm_90a_compiles_and_loads(tmp_path: Path) -> None:
    library = build(tmp_path, 'epilogue = "gelu"\narch = ["sm_80", "sm_90a"]\n')
    assert library.my_gemm_run and not hasattr(library, "gemm_sm90a_run")


OPTIONS: dict[str, dict[str, Any]] = {
    "split": {"split_k": 3, "epilogue": "bias_tanh"},
    "batched": {"batched": True, "epilogue": "bias_gelu"},
    "joined": {"batched": True, "epilogue": "bias_silu_multiply"},
}


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("option", [*OPTIONS, "fp8"])
def test_options_compile(tmp_path: Path, arch: str, option: str) -> None:
    keys = OPTIONS.get(option, {"dtype": "fp8_e4m3" if arch == "sm_90a" else "int8", "epilogue": "bias_relu"})
    plan = plan_for(request_for(tmp_path, file="", specs={"g": {"kind": "gemm", "arch": [arch], **keys}}))
    carry_out_all(plan, tmp_path, tmp_path / "scratch")
    library = ctypes.CDLL(str(tmp_path / "build/g/libg.so"))
    assert library.g_run and library.g_workspace_bytes


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_grouped_gemm_compiles_with_its_standalone_test_and_checks_its_problems(tmp_path: Path) -> None:
    keys = {"grouped": True, "epilogue": "bias_relu", "n": 64}
    kernel = kernel_for(spec(**keys), "sm_80")
    parameters, call = (interface(kernel)[f"operands_{name}"] for name in ("parameters", "arguments"))
    # Of a library only the entry point can be called, and that wants a GPU.
    (tmp_path / "shim.cu").write_text(
        f'extern "C" int {kernel.name}_run({parameters}, float, float, void*, cudaStream_t);\n'
        f'extern "C" size_t {kernel.name}_workspace_bytes(int);\n'
        f'extern "C" int run({parameters}) {{ return {kernel.name}_run({call}, 1, 0, nullptr, nullptr); }}\n'
        f'extern "C" size_t space(int groups) {{ return {kernel.name}_workspace_bytes(groups); }}\n'
    )
    specs = {
        "g": {"kind": "gemm", "arch": ["sm_80"], "output": "static", **keys},
        "shim": {"kind": "cuda", "arch": ["sm_80"], "sources": ["shim.cu"], "deps": ["g"]},
    }
    environment = {"PATH": "/usr/bin:/bin", "AIT_ENABLE_STANDALONE": "1"}
    plan = plan_for(request_for(tmp_path, file="", specs=specs, environment=environment))
    carry_out_all(plan, tmp_path, tmp_path / "scratch")
    assert (tmp_path / "build/g-test/g-test").is_file()
    library = ctypes.CDLL(str(tmp_path / "build/shim/libshim.so"))
    assert [library.space(groups) for groups in (0, -1, 3)] == [0, 0, 3 * 76]

    def status(*problems: tuple[int, int, int], third: int = 256, a: int = 256, groups: int | None = None) -> int:
        arrays = [(ctypes.c_void_p * 4)(*[pointer] * 4) for pointer in (a, 256, third, 256)]
        sizes = (ctypes.c_int * 12)(*(size for problem in problems for size in problem))
        count = len(problems) if groups is None else groups
        return int(library.run(*arrays, sizes, count))

    misaligned, invalid, no_workspace = -1, -4, -6
    assert status() == 0 == status((0, 64, 32), (8, 0, 8)), "nothing to do"
    assert {status((8, 64, 0)), status((-1, 64, 8)), status(groups=-1), status((8, 64, 8), third=0)} == {invalid}
    assert {status((8, 64, 12)), status((8, 60, 8)), status((8, 64, 8), a=264)} == {misaligned}
    assert status((8, 64, 8), (0, 64, 8), (7, 64, 16)) == no_workspace


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("dtype", "epilogue"), [("fp16", "bias_relu"), ("fp8_e4m3", "none")])
def test_a_gemm_for_sm_100a_compiles(tmp_path: Path, dtype: str, epilogue: str) -> None:
    keys = {"kind": "gemm", "arch": ["sm_100a"], "dtype": dtype, "epilogue": epilogue}
    plan = plan_for(request_for(tmp_path, file="", specs={"g": keys}))
    assert plan.notices == ("g: the kernel for sm_100a was only ever compiled, never run or measured",)
    carry_out_all(plan, tmp_path, tmp_path / "scratch")
    library = ctypes.CDLL(str(tmp_path / "build/g/libg.so"))
    assert library.g_run and library.g_workspace_bytes
    assert b"sm_100a" in (tmp_path / "build/g/libg.so").read_bytes()


@pytest.mark.cuda
def test_options_that_cannot_be_measured_are_not_profiled(tmp_path: Path) -> None:
    for keys in ({"grouped": True, "arch": ["sm_80"]}, {"epilogue": "multiply"}, {"arch": ["sm_100a"]}):
        request = request_for(
            tmp_path, file="", specs={"g": {"kind": "gemm", "arch": ["sm_90a"], "m": 64, "n": 64, "k": 64, **keys}}
        )
        with pytest.raises(RequestError) as caught:
            answered(lambda request=request: survey(request, KNOWLEDGE))
        assert caught.value.code == "not-profilable"
