"""Sources that the peers compile, the edits made to them, and their build.ninja and buildd.toml.

Knows no contender and no measurement. All that a corpus writes is deterministic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import projects

from codegen.gemm.gemm import kernel_text
from codegen.gemm.spec import kernel_for
from codegen.project.target import GemmTarget

SHARED = "include/shared.h"
"""Included by every source."""
_BELOW = (
    "template <typename T> struct Shared {\n  T value;\n};\nstatic inline int shared_part(int x) { return x + 1; }\n"
)
"""What stands in it: code, which a line of comment moves."""
_LISTED = """
constexpr int most_of(int one) { return one; }
template <typename... Rest> constexpr int most_of(int one, Rest... rest) {
  return one > most_of(rest...) ? one : most_of(rest...);
}
#ifdef __CUDA_ARCH_LIST__
static constexpr int most_compiled = most_of(__CUDA_ARCH_LIST__);
static inline bool is_compiled_for(int arch) { return arch <= most_compiled; }
#endif
"""
_CUTLASS_FLAGS = ("-std=c++17", "--expt-relaxed-constexpr", "-DNDEBUG", "-O3", "-Xcompiler=-fPIC")
_GEMMS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("half", "sm_80", {"dtype": "fp16"}),
    ("bias", "sm_80", {"dtype": "bf16", "layout": "rrr", "epilogue": "bias_relu"}),
    ("tf32", "sm_80", {"dtype": "tf32"}),
    ("int8", "sm_80", {"dtype": "int8"}),
    ("half", "sm_90a", {"dtype": "fp16", "tile": (128, 128, 64)}),
    ("gelu", "sm_90a", {"dtype": "bf16", "epilogue": "bias_gelu", "tile": (64, 128, 64)}),
    ("rrr", "sm_90a", {"dtype": "fp16", "layout": "rrr"}),
    ("float8", "sm_90a", {"dtype": "fp8_e4m3", "tile": (128, 128, 128)}),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A source, relative to the project, and the architectures that it is compiled for."""

    source: str
    archs: tuple[str, ...]
    added: tuple[str, ...]
    """One more of them, where that makes sense for it."""


class Corpus:
    """A project for ninja and for `buildd build`.

    Args:
        folder: it is made there.
        compiler: nvcc, hipcc or g++, absolute.
        cutlass: folder of its sources; for `cutlass`.
    """

    def __init__(self, name: str, folder: Path, compiler: Path, units: int, cutlass: Path) -> None:
        self.name, self.folder, self.compiler = name, folder, compiler
        self.hip, self.targets = name == "hip", name != "cpp"
        self._include: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        self.units = _MAKERS[name](self, units, cutlass)
        if not (folder / SHARED).exists():
            (folder / "include").mkdir(exist_ok=True)
            (folder / SHARED).write_text(f"#pragma once\n{_BELOW}")
        self.device = "__HIP_DEVICE_COMPILE__" if self.hip else "__CUDA_ARCH__"
        self.configure("", "made")

    # ------------------------------------------------------------ sources

    def small(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """Kernels from templates in shared headers, about a second each."""
        projects.cuda_project(self.folder, units, self.compiler)
        header = self.folder / "include" / "part0.cuh"
        header.write_text(header.read_text().replace("#pragma once\n", '#pragma once\n#include "shared.h"\n'))
        self.flags: tuple[str, ...] = ("-Xcompiler=-fPIC", "-Iinclude", "-O3")
        sources = sorted(path.name for path in (self.folder / "src").iterdir())
        return tuple(Unit(f"src/{name}", ("sm_80",), ("sm_90",)) for name in sources)

    def listed(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """The small ones, whose host and device code read the list of architectures, as ggml's do: one architecture
        more changes all texts, and nothing can be saved."""
        found = self.small(units, cutlass)
        header = self.folder / "include" / "part0.cuh"
        header.write_text(header.read_text() + _LISTED)
        return found

    def cutlass(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """GEMMs for sm_80 and sm_90a, one of them of 8-bit floats, and one for sm_100a."""
        (self.folder / "src").mkdir(parents=True)
        found: list[Unit] = []
        for name, arch, keys in _GEMMS:
            self._gemm(f"{name}_{arch}", arch, keys, str)
            found.append(Unit(f"src/{name}_{arch}.cu", (arch,), ("sm_86",) if arch == "sm_80" else ()))
        self._gemm("half_sm_100a", "sm_90a", {"dtype": "fp16", "tile": (128, 128, 64)}, _blackwell)
        found.append(Unit("src/half_sm_100a.cu", ("sm_100a",), ()))
        self._include = (str(cutlass / "include"),)
        self.flags = (*_CUTLASS_FLAGS, "-Iinclude", f"-I{cutlass / 'include'}")
        return tuple(found[:units] if units else found)

    def heavy(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """CUTLASS GEMMs for sm_80, each of which takes 0.8 GiB to compile."""
        (self.folder / "src").mkdir(parents=True)
        self._include = (str(cutlass / "include"),)
        self.flags = (*_CUTLASS_FLAGS, "-Iinclude", f"-I{cutlass / 'include'}")
        for number in range(units):
            self._gemm(f"heavy_{number}", "sm_80", {"dtype": "fp16"}, str)
        return tuple(Unit(f"src/heavy_{number}.cu", ("sm_80",), ("sm_86",)) for number in range(units))

    def hip_units(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """The small ones in HIP."""
        projects.cuda_project(self.folder, units, self.compiler)
        for path in [*(self.folder / "src").iterdir(), *(self.folder / "include").iterdir()]:
            text = path.read_text().replace("#include <cuda_runtime.h>", "#include <hip/hip_runtime.h>")
            path.unlink()
            if path.name == "part0.cuh":
                text = text.replace("#pragma once\n", '#pragma once\n#include "shared.h"\n')
            path.with_suffix(".hip" if path.suffix == ".cu" else path.suffix).write_text(text)
        self.flags = ("-fPIC", "-Iinclude", "-O3", "-x", "hip")
        sources = sorted(path.name for path in (self.folder / "src").iterdir())
        return tuple(Unit(f"src/{name}", ("gfx906",), ("gfx90a",)) for name in sources)

    def cpp(self, units: int, cutlass: Path) -> tuple[Unit, ...]:
        """Small sources of the host, with some two hundred headers of the system each."""
        (self.folder / "src").mkdir(parents=True)
        for number in range(units):
            (self.folder / "src" / f"unit_{number:04}.cpp").write_text(
                '#include "shared.h"\n#include <cstdio>\n#include <string>\n#include <vector>\n'
                f"std::size_t unit_{number}(std::vector<std::string> const &x) {{ return x.size() * {number}; }}\n"
            )
        self.flags = ("-O0", "-fPIC", "-Iinclude")
        return tuple(Unit(f"src/unit_{number:04}.cpp", (), ()) for number in range(units))

    def _gemm(self, name: str, arch: str, keys: dict[str, object], change: Callable[[str], str]) -> None:
        target = msgspec.convert({"name": name, "where": "", **keys}, GemmTarget)
        symbol = f"{name}_{arch.replace('_', '')}"
        text = '#include "shared.h"\n' + change(kernel_text(kernel_for(target, arch), symbol).decode())
        (self.folder / "src" / f"{name}.cu").write_text(text)

    # ------------------------------------------------------------ descriptions

    def arch_flags(self, archs: Sequence[str]) -> list[str]:
        if self.hip or not archs:
            return [f"--offload-arch={arch}" for arch in archs]
        # PTX for the last, as buildd's own targets have it.
        *others, last = (arch.removeprefix("sm_") for arch in archs)
        return [
            *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in others),
            f"-gencode=arch=compute_{last},code=[sm_{last},compute_{last}]",
        ]

    def configure(self, launcher: str, made: str, *, added: bool = False) -> None:
        """Write build.ninja and buildd.toml.

        Args:
            launcher: stands before each command.
            made: folder of the outputs.
            added: with one more architecture.
        """
        lines = [
            f"builddir = {made}",
            "rule compile",
            f"  command = {launcher} {self.compiler} -c $archs {' '.join(self.flags)} -MD -MF $out.d -o $out $in",
            "  deps = gcc",
            "  depfile = $out.d",
        ]
        by_archs: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for unit in self.units:
            archs = (*unit.archs, *(unit.added if added else ()))
            by_archs.setdefault((unit.archs, archs), []).append(unit.source)
            lines += [
                f"build {self.object(made, unit)}: compile {unit.source}",
                f"  archs = {' '.join(self.arch_flags(archs))}",
            ]
        (self.folder / "build.ninja").write_text("\n".join(lines) + "\n")
        tool, home = "hip" if self.hip else "cuda", self.compiler.parents[1]
        text = f'[toolchain]\n{tool} = "{home}"\n'
        include = ", ".join(f'"{folder}"' for folder in ("include", *self._include))
        flags = ", ".join(f'"{flag}"' for flag in self.flags if not re.match(r"-I|-x$|hip$|.*-fPIC", flag))
        for (first, archs), sources in by_archs.items():
            quoted = ", ".join(f'"{source}"' for source in sources)
            names = ", ".join(f'"{arch}"' for arch in archs)
            text += (
                f'[target.{"_".join(first)}]\nkind = "{tool}"\noutput = "object"\nsources = [{quoted}]\n'
                f"arch = [{names}]\ninclude = [{include}]\nflags = [{flags}]\n"
            )
        (self.folder / "buildd.toml").write_text(text)

    def object(self, made: str, unit: Unit) -> str:
        return f"{made}/{os.path.basename(unit.source)}.o"

    # ------------------------------------------------------------ edits

    def comment(self) -> None:
        """One more line of comment in the shared header: everything below it moves."""
        self._insert(SHARED, "// one more comment, {}\n")

    def comment_text(self) -> None:
        """Other words in a comment of the shared header: no line moves."""
        file = self.folder / SHARED
        text = file.read_text().partition(" // words ")[0].rstrip("\n")
        self._numbers[SHARED] = number = self._numbers.get(SHARED, 100) + 1
        file.write_text(f"{text} // words {number}\n")

    def touch(self) -> None:
        (self.folder / SHARED).touch()

    def touch_sources(self) -> None:
        for unit in self.units:
            (self.folder / unit.source).touch()

    def host(self) -> None:
        """Another value of host code in the shared header."""
        self._insert(SHARED, self._host_code("shared"), replace=True)

    def host_one(self) -> None:
        """The same in one source."""
        self._insert(self.units[0].source, self._host_code("unit"), replace=True)

    def change_one(self) -> None:
        """Another kernel in one source."""
        text = 'extern "C" __global__ void changed(int *x) {{ x[threadIdx.x] = {}; }}\n'
        self._insert(self.units[0].source, text, replace=True)

    def _host_code(self, where: str) -> str:
        return f"#ifndef {self.device}\n__attribute__((weak)) int host_of_{where}() {{{{ return {{}}; }}}}\n#endif\n"

    def _insert(self, path: str, text: str, *, replace: bool = False) -> None:
        """Put a text with another number behind a file's includes, or at its end in the place of the last one."""
        file = self.folder / path
        number = self._numbers.get(path, 100) + 1
        content = file.read_text()
        if replace:
            before = re.escape(text).replace(r"\{\{", r"\{").replace(r"\}\}", r"\}")
            content = re.sub(before.replace(r"\{\}", r"\d+"), "", content) + text.format(number)
        else:
            content = content.replace("#pragma once\n", "#pragma once\n" + text.format(number), 1)
        self._numbers[path] = number
        file.write_text(content)


_MAKERS: dict[str, Callable[[Corpus, int, Path], tuple[Unit, ...]]] = {
    "small": Corpus.small,
    "listed": Corpus.listed,
    "cutlass": Corpus.cutlass,
    "hip": Corpus.hip_units,
    "cpp": Corpus.cpp,
    "heavy": Corpus.heavy,
}
NAMES = ("small", "listed", "cutlass", "heavy", "hip", "cpp")
UNITS = {"small": 64, "listed": 16, "cutlass": 0, "heavy": 24, "hip": 16, "cpp": 64}
"""How many sources there are unless told otherwise; 0 for all."""


def _blackwell(text: str) -> str:
    """A GEMM for sm_90a as one for sm_100a."""
    text = text.replace("cutlass::arch::Sm90", "cutlass::arch::Sm100")
    # Its own headers are sm_90a's alone.
    text = re.sub(r'#include "cutlass/gemm/\S*sm90_\S*"\n', "", text)
    text = text.replace("collective_builder_decl.hpp", "collective_builder.hpp")
    text = text.replace("kernel/gemm_universal_decl.h", "kernel/gemm_universal.hpp")
    text = re.sub(
        r"cutlass::epilogue::TmaWarpSpecialized\w*", "cutlass::epilogue::collective::EpilogueScheduleAuto", text
    )
    return re.sub(r"cutlass::gemm::KernelTmaWarpSpecialized\w*", "cutlass::gemm::collective::KernelScheduleAuto", text)
