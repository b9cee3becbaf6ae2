"""A project that changes at random, and what a clean build of it makes: for campaigns that break things meanwhile.

Knows the compiler's own command line, so that what is right does not come from what is tested. Content goes back and
forth between a few versions, so that a build is a mixture of hits and misses.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

ARCH = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
OLD_VERSIONS = 3
"""How many contents come back again and again."""


class Workload:
    """A project under `folder`.

    Args:
        nvcc: path of the compiler (of a fake toolkit, or a real one).
        cuobjdump: path of cuobjdump where `nvcc` is a real one, whose objects differ in names of temporary files.
        scale: of the time that the fake compiler takes.
    """

    def __init__(
        self, folder: Path, nvcc: Path, rng: random.Random, *, units: int = 16, cuobjdump: str = "", scale: float = 1.0
    ) -> None:
        self.folder = folder
        self.rng = rng
        self.nvcc = nvcc
        self.units = units
        self._cuobjdump = cuobjdump
        self._scale = scale
        self._known: dict[str, str] = {}
        self._headers = 4
        self._newest = OLD_VERSIONS
        for sub in ("src", "include"):
            (folder / sub).mkdir(parents=True)
        (folder / "buildd.toml").write_text(
            f'[toolchain]\ncuda = "{nvcc.parents[1]}"\n'
            '[target.all]\nkind = "cuda"\nsources = ["src/*.cu"]\ninclude = ["include"]\narch = ["sm_80"]\n'
        )
        for number in range(self._headers):
            self._write_header(number, 0)
        for number in range(units):
            self._write_unit(number, 0)

    def change(self) -> float:
        """Edit some files, and remove some outputs; the share of the project that this touches, at most 1."""
        rng = self.rng
        share = 0.0
        for _ in range(rng.choice((0, 1, 1, 2, 4, self.units // 2))):
            if rng.random() < 0.2:
                number = rng.randrange(self._headers)
                self._write_header(number, self._version())
                share += (number + 1) / self._headers
            else:
                self._write_unit(rng.randrange(self.units), self._version())
                share += 1 / self.units
        if rng.random() < 0.3:
            self.remove_outputs()
        elif rng.random() < 0.5:
            for path in rng.sample(self._outputs(), 2):
                path.unlink(missing_ok=True)
        return min(1.0, share)

    def _version(self) -> int:
        """One that was there before (a hit, perhaps), or a new one (a miss)."""
        if self.rng.random() < 0.4:
            return self.rng.randrange(OLD_VERSIONS)
        self._newest += 1
        return self._newest

    def remove_outputs(self) -> None:
        shutil.rmtree(self.folder / "build", ignore_errors=True)

    def faults(self) -> list[str]:
        """What is wrong with the outputs that stand in the project, compared with a clean build."""
        wrong = []
        with tempfile.TemporaryDirectory() as aside:
            for number, output in enumerate(self._outputs()[:-1]):
                source = self.folder / "src" / f"unit_{number}.cu"
                wrong += self._compare(output, Path(aside, output.name), source)
            wrong += self._compare_library(self._outputs()[-1], Path(aside, "liball.so"))
        return wrong

    # ----------------------------------------------------------------

    def _write_header(self, number: int, version: int) -> None:
        below = f'#include "h{number + 1}.h"\n' if number + 1 < self._headers else ""
        text = f"#pragma once\n{below}#define H{number} {version + 1}\n"
        (self.folder / "include" / f"h{number}.h").write_text(text)

    def _write_unit(self, number: int, version: int) -> None:
        header = number % self._headers
        # One in four is large enough to be kept as a file of its own in the store.
        size = 150_000 if number % 4 == 0 else 2_000
        sleep_s, linger_s = 0.02 * self._scale * (number % 3), 0.02 * self._scale
        text = (
            f'#include "h{header}.h"\n//! sleep {sleep_s:.3f}\n//! linger {linger_s:.3f}\n//! bytes {size}\n'
            f"__global__ void unit_{number}(float *x) {{ x[threadIdx.x] *= {version + 1}.5f * H{header}; }}\n"
            f'extern "C" {{ int table_{number}[{size // 4}] = {{{version + 1}}}; }}\n'
        )
        (self.folder / "src" / f"unit_{number}.cu").write_text(text)

    def _outputs(self) -> list[Path]:
        """The objects in the order of their numbers, then the library."""
        build = self.folder / "build" / "all"
        return [*(build / "obj" / "src" / f"unit_{n}.cu.o" for n in range(self.units)), build / "liball.so"]

    def _state(self, source: Path) -> str:
        content = [source.read_bytes(), *(path.read_bytes() for path in sorted((self.folder / "include").iterdir()))]
        return hashlib.sha256(b"\0".join(content)).hexdigest()

    def _compare(self, output: Path, clean: Path, source: Path) -> list[str]:
        state = source.name + self._state(source)
        if state not in self._known:
            name = source.relative_to(self.folder)
            self._run("-c", ARCH, "-Xcompiler=-fPIC", "-Iinclude", "-o", str(clean), str(name))
            self._known[state] = self._said(clean)
        return _difference(output, self._said(output), self._known[state])

    def _compare_library(self, output: Path, clean: Path) -> list[str]:
        if self._cuobjdump:
            # Linking is compared by what went in: the kernels of all objects, which were just found right.
            together = [cubin for path in self._outputs()[:-1] for cubin in self._cubins(path)]
            return _difference(output, "\n".join(self._cubins(output)), "\n".join(sorted(together)))
        inputs = [str(path.relative_to(self.folder)) for path in self._sorted_objects()]
        if not all((self.folder / path).is_file() for path in inputs):
            return []
        self._run("-shared", "-o", str(clean), *inputs)
        return _difference(output, self._said(output), self._said(clean))

    def _sorted_objects(self) -> list[Path]:
        """In the order of a glob's sources."""
        return sorted(self._outputs()[:-1])

    def _run(self, *arguments: str) -> None:
        subprocess.run([str(self.nvcc), *arguments], cwd=self.folder, check=True, capture_output=True)

    def _said(self, path: Path) -> str:
        """What a file is, in a form that is equal for equal builds; empty where there is none."""
        if not path.is_file():
            return ""
        if not self._cuobjdump:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        host = subprocess.run(["objdump", "-s", "-j", ".data", str(path)], capture_output=True, check=False).stdout
        # Behind the line that names the file.
        return "\n".join((*self._cubins(path), hashlib.sha256(host.partition(b"Contents")[2]).hexdigest()))

    def _cubins(self, path: Path) -> list[str]:
        """Digests of the machine code in a file, sorted."""
        with tempfile.TemporaryDirectory() as aside:
            command = [self._cuobjdump, "-xelf", "all", str(path)]
            if not path.is_file() or subprocess.run(command, cwd=aside, capture_output=True, check=False).returncode:
                return []
            return sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(aside).iterdir())


def _difference(output: Path, came: str, wanted: str) -> list[str]:
    if came == wanted and came:
        return []
    return [f"{output.name} is {'missing' if not came else 'not what a clean build makes'}"]
