"""The project of `edits` as a foreign build has it: commands instead of targets, plain C++ beside CUDA, a toolkit
of its own that can be upgraded, and edits that only a preprocessor, a line number or a clock can see.

Knows what the plain compilers make of it, and nothing of what is tested.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.edits import SOURCE, Edit, EditedProject
from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.objects import Names, described, differences
from tests.support.toolkit import copy_toolkit

TAIL = """
#include "odd.h"
#ifndef ODD
#define ODD 0
#endif
#ifndef ODD_HOST
#define ODD_HOST ODD
#endif
#ifndef TOOLKIT
#define TOOLKIT 0
#endif
extern "C" __global__ void odd_kernel_UNIT(int *x) { x[0] = ODD; x[2] = TOOLKIT; }
extern "C" int odd_host_UNIT() { int x[2] = {}; (void) x; return ODD_HOST + TOOLKIT; }
"""
PLAIN = """
#define __global__
#define __device__
#define __shared__
#define DEVICE 0
"""
DEVICE = "#ifdef __CUDACC__\n{}\n#endif\n"

# N stands for another number each time.
ODDITIES: Mapping[str, str] = {
    "nothing": "",
    "a value": "#define ODD N",
    "a host lambda": (
        "inline int odd(int x) { auto f = [x](int y) { return x * y + N; }; return f(x + 1); }\n"
        'extern "C" int odd_host_helper(int);\n#define ODD_HOST odd(odd_host_helper(1))'
    ),
    "a device lambda": DEVICE.format(
        "__device__ inline int odd(int x) { auto f = [=](int y) { return x * y + N; }; return f(x + 1); }\n"
        "#define ODD odd(x[1])\n#define ODD_HOST N"
    ),
    "an extended lambda": DEVICE.format(
        "#ifdef __CUDACC_EXTENDED_LAMBDA__\n"
        "template <class F> __global__ void odd_apply(F f, int *x) { x[0] = f(1); }\n"
        "inline void odd_launch(int *x) {\n"
        "  odd_apply<<<1, 1>>>([=] __device__(int y) { return y + N + __LINE__; }, x);\n"
        "}\n#define ODD_HOST (odd_launch(x), 1)\n#define ODD N\n#endif"
    ),
    "its line": "#define ODD __LINE__",
    "its builtin line": "#define ODD __builtin_LINE()",
    "its source location": (
        "#if __cplusplus >= 202002L\n#include <source_location>\n"
        "#define ODD_HOST ((int) std::source_location::current().line())\n#endif"
    ),
    "its file": (
        "inline char const *odd() { return __FILE__; }\n#define ODD_HOST odd()[1]\n#define ODD (int) sizeof __FILE__"
    ),
    "an assertion": ("#include <cassert>\n#define ODD (assert(x[1] == N), 1)\n#define ODD_HOST (assert(x[1] == N), 1)"),
    "a counter": "#define ODD (__COUNTER__ + N)",
    "its date": "inline char const *odd() { return __DATE__; }\n#define ODD_HOST odd()[1]",
    "its time": (
        "#ifdef TIMED\ninline char const *odd() { return __DATE__ __TIME__; }\n#define ODD_HOST odd()[1]\n#endif"
    ),
    "its time stamp": "inline char const *odd() { return __TIMESTAMP__; }\n#define ODD_HOST odd()[1]",
    "an embedded file": (
        '#ifndef __CUDA_ARCH__\nasm(".pushsection .rodata\\n.incbin \\"data/blob\\"\\n.popsection");\n#endif'
    ),
    "a hidden variable": DEVICE.format(
        "static __device__ int odd_hidden = N;\n"
        "namespace { __global__ void odd_secret(int *x) { x[0] = odd_hidden; } }\n"
        "inline void odd_launch(int *x) { odd_secret<<<1, 1>>>(x); }\n#define ODD odd_hidden\n"
        "#define ODD_HOST (odd_launch(x), 1)"
    ),
    "a template": (
        "template <int K> struct Odd { enum { value = (K * Odd<K - 1>::value + N) % 1009 }; };\n"
        "template <> struct Odd<0> { enum { value = 1 }; };\n#define ODD Odd<7>::value"
    ),
    "a raw string": (
        'inline char const *odd() { return R"(number N\n\n  // no comment\nthe last)"; }\n#define ODD_HOST odd()[9]'
    ),
    "another line": '#define ODD __LINE__\n#line N "elsewhere.h"',
    "a warning": "#warning number N",
    "an unused variable": "static inline int odd() { int odd_N; return 1; }\n#define ODD_HOST odd()",
    "a message": '#pragma message "number N"',
    "shared memory": DEVICE.format(
        "__device__ inline int odd(int *x) { __shared__ int s[N]; s[x[1]] = x[2]; return s[x[3]]; }\n"
        "#define ODD odd(x)\n#define ODD_HOST 0"
    ),
    "launch bounds": DEVICE.format(
        "template <int K> __global__ void __launch_bounds__(K) odd_bounded(int *x) { x[0] = K; }\n"
        "template __global__ void odd_bounded<N>(int *);"
    ),
    "inline assembly": DEVICE.format(
        '__device__ inline int odd() { int x; asm volatile("// number N\\n\\tmov.u32 %0, N;" : "=r"(x)); return x; }\n'
        "#define ODD odd()\n#define ODD_HOST 0"
    ),
    "for the device": "#ifdef __CUDA_ARCH__\n#define ODD N\n#endif",
    "for the host": "#ifndef __CUDA_ARCH__\n#define ODD N\n#endif",
    "for one architecture": "#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900\n#define ODD N\n#endif",
}
BROKEN: Mapping[str, str] = {
    "a host error": "#ifndef __CUDA_ARCH__\nint odd_broken = ;\n#endif",
    "a device error": "#ifdef __CUDA_ARCH__\n__device__ int odd_broken() { return odd_undeclared_N; }\n#endif",
    "an assembler error": DEVICE.format(
        'template <int K> __global__ void odd_bad() { asm("nonsense_N;"); }\ntemplate __global__ void odd_bad<1>();'
    ),
    "a missing header": '#include "odd_missing_N.h"',
    "an error directive": "#error number N",
}
"""What does not compile everywhere: the next edit takes it away again."""
NVCC_FLAGS = (
    "-lineinfo",
    "-Xptxas=-v",
    "-Xptxas=-O1",
    "-Xcompiler=-Wall",
    "--expt-relaxed-constexpr",
    "--extended-lambda",
    "-use_fast_math",
    "-maxrregcount=40",
)
GXX_FLAGS = ("-g", "-Wall", "-ffast-math", "-fno-inline", "-march=x86-64-v2")
FLAGS = ("-DNDEBUG", "-std=c++20", "-w", "-Iinc0", '-DNAME="a b"')
ARCHITECTURES = (("sm_80",), ("sm_86",), ("sm_90",), ("sm_80", "sm_90"), ("sm_80", "sm_86"))
_DEADLINE_S = 900.0
_LINKED = ("library", "shared library", "output", "source added", "wrapper edited")
"""Edits that a compile does not see, or that are made here in another way."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compile came to."""

    status: int
    stdout: str
    stderr: str
    object: bytes
    headers: frozenset[str]
    """Without those that one depfile may have more than the other; as normal absolute paths."""


class EditedForeignProject(EditedProject):
    """The project.

    Args:
        folder: it is made there.
        nvcc: of a real toolkit; empty where there is only a host compiler.
        real: that toolkit is copied there.
        units: CUDA sources.
    """

    def __init__(
        self, folder: Path, nvcc: str, real: Path, rng: random.Random, units: tuple[str, ...] = ("a",)
    ) -> None:
        self.level = 1
        self.more: set[str] = set()
        self.relocatable = False
        self.oddity = "nothing"
        self.real = real
        self.source_path = "src"
        cuobjdump = ""
        if nvcc:
            given = Path(nvcc).parents[1]
            copy_toolkit(given, self.real, "include/cuda_runtime.h")
            self._assembler = str(given / "bin" / "ptxas")
            self._runtime_header = (given / "include" / "cuda_runtime.h").read_text()
            cuobjdump = str(Path(nvcc).with_name("cuobjdump"))
        super().__init__(folder, "cuda", str(self.real / "bin" / "nvcc"), cuobjdump, rng, units if nvcc else ())
        for sub in ("inc0", "data", "out", "clean"):
            (folder / sub).mkdir()
        self.write("data/blob", "blob 1")
        self.write("inc1/odd.h", "\n")
        self.plain_unit()

    # ------------------------------------------------------------ the project

    def move(self, folder: Path) -> None:
        """Have the project, with all that was made in it, in another folder."""
        former = str(self.folder)
        self.folder = self.folder.rename(folder)
        self.source_path = self.source_path.replace(former, str(folder))
        self.environment = {name: value.replace(former, str(folder)) for name, value in self.environment.items()}

    def unit(self, name: str) -> None:
        super().unit(name)
        place = self.folder / f"src/{name}.cu"
        place.write_text(place.read_text() + TAIL.replace("UNIT", name))

    def plain_unit(self) -> None:
        text = (SOURCE + TAIL).replace("UNIT", "plain").replace("DEVICE_PASS", "__CUDA_ARCH__")
        self.write("src/plain.cpp", f"// {self.fresh()}\n" + text.replace("PRELUDE", PLAIN).replace("NEWER_PASS", "0"))

    def output(self) -> str:
        return f'output = "object"\nrdc = {"true" if self.relocatable else "false"}\n'

    def flags(self) -> list[str]:
        return [f"-O{self.level}", *super().flags()[1:], *sorted(self.more - {*GXX_FLAGS})]

    def _host_flags(self) -> list[str]:
        return [f"-O{self.level}", *super().flags()[1:], *sorted(self.more - {*NVCC_FLAGS})]

    def sources(self) -> list[str]:
        return [path.name for path in sorted((self.folder / "src").iterdir()) if path.suffix in (".cu", ".cpp")]

    def command(self, source: str, made: str) -> list[str]:
        """The compile of a source into the folder `made`."""
        stem = f"{made}/{source}"
        common = [f"-DDEFINED={self.define}", "-Iinc1", "-Iinc2"]
        if source.endswith(".cu"):
            rdc = ["-rdc=true"] if self.relocatable else []
            start = ["nvcc", "-c", *rdc, *self.arch_flags(), "-Xcompiler=-fPIC", *common, *self.flags()]
        else:
            start = ["g++", "-c", "-fPIC", *common, *self._host_flags()]
        return [*start, "-MD", "-MT", "target", "-MF", f"{stem}.d", "-o", f"{stem}.o", f"{self.source_path}/{source}"]

    def state(self, source: str) -> str:
        """A digest of everything that the compile of a source may depend on."""
        digest = hashlib.sha256()
        other = {f"src/{name}" for name in self.sources()} - {f"src/{source}"}
        paths = [*self.everything(), *(self.real / name for name in ("bin/ptxas", "include/cuda_runtime.h"))]
        for path in paths:
            name = os.path.relpath(path, self.folder)
            if name in other or name == "buildd.toml" or not os.path.lexists(path):
                continue
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            stamped = b"__TIMESTAMP__" in content
            digest.update(repr((name, path.is_symlink(), stamped and path.stat().st_mtime, content)).encode())
        today = time.strftime("%F")
        digest.update(repr((self.command(source, ""), sorted(self.environment.items()), today)).encode())
        return digest.hexdigest()

    def everything(self) -> Iterator[Path]:
        """Files and links of the project, without what is made."""
        for folder, folders, files in os.walk(self.folder):
            folders[:] = sorted(set(folders) - {"out", "clean", "build", "again"})
            for name in sorted(files):
                yield Path(folder, name)

    # ------------------------------------------------------------ the edits

    def edits(self) -> dict[str, Edit]:
        found = {name: edit for name, edit in super().edits().items() if not name.startswith(_LINKED)}
        cuda = bool(self.cuobjdump)
        if not cuda:
            del found["source edited"]
        more = [
            *(Edit(f"odd.h has {name}", lambda name=name: self._odd(name, ODDITIES[name])) for name in ODDITIES),
            *(Edit(f"odd.h has {name}", lambda name=name: self._odd(name, BROKEN[name])) for name in BROKEN),
            *(Edit(f"flag {flag}", lambda flag=flag: self._flag(flag)) for flag in (*FLAGS, *GXX_FLAGS)),
            Edit("the same odd.h with another number", lambda: self._odd(self.oddity, ODDITIES[self.oddity])),
            Edit("level", lambda: self._level()),
            Edit("plain source edited", self.plain_unit),
            Edit("comment line", lambda: self._line("// comment {}")),
            Edit("comment over lines", lambda: self._line("/* comment {}\n   goes on */")),
            Edit("blank line", lambda: self._line("")),
            Edit("comment behind", self._behind),
            Edit("comment between tokens", self._between),
            Edit("comment changed", self._comment),
            Edit("comment that a warning reads", lambda: self._line("// falls through {}")),
            Edit("blanks behind", lambda: self._blanks()),
            Edit("embedded file", lambda: self.write("data/blob", f"blob {self.fresh()}")),
            Edit("SOURCE_DATE_EPOCH", self._epoch),
            Edit("absolute paths", self._absolute),
            Edit("second.h in a folder that was empty", lambda: self._copy("second", "inc0/second.h")),
        ]
        if cuda:
            more += [
                *(Edit(f"flag {flag}", lambda flag=flag: self._flag(flag)) for flag in NVCC_FLAGS),
                *(
                    Edit(f"architectures {' '.join(archs)}", lambda archs=archs: self._architectures(archs))
                    for archs in ARCHITECTURES
                ),
                Edit("relocatable code", self._relocate),
                Edit("driver upgraded", lambda: self.wrapper(self.fresh())),
                Edit("assembler upgraded", self._upgrade_assembler),
                Edit("toolkit's header upgraded", self._upgrade_header),
            ]
        found |= {edit.name: edit for edit in more}
        return {
            name: Edit(name, lambda edit=edit: self._first_mended(edit), edit.neutral) for name, edit in found.items()
        }

    def _first_mended(self, edit: Edit) -> None:
        if re.search(r"broken|nonsense|missing_|#error", (self.folder / "inc1/odd.h").read_text()):
            self._odd("nothing", "")
        if not (self.folder / self.homes["common"]).exists():
            self.value("common")
        edit.do()

    def _odd(self, name: str, text: str) -> None:
        self.oddity = name
        self.write("inc1/odd.h", re.sub(r"\bN\b|(?<=_)N\b", str(self.fresh()), text) + "\n")

    def _flag(self, flag: str) -> None:
        self.more ^= {flag}
        self.describe()

    def _relocate(self) -> None:
        self.relocatable = not self.relocatable
        self.describe()

    def _level(self) -> None:
        self.level = self.rng.choice([level for level in range(4) if level != self.level])
        self.describe()

    def _architectures(self, archs: tuple[str, ...]) -> None:
        self.archs = archs
        self.describe()

    def _edited_file(self) -> Path:
        files = [path for path in self.everything() if path.suffix in (".h", ".cu", ".cpp") and not path.is_symlink()]
        return self.rng.choice(files)

    def _line(self, text: str) -> None:
        """Another line anywhere, so that all below it move."""
        file = self._edited_file()
        lines = file.read_text().split("\n")
        places = [number for number in range(len(lines)) if number == 0 or not lines[number - 1].endswith("\\")]
        lines.insert(self.rng.choice(places), text.format(self.fresh()))
        self.write(os.path.relpath(file, self.folder), "\n".join(lines))

    def _behind(self) -> None:
        """Another comment behind a line, or there instead of the last one: no line moves."""
        file = self._edited_file()
        lines = file.read_text().split("\n")
        number = self.rng.choice([n for n, line in enumerate(lines) if not line.endswith("\\")])
        lines[number] = f"{lines[number].partition(' // behind ')[0]} // behind {self.fresh()}"
        self.write(os.path.relpath(file, self.folder), "\n".join(lines))

    def _between(self) -> None:
        """Another comment for a blank: columns move, and no line."""
        file = self._edited_file()
        text = re.sub(r"/\* between \d+ \*/", " ", file.read_text())
        blanks = [match.start() for match in re.finditer(r"(?<=[;,(]) (?=\w)", text)]
        if blanks:
            place = self.rng.choice(blanks)
            text = f"{text[:place]}/* between {self.fresh()} */{text[place + 1 :]}"
        self.write(os.path.relpath(file, self.folder), text)

    def _comment(self) -> None:
        """Other words in a comment, or in what only looks like one."""
        file = self._edited_file()
        text = file.read_text()
        places = [match.end() for match in re.finditer(r"//|/\*", text)]
        if places:
            place = self.rng.choice(places)
            text = f"{text[:place]} other {self.fresh()} {text[place:]}"
        self.write(os.path.relpath(file, self.folder), text)

    def _blanks(self) -> None:
        file = self._edited_file()
        lines = file.read_text().split("\n")
        number = self.rng.choice([n for n, line in enumerate(lines) if not line.endswith("\\")])
        lines[number] = lines[number].rstrip() + self.rng.choice(("", " ", "\t ", "   "))
        self.write(os.path.relpath(file, self.folder), "\n".join(lines))

    def _epoch(self) -> None:
        self.variable("SOURCE_DATE_EPOCH", str(1_700_000_000 + 100_000 * self.fresh()))
        # Without it the time of two compiles is never the same.
        self.more = self.more ^ {"-DTIMED"} if "SOURCE_DATE_EPOCH" in self.environment else self.more - {"-DTIMED"}
        self.describe()

    def _absolute(self) -> None:
        self.source_path = "src" if self.source_path != "src" else str(self.folder / "src")

    def _upgrade_assembler(self) -> None:
        place = self.real / "bin" / "ptxas"
        place.unlink()
        cache = self.rng.choice(("cs", "cg", "wt"))
        place.write_text(f'#!/bin/sh\n# {self.fresh()}\nexec {self._assembler} --def-store-cache={cache} "$@"\n')
        place.chmod(0o755)

    def _upgrade_header(self) -> None:
        place = self.real / "include" / "cuda_runtime.h"
        place.write_text(f"{self._runtime_header}\n#undef TOOLKIT\n#define TOOLKIT {self.fresh()}\n")

    # ------------------------------------------------------------ what comes out

    def compiled(self, foreign: ForeignProject, environ: Mapping[str, str], source: str, made: str) -> Compiled:
        """Compile a source with the tools that an environment has, into a folder of the project."""
        place = self.folder / made / f"{source}.o"
        depfile = place.with_suffix(".d")
        command = self.command(source, made)
        # A campaign runs on busy machines too.
        done = foreign.call(*command, environ={**environ, **self.environment}, cwd=self.folder, timeout_s=_DEADLINE_S)
        built = done.returncode == 0
        headers = prerequisites(depfile.read_bytes())[1] if built else []
        return Compiled(
            done.returncode,
            self._said(done.stdout, made),
            self._said(done.stderr, made),
            place.read_bytes() if built else b"",
            frozenset(os.path.normpath(self.folder / header) for header in headers),
        )

    def _said(self, text: bytes, made: str) -> str:
        said = text.decode(errors="replace").replace(f"{made}/", "made/")
        said = re.sub(
            r"(_GLOBAL__N__|__nv_static_\d+__)[0-9a-f]{8}_\d+_[a-z]_cu_(?:[0-9a-f]{8}|kernel_[a-z])", r"\1ID", said
        )
        said = re.sub(r"(?:/[^\s:\"']*/)?(tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_|job-\w+/)", "", said)
        said = re.sub(r"/tmp/(?=[a-z]\.(?:compute_\w+\.)?ptx\b)", "", said)
        said = re.sub(r"(?<=\bptxas [a-z])\.compute_\w+(?=\.ptx,)", "", said)
        return re.sub(r"Compile time = [\d.]+ ms", "Compile time", said)

    def faults(self, source: str, ours: Compiled, theirs: Compiled, ours_at: Path, theirs_at: Path) -> list[str]:
        """In what ours is not as theirs; empty where it is."""
        found = [name for name in ("status", "stdout", "stderr") if getattr(ours, name) != getattr(theirs, name)]
        if theirs.status == 0 == ours.status:
            # nvcc's own depfile does not have what only the device pass reads.
            missing = theirs.headers - ours.headers
            extra = {
                path for path in ours.headers - theirs.headers if not source.endswith(".cu") or not os.path.exists(path)
            }
            found += [f"depfile without {path}" for path in sorted(missing)]
            found += [f"depfile with {path}" for path in sorted(extra)]
            found += self.object_faults(source, ours_at, theirs_at)
        return found

    def object_faults(self, source: str, ours_at: Path, theirs_at: Path) -> list[str]:
        if ours_at.read_bytes() == theirs_at.read_bytes():
            return []
        if source.endswith(".cpp"):
            return ["bytes"]
        names = Names(
            tuple(f"{name}_{Path(source).stem}" for name in ("kernel", "host", "call", "odd_kernel", "odd_host"))
        )
        ours, theirs = (described(path, self.cuobjdump, names) for path in (ours_at, theirs_at))
        return differences(ours, theirs)
