"""A small project full of ways to find a header, edits of it, and what a clean build of it makes.

For campaigns and tests that look for stale results.

Knows the compilers' own command lines, so that what is right does not come from what is tested.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.objects import described

VALUES = ("common", "second", "local", "device", "newer", "host", "chosen", "up", "linked", "forced", "late", "next")
SOURCE = """
#include <inttypes.h>
PRELUDE
#include "common.h"
#include <second.h>
#include "local.h"
#include CHOSEN
#include "../shared/up.h"
#include "linked.h"
#include <late.h>
#include <next.h>
#if __has_include("optional.h")
#include "optional.h"
#define HAS_OPTIONAL OPTIONAL
#else
#define HAS_OPTIONAL 0
#endif
#ifdef DEVICE_PASS
#include "device.h"
#if NEWER_PASS
#include "newer.h"
#else
#define NEWER 0
#endif
#define PASS DEVICE
#else
#include "host.h"
#define NEWER 0
#define PASS HOST
#endif
#ifndef EXTRA
#define EXTRA 0
#endif
#ifndef SHADOWED
#define SHADOWED 0
#endif
#ifndef WRAPPED
#define WRAPPED 0
#endif
#define TAKE(x) { x[0] = COMMON; x[1] = SECOND; x[2] = LOCAL; x[3] = CHOSEN_VALUE; x[4] = UP; x[5] = LINKED; \\
    x[6] = LATE; x[7] = NEXT; x[8] = HAS_OPTIONAL; x[9] = PASS; x[10] = NEWER; x[11] = EXTRA; x[12] = SHADOWED; \\
    x[13] = FORCED; x[14] = DEFINED; x[15] = WRAPPED; }
extern "C" __global__ void kernel_UNIT(int *x) TAKE(x)
extern "C" void host_UNIT(int *x) TAKE(x)
extern "C" int helper();
extern "C" int call_UNIT() { return helper(); }
"""


@dataclass(frozen=True, slots=True)
class Edit:
    name: str
    do: Callable[[], object]
    neutral: bool = False
    """It changes nothing that a compiler reads: nothing may be compiled again."""


class EditedProject:
    """The project.

    Args:
        folder: it is made there.
        kind: "cuda" or "hip".
        compiler: nvcc or hipcc, absolute.
        cuobjdump: for kind "cuda".
        units: names of the sources.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        compiler: str,
        cuobjdump: str,
        rng: random.Random,
        units: tuple[str, ...] = ("a", "b"),
    ) -> None:
        self.folder, self.kind, self.compiler, self.cuobjdump, self.rng = folder, kind, compiler, cuobjdump, rng
        self.environment: dict[str, str] = {}
        self.define = 1
        self.archs: tuple[str, ...] = ("sm_80", "sm_90") if kind == "cuda" else ("gfx906", "gfx90a")
        self._number = 100
        self._before: dict[str, bytes] = {}
        for sub in ("src", "inc1", "inc2", "inc3", "sys", "pre", "cpath", "shared", "lib1", "lib2", "toolkit/bin"):
            (folder / sub).mkdir(parents=True)
        self.homes = {
            "common": "inc1/common.h",
            "second": "inc2/second.h",
            "local": "inc2/local.h",
            "device": "inc1/device.h",
            "newer": "inc2/newer.h",
            "host": "inc1/host.h",
            "up": "shared/up.h",
            "forced": "inc1/forced.h",
            "late": "sys/late.h",
            "next": "inc2/next.h",
            "linked": "inc1/linked_1.h",
        }
        for name in self.homes:
            self.value(name)
        self.write("inc1/next.h", "#include_next <next.h>\n")
        self.write("inc1/linked_2.h", "#define LINKED 9\n")
        (folder / "inc1/linked.h").symlink_to("linked_1.h")
        self.write("inc2/chosen.h", "#define CHOSEN_VALUE 1\n")
        for unit in units:
            self.unit(unit)
        self.library("lib2", 1)
        self.wrapper(1)
        self.describe()

    # ------------------------------------------------------------ what the edits do

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        if file.is_file():
            self._before[path] = file.read_bytes()
        file.write_text(text)

    def fresh(self) -> int:
        self._number += 1
        return self._number

    def value(self, name: str, path: str = "") -> None:
        self.write(path or self.homes[name], f"#define {name.upper()} {self.fresh()}\n")

    def unit(self, name: str) -> None:
        device, newer, prelude = (
            ("__CUDA_ARCH__", "__CUDA_ARCH__ >= 900", "")
            if self.kind == "cuda"
            else ("__HIP_DEVICE_COMPILE__", "defined(__gfx90a__)", "#include <hip/hip_runtime.h>")
        )
        text = SOURCE.replace("UNIT", name).replace("DEVICE_PASS", device).replace("NEWER_PASS", newer)
        self.write(f"src/{name}.{self.suffix}", f"// {self.fresh()}\n" + text.replace("PRELUDE", prelude))

    @property
    def suffix(self) -> str:
        return "cu" if self.kind == "cuda" else "hip"

    def library(self, folder: str, number: int, shared: bool = False) -> None:
        source, target = self.folder / "helper.c", self.folder / folder / ("libhelper.so" if shared else "libhelper.a")
        source.write_text(f"int helper(void) {{ return {number}; }}\n")
        if shared:
            subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", target], check=True)
        else:
            subprocess.run(["gcc", "-c", "-fPIC", source, "-o", source.with_suffix(".o")], check=True)
            target.unlink(missing_ok=True)
            subprocess.run(["ar", "rcsD", target, source.with_suffix(".o")], check=True)
            source.with_suffix(".o").unlink()
        source.unlink()

    def wrapper(self, number: int) -> None:
        path = self.folder / "toolkit/bin" / Path(self.compiler).name
        path.write_text(f'#!/bin/sh\nexec {self.compiler} -DWRAPPED={number} "$@"\n')
        path.chmod(0o755)

    def describe(self) -> None:
        tool = "cuda" if self.kind == "cuda" else "hip"
        archs = ", ".join(f'"{arch}"' for arch in self.archs)
        quoted = ", ".join(f"'{flag}'" for flag in self.flags())
        # Not by `write`: a description of other flags than ours is nothing to go back to.
        (self.folder / "buildd.toml").write_text(
            f'[toolchain]\n{tool} = "toolkit"\n[target.t]\nkind = "{self.kind}"\nsources = ["src/*.{self.suffix}"]\n'
            f'arch = [{archs}]\ninclude = ["inc1", "inc2"]\ndefine = ["DEFINED={self.define}"]\nflags = [{quoted}]\n'
            f"{self.output()}"
        )

    def output(self) -> str:
        """The lines of the target that say what is made of the objects."""
        return 'link_flags = ["-Llib1", "-Llib2"]\nlibraries = ["helper"]\n'

    def flags(self) -> list[str]:
        """Flags of every compile."""
        return ["-O1", '-DCHOSEN="chosen.h"', "-isystem", "sys", "-Iinc3", "-include", "forced.h"]

    def toggle(self, path: str, text: Callable[[], str]) -> None:
        file = self.folder / path
        if file.exists():
            file.unlink()
        else:
            self.write(path, text())

    def variable(self, name: str, value: str) -> None:
        if name in self.environment:
            del self.environment[name]
        else:
            self.environment[name] = value

    # ------------------------------------------------------------ the edits

    def edits(self) -> dict[str, Edit]:
        """Every edit by name. Those that toggle undo themselves when they come again."""
        append = "NVCC_APPEND_FLAGS" if self.kind == "cuda" else "HIPCC_COMPILE_FLAGS_APPEND"
        found = [
            *(Edit(f"value of {name}", lambda name=name: self.value(name)) for name in self.homes),
            Edit("same size and time", self._quiet),
            Edit("touched", self._touch, neutral=True),
            Edit("swapped", self._swap),
            Edit("reverted", self._revert),
            Edit("second.h in the first folder", lambda: self._copy("second", "inc1/second.h")),
            Edit("local.h beside the source", lambda: self._copy("local", "src/local.h")),
            Edit("late.h in -I behind -isystem", lambda: self._copy("late", "inc3/late.h")),
            Edit("forced.h in the working folder", lambda: self._copy("forced", "forced.h")),
            Edit("optional.h", lambda: self.toggle("inc2/optional.h", lambda: f"#define OPTIONAL {self.fresh()}\n")),
            Edit("up.h through another folder", lambda: self._copy("up", "src/up.h"), neutral=True),
            Edit("link turned", self._turn),
            Edit("system header shadowed", lambda: self._shadow("inc1")),
            Edit("system header shadowed on CPATH", lambda: self._shadow("cpath")),
            Edit("second.h on the flags of the environment", lambda: self._copy("second", "pre/second.h")),
            Edit("flags of the environment", lambda: self.variable(append, f"-DEXTRA={self.fresh()}")),
            Edit("folder on the flags of the environment", lambda: self.variable(self._prepend, "-Ipre")),
            Edit("CPATH", lambda: self.variable("CPATH", str(self.folder / "cpath"))),
            Edit("CPLUS_INCLUDE_PATH", lambda: self.variable("CPLUS_INCLUDE_PATH", str(self.folder / "cpath"))),
            Edit("define", self._define),
            Edit("header removed", self._remove),
            Edit("source edited", lambda: self.unit("a")),
            Edit("source added", self._unit),
            Edit("folder exchanged", self._exchange),
            Edit("library member", lambda: self.library("lib2", self.fresh())),
            Edit("library in the first folder", lambda: self._library("lib1/libhelper.a", False)),
            Edit("shared library in the second folder", lambda: self._library("lib2/libhelper.so", True)),
            Edit("wrapper edited", lambda: self.wrapper(self.fresh())),
            Edit("outputs removed", lambda: shutil.rmtree(self.folder / "build", ignore_errors=True), neutral=True),
            Edit("output damaged", self._damage, neutral=True),
        ]
        return {edit.name: edit for edit in found}

    @property
    def _prepend(self) -> str:
        return "NVCC_PREPEND_FLAGS" if self.kind == "cuda" else "HIPCC_COMPILE_FLAGS_APPEND"

    def _header(self) -> Path:
        return self.folder / self.homes[self.rng.choice(list(self.homes))]

    def _quiet(self) -> None:
        file = self._header()
        if file.exists():
            status = file.stat()
            text = file.read_text()
            self.value(next(n for n, path in self.homes.items() if self.folder / path == file))
            if len(text) == file.stat().st_size:  # else the number has a digit more: an edit as others
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _touch(self) -> None:
        for file in self.files():
            file.touch()

    def _swap(self) -> None:
        one, two, aside = self.folder / "inc1/linked_1.h", self.folder / "inc1/linked_2.h", self.folder / "aside"
        one.rename(aside)
        two.rename(one)
        aside.rename(two)

    def _revert(self) -> None:
        if self._before:
            path = self.rng.choice(list(self._before))
            self.write(path, self._before[path].decode())

    def _copy(self, name: str, path: str) -> None:
        self.toggle(path, lambda: f"#define {name.upper()} {self.fresh()}\n")

    def _shadow(self, folder: str) -> None:
        text = f"#include_next <inttypes.h>\n#undef SHADOWED\n#define SHADOWED {self.fresh()}\n"
        self.toggle(f"{folder}/inttypes.h", lambda: text)

    def _turn(self) -> None:
        link = self.folder / "inc1/linked.h"
        target = "linked_2.h" if os.readlink(link) == "linked_1.h" else "linked_1.h"
        link.unlink()
        link.symlink_to(target)

    def _define(self) -> None:
        self.define += 1
        self.describe()

    def _remove(self) -> None:
        file = self.folder / self.homes["common"]
        if file.exists():
            file.unlink()
        else:
            self.value("common")

    def _unit(self) -> None:
        file = self.folder / f"src/c.{self.suffix}"
        if file.exists():
            file.unlink()
        else:
            self.unit("c")

    def _exchange(self) -> None:
        """Another version of a whole folder, whose files are old."""
        other, here = self.folder / "inc2_other", self.folder / "inc2"
        if not other.exists():
            shutil.copytree(here, other)
            (other / "chosen.h").write_text(f"#define CHOSEN_VALUE {self.fresh()}\n")
        here.rename(self.folder / "aside")
        other.rename(here)
        (self.folder / "aside").rename(other)

    def _library(self, path: str, shared: bool) -> None:
        if (self.folder / path).exists():
            (self.folder / path).unlink()
        else:
            self.library(os.path.dirname(path), self.fresh(), shared)

    def _damage(self) -> None:
        for file in sorted((self.folder / "build").rglob("*.o")):
            file.write_bytes(b"damaged")

    def files(self) -> Iterator[Path]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and "build" not in path.relative_to(self.folder).parts:
                yield path

    # ------------------------------------------------------------ what is right

    def clean(self, scratch: Path) -> dict[str, str] | None:
        """Descriptions of what the compiler makes now; None where it fails."""
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        sources = sorted((self.folder / "src").glob(f"*.{self.suffix}"))
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda source: self._compile(source, scratch), sources))
        library = scratch / "libt.so"
        objects = [str(scratch / f"{source.name}.o") for source in sources]
        # The wheels keep their libraries where nvcc.profile does not say.
        link = ["-nodlink", f"-L{Path(self.compiler).parents[1]}/lib"] if self.kind == "cuda" else self.arch_flags()
        if not all(done) or not self._run("-shared", *link, "-Llib1", "-Llib2", "-o", library, *objects, "-lhelper"):
            return None
        return self._described(scratch, library)

    def made(self) -> dict[str, str]:
        """Descriptions of what stands in the project."""
        return self._described(self.folder / "build/t/obj/src", self.folder / "build/t/libt.so")

    def arch_flags(self) -> list[str]:
        """PTX goes in for the last architecture."""
        if self.kind == "hip":
            return [f"--offload-arch={arch}" for arch in self.archs]
        *others, last = (arch.removeprefix("sm_") for arch in self.archs)
        return [
            *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in others),
            f"-gencode=arch=compute_{last},code=[sm_{last},compute_{last}]",
        ]

    def _compile(self, source: Path, scratch: Path) -> bool:
        kind = ["-Xcompiler=-fPIC"] if self.kind == "cuda" else ["-fPIC", "-x", "hip", "-cuid=0"]
        return self._run(
            *("-c", *self.arch_flags(), *kind, f"-DDEFINED={self.define}", "-Iinc1", "-Iinc2", *self.flags()),
            *("-o", scratch / f"{source.name}.o", f"src/{source.name}"),
        )

    def _run(self, *arguments: str | Path) -> bool:
        program = self.folder / "toolkit/bin" / Path(self.compiler).name
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", **self.environment}
        if self.kind == "hip":
            environment["HIP_PLATFORM"] = "amd"
        done = subprocess.run(
            [program, *arguments], cwd=self.folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL
        )
        return done.returncode == 0

    def _described(self, objects: Path, library: Path) -> dict[str, str]:
        names = [source.name for source in sorted((self.folder / "src").glob(f"*.{self.suffix}"))]
        found = {f"{name}.o": self._object(objects / f"{name}.o") for name in names}
        found["libt.so"] = _said("nm", library) + _said("objdump", "-d", "--disassemble=helper", library)
        return found

    def _object(self, path: Path) -> str:
        if not path.exists():
            return "missing"
        return "\n".join(f"{part}:\n{text}" for part, text in described(path, self.cuobjdump).items())


def _said(*command: str | Path) -> str:
    """Output of a tool, without addresses of the file."""
    if not Path(command[-1]).exists():
        return "missing"
    done = subprocess.run([*command], capture_output=True, text=True, errors="replace")
    text = done.stdout.replace(str(command[-1]), "FILE")
    if command[0] == "nm":
        return "\n".join(sorted(line[17:] for line in text.splitlines()))
    return "\n".join(line.split(":", 1)[-1] for line in text.splitlines() if re.match(r"\s*[0-9a-f]+:\t", line))
