"""Fatbins read and exchanged: in objects of the host compiler, and in those of real compiles."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from buildd.artifacts import fatbin
from codegen.steps.step_kinds import BUNDLE_TEXT
from tests.support.nvcc_project import KERNEL, Build, project

HOST = """
#include <stdio.h>
static int calls;
int table[100] = {1, 2, 3};
struct Base { virtual ~Base() {} virtual int f() { return 1; } };
struct Derived : Base { int f() override { return calls++; } };
inline int shared() { static int number; return ++number; }
int run(char const *x) { Derived d; try { puts(x); throw 1; } catch (int) { return d.f() + shared(); } }
"""


def embedded(data: bytes, extra: str = "") -> str:
    numbers = [f"0x{number:016x}" for number in struct.unpack(f"<{len(data) // 8}Q", data)]
    lines = [f'".quad {",".join(numbers[start : start + 4])}\\n"\n' for start in range(0, len(numbers), 4)]
    return (
        '#define SECTION ".nvFatBinSegment"\nasm(\n".section .nv_fatbin, \\"a\\"\\n"\n".align 8\\n"\n"fatbinData:\\n"\n'
        + "".join(lines)
        + extra
        + '".text\\n");\n'
        + f'extern "C" {{ extern const unsigned long long fatbinData[{len(numbers)}]; }}\n'
        + "static const struct { int magic, version; const void *data, *file; } __fatDeviceText\n"
        + "__attribute__((aligned(8), section(SECTION), used)) = {0x466243b1, 1, fatbinData, 0};\n"
    )


def compiled(folder: Path, text: str, *flags: str) -> bytes:
    (folder / "x.cpp").write_text(HOST + text)
    subprocess.run(["g++", "-O1", "-c", "x.cpp", "-frandom-seed=x", *flags], cwd=folder, check=True)
    return (folder / "x.o").read_bytes()


def test_data_and_what_is_around_them() -> None:
    data = random.Random(1).randbytes(80)
    text = embedded(data).encode()
    assert fatbin.data(text) == data
    frame = fatbin.frame(text)
    assert frame is not None and frame == fatbin.frame(embedded(data * 3).encode())
    assert frame != fatbin.frame(text.replace(b"0x466243b1", b"0x466243b2"))
    for old, new in (
        (b".align 8", b".align 16"),
        (b".quad 0x", b".long 0x"),
        (b"fatbinData[", b"other["),
        (b'"a', b'"w'),
    ):
        assert old in text
        assert fatbin.data(text.replace(old, new)) is None and fatbin.frame(text.replace(old, new)) is None


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (Debian: apt install g++)")


@needs_compiler
def test_an_object_with_another_fatbin_is_as_the_compiler_would_have_made_it(tmp_path: Path) -> None:
    rng = random.Random(2)
    contents = [rng.randbytes(8 * size) for size in (1, 2, 77, 5000)]
    objects = [compiled(tmp_path, embedded(content)) for content in contents]
    for made in objects:
        for content, wanted in zip(contents, objects, strict=True):
            assert fatbin.exchanged(made, content) == wanted


@needs_compiler
@pytest.mark.parametrize("end", [b"", b"\0"])
def test_a_bundle_ends_with_a_zero_byte_where_clang_has_put_one(tmp_path: Path, end: bytes) -> None:
    """clang 15 does, clang 21 does not."""

    def with_bundle(bundle: bytes) -> bytes:
        lines = ", ".join(map(str, bundle + end))
        section = f'.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12\\n.byte {lines}\\n.text'
        return compiled(tmp_path, f'asm("{section}");\n')

    frame, bundle = BUNDLE_TEXT, BUNDLE_TEXT + random.Random(4).randbytes(5000)
    data = fatbin.data(bundle)
    assert data is not None and fatbin.exchanged(with_bundle(frame), data) == with_bundle(bundle)


@needs_compiler
@pytest.mark.parametrize(
    "extra", ['"inside:\\n"\n".quad 1\\n"\n', '".quad fatbinData\\n"\n', '".size fatbinData, 8\\n"\n']
)
def test_a_fatbin_that_something_else_stands_on_stays(tmp_path: Path, extra: str) -> None:
    assert fatbin.exchanged(compiled(tmp_path, embedded(bytes(64), extra)), bytes(64)) is None


@needs_compiler
def test_clangs_object_without_a_fatbin_is_the_same_with_any(tmp_path: Path) -> None:
    made = compiled(tmp_path, "")
    assert fatbin.exchanged(made, BUNDLE_TEXT + b"more") == made
    for text, flags in (("", ["-g"]), (f'char const *text = "{BUNDLE_TEXT.decode()}";', [])):
        assert fatbin.exchanged(compiled(tmp_path, text, *flags), BUNDLE_TEXT + b"more") is None


@needs_compiler
def test_what_is_no_object_of_that_kind_stays(tmp_path: Path) -> None:
    made = compiled(tmp_path, embedded(bytes(64)))
    assert fatbin.exchanged(compiled(tmp_path, ""), bytes(64)) is None
    for flags in (("-flto", "-ffat-lto-objects"), ("-g",)):
        assert fatbin.exchanged(compiled(tmp_path, embedded(bytes(64)), *flags), bytes(64)) is None
    rng = random.Random(3)
    for _ in range(300):
        broken = bytearray(made[: rng.choice((len(made), rng.randrange(len(made))))])
        for _ in range(rng.randrange(1, 4)):
            # Where the header and the tables are.
            place = rng.choice((rng.randrange(min(64, len(broken)) or 1), rng.randrange(max(1, len(broken)))))
            if place < len(broken):
                broken[place] = rng.randrange(256)
        found = fatbin.exchanged(bytes(broken), bytes(64))
        assert found is None or len(found) == len(broken)


@pytest.mark.cuda
def test_an_added_architecture_compiles_no_host_code(tmp_path: Path) -> None:
    keys = 'output = "object"\nflags = ["-Xcompiler=-O1"]\narch = '
    (tmp_path / "edited").mkdir()
    kernel = KERNEL.replace("*x = offset; }", "*x = offset;\n#ifdef __CUDA_ARCH__\n*x = 4;\n#endif\n}")
    workspace = project(tmp_path / "edited", f'{keys}["sm_80"]\n', kernel)
    Build(workspace)
    toml = workspace.project / "buildd.toml"
    for archs, text, counts in (
        ('["sm_80", "sm_90a"]', "", (5, 7)),
        ('["sm_80"]', "*x = 5;", (4, 5)),
    ):
        toml.write_text(toml.read_text().partition("arch = ")[0] + f"arch = {archs}\n")
        if text:
            workspace.write("src/k.cu", (workspace.project / "src/k.cu").read_text().replace("*x = 4;", text))
        build = Build(workspace)
        assert (build.counters["step_hits"], build.counters["step_misses"]) == counts
        fresh = project(tmp_path / f"fresh {len(text)}", f"{keys}{archs}\n")
        fresh.write("src/k.cu", (workspace.project / "src/k.cu").read_text())
        assert Build(fresh).object.read_bytes() == build.object.read_bytes()
